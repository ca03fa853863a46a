"""Two relays in two namespaces as one: a service listens on both, a client uses one and turns to the other when that fails."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from tandem.client.errors import describe
from tandem.client.events import Callback, Counters, EventHub
from tandem.client.relay.endpoint import RelayEndpoint
from tandem.client.relay.errors import BothRelaysUnavailableError, ReissueRefusedError, RelayError, ResponseLostError
from tandem.client.relay.pair_listener import PairListener
from tandem.client.relay.reissue import SAFE, Reissue, check_reissue, is_outage, may_reissue
from tandem.client.relay.roles import Roles
from tandem.client.relay.sender import Data, RelayReply, RelaySender
from tandem.client.relay.stream import Opening, RelayStream
from tandem.model.clock import SystemClock

_T = TypeVar("_T")


class RelayPair:
    """`RelayPair(primary, secondary)`: on the service's side `async with pair.listen() as listener`, on the client's `request`, `connect`.

    One endpoint is active, picked at random at first (`prefer="primary"` or `"secondary"`: that one, and back to it once it serves again,
    tried every `failback_after` seconds). A request that fails there because the endpoint is out of order is made again at the other, if
    that is safe: nothing of a response was seen, and nothing of it was delivered or it is idempotent (`reissue=` decides otherwise). If
    the other serves it, the roles switch; if both fail, they stay and BothRelaysUnavailableError has both causes.
    """

    def __init__(
        self,
        primary: RelayEndpoint,
        secondary: RelayEndpoint,
        *,
        prefer: str | None = None,
        failback_after: float = 30.0,
        reissue: Reissue = SAFE,
        name: str | None = None,
        on_event: Callback | None = None,
        choose: Callable[[int], int] = secrets.randbelow,
        now_ms: Callable[[], int] | None = None,
        **sender_options: Any,
    ) -> None:
        if prefer not in (None, "primary", "secondary"):
            raise ValueError(f"prefer is {prefer!r}; it may be 'primary', 'secondary' or None")
        check_reissue(reissue)
        self.endpoints = (primary, secondary)
        self.name = name or primary.relay
        """Under which its counters are kept."""
        self.counters = Counters()
        self.events = EventHub(now_ms or SystemClock().now_ms)
        if on_event is not None:
            self.events.subscribe(on_event)
        preferred = None if prefer is None else ("primary", "secondary").index(prefer)
        self._roles = Roles(choose, preferred, int(failback_after * 1000))
        self._reissue = reissue
        self._steady_ms = SystemClock().steady_ms
        self._senders = tuple(RelaySender(endpoint, **sender_options) for endpoint in self.endpoints)

    @property
    def active(self) -> RelayEndpoint:
        """The one that is asked first."""
        return self.endpoints[self._roles.active]

    @property
    def backup(self) -> RelayEndpoint:
        return self.endpoints[1 - self._roles.active]

    def last_error(self, endpoint: RelayEndpoint) -> BaseException | None:
        """What `endpoint` failed with last, as the client's side saw it; None if it is well."""
        health = self._roles.health[self.endpoints.index(endpoint)]
        return health.last_error if health.failed_at_ms is not None else None

    def listen(self, **options: Any) -> PairListener:
        """The service's side: a listener on each endpoint."""
        return PairListener(self.endpoints, self.events, options)

    async def __aenter__(self) -> RelayPair:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        for sender in self._senders:
            await sender.close()

    # -- the client's side

    async def request(
        self,
        method: str,
        path: str = "",
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: Data = None,
        stream: bool = False,
        reissue: Reissue | None = None,
    ) -> RelayReply:
        """As `RelaySender.request`. `data` that streams can be sent again only if it is a function that makes it anew."""
        decide = self._reissue if reissue is None else reissue
        check_reissue(decide)
        once = None if data is None or isinstance(data, bytes | str) or callable(data) else _Once(data)
        body = data if once is None else once

        async def ask(sender: RelaySender) -> RelayReply:
            return await sender.request(method, path, params=params, headers=headers, data=body, stream=stream)

        def allowed(error: RelayError) -> bool:
            return may_reissue(decide, method, error, once is None or not once.begun)

        return await self._either(f"{method} {path}", ask, allowed)

    def connect(
        self, path: str = "", *, query: str = "", headers: Mapping[str, str] | None = None, sub_protocols: Sequence[str] | None = None
    ) -> Opening:
        """As `RelaySender.connect`. A stream that is lost later is not made again: what was said on it is the application's to repeat."""
        return Opening(lambda: self.open(path, query=query, headers=headers, sub_protocols=sub_protocols))

    async def open(
        self, path: str = "", *, query: str = "", headers: Mapping[str, str] | None = None, sub_protocols: Sequence[str] | None = None
    ) -> RelayStream:
        async def ask(sender: RelaySender) -> RelayStream:
            return await sender.open(path, query=query, headers=headers, sub_protocols=sub_protocols)

        return await self._either(f"connect {path}", ask, lambda error: True)

    async def _either(self, what: str, ask: Callable[[RelaySender], Awaitable[_T]], allowed: Callable[[RelayError], bool]) -> _T:
        first, second = self._roles.order(self._steady_ms())
        counts = self.counters.path(self.name)
        try:
            result = await ask(self._senders[first])
        except RelayError as error:
            if isinstance(error, ResponseLostError):
                self.counters.message_failed(counts)
                self._failed(first, error)
                raise
            if not is_outage(error):
                counts.primary_answered()  # the endpoint serves: it said no
                raise
            self._failed(first, error)
            if not allowed(error):
                self.counters.message_failed(counts)
                raise ReissueRefusedError(
                    f"{what}: {self.endpoints[first]} failed when the request may have been delivered; it is not safe to repeat: {error}"
                ) from error
            return await self._other(what, ask, second, error)
        counts.primary_answered()
        self._served(first)
        return result

    async def _other(self, what: str, ask: Callable[[RelaySender], Awaitable[_T]], second: int, first_error: RelayError) -> _T:
        counts = self.counters.path(self.name)
        try:
            result = await ask(self._senders[second])
        except RelayError as error:
            if not is_outage(error) and not isinstance(error, ResponseLostError):
                counts.messages_diverted(1)
                self._served(second)
                raise
            self.counters.message_failed(counts)
            self._failed(second, error)
            raise BothRelaysUnavailableError(
                f"{what}: neither endpoint served it: {describe(first_error)}; {describe(error)}", (first_error, error)
            ) from error
        self.counters.messages_diverted(counts, 1)
        self._served(second)
        return result

    def _failed(self, endpoint: int, error: RelayError) -> None:
        if self._roles.failed(endpoint, error, self._steady_ms()):
            self.counters.failed_over()
            self.events.tell("path-failed-over", str(self.endpoints[endpoint]), describe(error), error)

    def _served(self, endpoint: int) -> None:
        healed, switched = self._roles.served(endpoint)
        if healed:
            self.counters.failed_back()
            self.events.tell("path-healthy", str(self.endpoints[endpoint]), "the endpoint serves again")
        if switched:
            self.events.tell("roles-switched", self.name, f"{self.endpoints[endpoint]} is the active endpoint now")


class _Once:
    """A body that streams and can be read once: whether that has begun."""

    def __init__(self, body: AsyncIterable[bytes]) -> None:
        self.begun = False
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.begun = True
        async for chunk in self._body:
            yield chunk
