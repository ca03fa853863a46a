"""Relays without `await`: stand-ins for the asynchronous classes, which do all the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tandem.client.facade import facade, wrap
from tandem.client.relay import listener as _listener
from tandem.client.relay import pair as _pair
from tandem.client.relay import pair_listener as _pair_listener
from tandem.client.relay import requests as _requests
from tandem.client.relay import sender as _sender
from tandem.client.relay import stream as _stream

RelayStream = facade(_stream.RelayStream, __name__)
Opening = facade(_stream.Opening, __name__)
RelayRequest = facade(_requests.RelayRequest, __name__)
RelayReply = facade(_sender.RelayReply, __name__)
RelaySender = facade(_sender.RelaySender, __name__)
RelayPair = facade(_pair.RelayPair, __name__)
RelayListener = facade(_listener.RelayListener, __name__)
PairListener = facade(_pair_listener.PairListener, __name__)


def _handle_http(self: Any, handler: Callable[[Any], _requests.RelayResponse]) -> None:
    """`handler(request)` gives the RelayResponse to every HTTP request; each runs in a thread of its own."""

    async def on_thread(request: _requests.RelayRequest) -> _requests.RelayResponse:
        return await asyncio.to_thread(handler, wrap(request))

    self.aio.handle_http(on_thread)


RelayListener.handle_http = _handle_http
PairListener.handle_http = _handle_http
