"""Which of two endpoints is active: picked at random, switched when one fails and the other serves, given back to a preferred one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class EndpointHealth:
    """What a client has seen of one endpoint."""

    failed_at_ms: int | None = None
    """When it failed first since it last served; None: it is well."""
    last_error: BaseException | None = None

    def fail(self, error: BaseException, now: int) -> bool:
        """True: it was well before."""
        self.last_error = error
        if self.failed_at_ms is not None:
            return False
        self.failed_at_ms = now
        return True

    def serve(self) -> bool:
        """True: it had failed before."""
        healed = self.failed_at_ms is not None
        self.failed_at_ms = None
        return healed


class Roles:
    """Endpoints are 0 and 1. Durations in milliseconds of a clock that never jumps."""

    def __init__(self, choose: Callable[[int], int], preferred: int | None, failback_ms: int) -> None:
        self.active = preferred if preferred is not None else choose(2)
        self.health = (EndpointHealth(), EndpointHealth())
        self._preferred = preferred
        self._failback_ms = failback_ms
        self._try_preferred_at = 0

    def order(self, now: int) -> tuple[int, int]:
        """The active one first; now and then the preferred one, to see whether it is back."""
        preferred = self._preferred
        if preferred is not None and preferred != self.active and now >= self._try_preferred_at:
            self._try_preferred_at = now + self._failback_ms
            return preferred, self.active
        return self.active, 1 - self.active

    def failed(self, endpoint: int, error: BaseException, now: int) -> bool:
        """True: it was well before."""
        if endpoint == self._preferred:
            self._try_preferred_at = now + self._failback_ms
        return self.health[endpoint].fail(error, now)

    def served(self, endpoint: int) -> tuple[bool, bool]:
        """(it had failed before, the roles were switched)."""
        healed = self.health[endpoint].serve()
        switched = endpoint != self.active
        self.active = endpoint
        return healed, switched
