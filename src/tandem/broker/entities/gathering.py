"""One answer from several fragments: when all have committed, when all have read, when one has a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker.ports import Effect, Loaded, SessionAcceptor
from tandem.broker.queue.sessions import MessageSession

if TYPE_CHECKING:
    from tandem.broker.entities.partitioned import PartitionedQueue
    from tandem.model.message import Message


class AllOf(Effect):
    """Done when all are; with the first error, if there was one."""

    __slots__ = ("_effect", "_error", "_left")

    def __init__(self, effect: Effect, left: int) -> None:
        self._effect = effect
        self._left: int = left
        self._error: BaseException | None = None

    def done(self, error: BaseException | None) -> None:
        self._left -= 1
        if error is not None and self._error is None:
            self._error = error
        if self._left == 0:
            self._effect.done(self._error)


class Gathering:
    """Messages asked of several fragments, put together in the order asked for."""

    def __init__(self, seqs: list[int], left: int, then: Loaded) -> None:
        self._seqs = seqs
        self._left = left
        self._then = then
        self._found: dict[int, Message | None] = {}
        self._error: BaseException | None = None

    def take(self, seqs: list[int], messages: list[Message | None], error: BaseException | None) -> None:
        self._left -= 1
        if error is not None:
            self._error = error
        else:
            for seq, message in zip(seqs, messages, strict=True):
                self._found[seq] = message
        if self._left == 0:
            if self._error is not None:
                self._then.loaded([], self._error)
            else:
                self._then.loaded([self._found.get(seq) for seq in self._seqs], None)


class Share(Loaded):
    __slots__ = ("_gathering", "_seqs")

    def __init__(self, gathering: Gathering, seqs: list[int]) -> None:
        self._gathering = gathering
        self._seqs = seqs

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self._gathering.take(self._seqs, messages, error)


class WaitingEverywhere(SessionAcceptor):
    """One client's place in one fragment's line for sessions."""

    __slots__ = ("_front", "acceptor")

    def __init__(self, acceptor: SessionAcceptor, front: PartitionedQueue) -> None:
        super().__init__(acceptor.consumer, acceptor.deadline)
        self.acceptor = acceptor
        self._front = front

    def _leave_all(self) -> None:
        self._front.forget_acceptor(self.acceptor)

    def accepted(self, session: MessageSession) -> None:
        self._leave_all()
        self.acceptor.accepted(session)

    def timed_out(self) -> None:
        self._leave_all()
        self.acceptor.timed_out()
