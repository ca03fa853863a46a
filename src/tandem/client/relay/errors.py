"""What can go wrong at a relay, by what it means: refused, out of reach, or lost on the way; and whether a request may have got through."""

from __future__ import annotations

from collections.abc import Sequence


class RelayError(Exception):
    """Base of everything raised here. `delivered`: False if nothing can have reached the listener, True if something may have."""

    delivered = False


class RelayRefusedError(RelayError):
    """The relay or the listener said no; `status` and the text say why. Another try, here or elsewhere, hears the same."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}".strip())
        self.status = status
        self.reason = reason


class RelayUnavailableError(RelayError):
    """The endpoint cannot be used now: the relay is out of reach, or has no listener, or its listener was lost."""

    def __init__(self, text: str, *, status: int = 0, delivered: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.delivered = delivered


class ResponseLostError(RelayError):
    """The response ended in the middle: the listener has done what was asked of it, or part of it."""

    delivered = True


class ReissueRefusedError(RelayError):
    """The endpoint failed after the request may have reached its listener, and the request is not safe to repeat.

    The cause is what happened. Repeat it yourself if that is right, make the request idempotent, or decide with `reissue=`.
    """

    delivered = True


class BothRelaysUnavailableError(RelayError):
    """Neither endpoint served the request; the roles are what they were. `causes` has one error for each, in the order tried."""

    def __init__(self, message: str, causes: Sequence[BaseException]) -> None:
        super().__init__(message)
        self.causes = tuple(causes)
        self.delivered = any(getattr(cause, "delivered", True) for cause in causes)
