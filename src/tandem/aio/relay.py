"""Relays, asynchronous: listeners and senders of hybrid connections, alone or in pairs."""

from tandem.client.relay.asgi import asgi
from tandem.client.relay.asgi_serving import serve_asgi
from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import (
    BothRelaysUnavailableError,
    ReissueRefusedError,
    RelayError,
    RelayRefusedError,
    RelayUnavailableError,
    ResponseLostError,
)
from tandem.client.relay.listener import RelayListener
from tandem.client.relay.pair import RelayPair
from tandem.client.relay.pair_listener import PairListener
from tandem.client.relay.requests import RelayRequest, RelayResponse
from tandem.client.relay.sender import RelayReply, RelaySender
from tandem.client.relay.stream import RelayStream

__all__ = [
    "BothRelaysUnavailableError",
    "PairListener",
    "ReissueRefusedError",
    "RelayEndpoint",
    "RelayError",
    "RelayListener",
    "RelayPair",
    "RelayRefusedError",
    "RelayReply",
    "RelayRequest",
    "RelayResponse",
    "RelaySender",
    "RelayStream",
    "RelayUnavailableError",
    "ResponseLostError",
    "asgi",
    "serve_asgi",
]
