"""Relays without `await`: stand-ins for the asynchronous classes, which do all the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tandem.client.relay import listener as _listener
from tandem.client.relay import pair as _pair
from tandem.client.relay import pair_listener as _pair_listener
from tandem.client.relay import requests as _requests
from tandem.client.relay import sender as _sender
from tandem.client.relay import stream as _stream
from tandem.client.sync import facade, wrap

RelayStream = facade(_stream.RelayStream)
Opening = facade(_stream.Opening)
RelayRequest = facade(_requests.RelayRequest)
RelayReply = facade(_sender.RelayReply)
RelaySender = facade(_sender.RelaySender)
RelayPair = facade(_pair.RelayPair)
RelayListener = facade(_listener.RelayListener)
PairListener = facade(_pair_listener.PairListener)


def _handle_http(self: Any, handler: Callable[[Any], _requests.RelayResponse]) -> None:
    """`handler(request)` gives the RelayResponse to every HTTP request; each runs in a thread of its own."""

    async def on_thread(request: _requests.RelayRequest) -> _requests.RelayResponse:
        return await asyncio.to_thread(handler, wrap(request))

    self.aio.handle_http(on_thread)


RelayListener.handle_http = _handle_http
PairListener.handle_http = _handle_http
