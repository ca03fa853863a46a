"""The classes without `await`, as type checkers see them: generated from the asynchronous ones, `make docs` writes it again."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from tandem.client.events import Callback, Counters, EventHub
from tandem.client.relay import requests as _requests
from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.listener import Accept, OnState
from tandem.client.relay.listener import RelayListener as AsyncRelayListener
from tandem.client.relay.pair import RelayPair as AsyncRelayPair
from tandem.client.relay.pair_listener import PairListener as AsyncPairListener
from tandem.client.relay.reissue import Reissue
from tandem.client.relay.requests import RelayRequest as AsyncRelayRequest
from tandem.client.relay.sender import Data
from tandem.client.relay.sender import RelayReply as AsyncRelayReply
from tandem.client.relay.sender import RelaySender as AsyncRelaySender
from tandem.client.relay.stream import Opening as AsyncOpening
from tandem.client.relay.stream import RelayStream as AsyncRelayStream
from tandem.model.backoff import Backoff

class RelayStream:
    """Text and bytes go through as they are, message by message, at the pace of the slower side."""

    aio: AsyncRelayStream
    def __init__(
        self,
        socket: Any,
        *,
        headers: dict[str, str] | None = ...,
        path: str = ...,
        remote: tuple[str, int] | None = ...,
        endpoint: RelayEndpoint | None = ...,
    ) -> None: ...
    def close(self, code: int = ..., reason: str = ...) -> None: ...
    def receive(self) -> str | bytes | None:
        """None: the other side closed in order."""
    def send(self, message: str | bytes) -> None:
        """Returns when there is room for it."""
    @property
    def close_code(self) -> int | None: ...
    @property
    def close_reason(self) -> str: ...
    @property
    def endpoint(self) -> RelayEndpoint | None: ...
    @property
    def headers(self) -> Any: ...
    @property
    def path(self) -> str: ...
    @property
    def remote(self) -> tuple[str, int] | None: ...
    @property
    def sub_protocol(self) -> str | None: ...
    def __enter__(self) -> RelayStream: ...
    def __exit__(self, *exception: object) -> None: ...
    def __iter__(self) -> Iterator[str | bytes]: ...

class Opening:
    """A stream that is opened when a block is entered and closed when it is left."""

    aio: AsyncOpening
    def __init__(self, open_: Callable[[], Awaitable[RelayStream]]) -> None: ...
    def __enter__(self) -> RelayStream: ...
    def __exit__(self, *exception: object) -> None: ...

class RelayRequest:
    """One request. The body may be read once, whole with `read` or piece by piece by iterating."""

    aio: AsyncRelayRequest
    def read(self) -> bytes: ...
    @property
    def body(self) -> AsyncIterator[bytes]: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def host(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def relay(self) -> str: ...
    @property
    def remote(self) -> tuple[str, int] | None: ...
    @property
    def target(self) -> str: ...
    @property
    def tls(self) -> bool: ...
    def __iter__(self) -> Iterator[bytes]: ...

class RelayReply:
    """A listener's response. `body` is there when the request was made without `stream`; else iterate over it, and close it."""

    aio: AsyncRelayReply
    def chunks(self) -> AsyncIterator[bytes]: ...
    def close(self) -> None: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def reason(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def text(self) -> str: ...
    def __iter__(self) -> Iterator[bytes]: ...

class RelaySender:
    """Keeps HTTP connections open between requests: close it, or use it with `async with`."""

    aio: AsyncRelaySender
    def __init__(
        self, endpoint: RelayEndpoint, *, connect_timeout: float = ..., timeout: float = ..., message_bytes_max: int | None = ...
    ) -> None:
        """`timeout`: until a response begins, and for every pause in it; the relay's own is 60 seconds."""
    def close(self) -> None: ...
    def connect(
        self, path: str = ..., *, query: str = ..., headers: Mapping[str, str] | None = ..., sub_protocols: Sequence[str] | None = ...
    ) -> Opening:
        """`async with sender.connect() as stream`: a WebSocket to one of the listeners, closed at the end of the block."""
    def open(
        self, path: str = ..., *, query: str = ..., headers: Mapping[str, str] | None = ..., sub_protocols: Sequence[str] | None = ...
    ) -> RelayStream:
        """As `connect`; the caller closes it."""
    def request(
        self,
        method: str,
        path: str = ...,
        *,
        params: Mapping[str, str] | None = ...,
        headers: Mapping[str, str] | None = ...,
        data: Data = ...,
        stream: bool = ...,
    ) -> RelayReply:
        """Whatever the listener answers is a reply, errors included; what the relay itself says is raised."""
    @property
    def endpoint(self) -> RelayEndpoint: ...
    def __enter__(self) -> RelaySender: ...
    def __exit__(self, *exception: object) -> None: ...

class RelayPair:
    """`RelayPair(primary, secondary)`: on the service's side `async with pair.listen() as listener`, on the client's …"""

    aio: AsyncRelayPair
    def __init__(
        self,
        primary: RelayEndpoint,
        secondary: RelayEndpoint,
        *,
        prefer: str | None = ...,
        failback_after: float = ...,
        reissue: Reissue = ...,
        name: str | None = ...,
        on_event: Callback | None = ...,
        choose: Callable[[int], int] = ...,
        now_ms: Callable[[], int] | None = ...,
        **sender_options: Any,
    ) -> None: ...
    def close(self) -> None: ...
    def connect(
        self, path: str = ..., *, query: str = ..., headers: Mapping[str, str] | None = ..., sub_protocols: Sequence[str] | None = ...
    ) -> Opening:
        """As `RelaySender.connect`. A stream that is lost later is not made again: what was said on it is the application's to repeat."""
    def last_error(self, endpoint: RelayEndpoint) -> BaseException | None:
        """What `endpoint` failed with last, as the client's side saw it; None if it is well."""
    def listen(self, **options: Any) -> PairListener:
        """The service's side: a listener on each endpoint."""
    def open(
        self, path: str = ..., *, query: str = ..., headers: Mapping[str, str] | None = ..., sub_protocols: Sequence[str] | None = ...
    ) -> RelayStream: ...
    def request(
        self,
        method: str,
        path: str = ...,
        *,
        params: Mapping[str, str] | None = ...,
        headers: Mapping[str, str] | None = ...,
        data: Data = ...,
        stream: bool = ...,
        reissue: Reissue | None = ...,
    ) -> RelayReply:
        """As `RelaySender.request`. `data` that streams can be sent again only if it is a function that makes it anew."""
    @property
    def active(self) -> RelayEndpoint: ...
    @property
    def backup(self) -> RelayEndpoint: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def endpoints(self) -> Any: ...
    @property
    def events(self) -> EventHub: ...
    @property
    def name(self) -> Any: ...
    def __enter__(self) -> RelayPair: ...
    def __exit__(self, *exception: object) -> None: ...

class RelayListener:
    """`async with RelayListener(endpoint) as listener: async for stream in listener: …`"""

    aio: AsyncRelayListener
    def __init__(
        self,
        endpoint: RelayEndpoint,
        *,
        accept: Accept | None = ...,
        on_state: OnState | None = ...,
        back_off: Backoff | None = ...,
        requests_max: int = ...,
        message_bytes_max: int | None = ...,
        now_ms: Callable[[], int] | None = ...,
    ) -> None: ...
    def close(self) -> None:
        """Nothing new is taken; streams that were handed out go on."""
    def handle_http(self: Any, handler: Callable[[Any], _requests.RelayResponse]) -> None:
        """`handler(request)` gives the RelayResponse to every HTTP request; each runs in a thread of its own."""
    def serve_forever(self) -> None:
        """For listeners that only answer HTTP."""
    def start(self) -> None: ...
    def wait_online(self, timeout: float | None = ...) -> None:
        """Returns when it listens. Raises TimeoutError."""
    @property
    def endpoint(self) -> RelayEndpoint: ...
    @property
    def last_error(self) -> BaseException | None: ...
    @property
    def online(self) -> bool: ...
    @property
    def reconnects(self) -> int: ...
    def __enter__(self) -> RelayListener: ...
    def __exit__(self, *exception: object) -> None: ...
    def __iter__(self) -> Iterator[RelayStream]: ...

class PairListener:
    """Iterate over it for connections of either endpoint, or `handle_http`. One endpoint is enough to be open."""

    aio: AsyncPairListener
    def __init__(self, endpoints: Sequence[RelayEndpoint], events: EventHub, options: dict[str, Any]) -> None: ...
    def close(self) -> None: ...
    def handle_http(self: Any, handler: Callable[[Any], _requests.RelayResponse]) -> None:
        """`handler(request)` gives the RelayResponse to every HTTP request; each runs in a thread of its own."""
    def serve_forever(self) -> None: ...
    def start(self) -> None:
        """An endpoint that refuses us is an error; one that is out of reach is tried again, if the other can be listened on or not."""
    def wait_online(self, timeout: float | None = ...) -> None:
        """Returns when at least one endpoint is listened on. Raises TimeoutError."""
    @property
    def health(self) -> dict[str, bool]: ...
    @property
    def listeners(self) -> Any: ...
    def __enter__(self) -> PairListener: ...
    def __exit__(self, *exception: object) -> None: ...
    def __iter__(self) -> Iterator[RelayStream]: ...
