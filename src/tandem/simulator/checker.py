"""Counts what a crash may not do: `lost`, `duplicated`, `recovered`, `unexpected`, from what clients were told and what they saw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_EXAMPLES_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The four counters, and a few sentences about what was wrong."""

    lost: int = 0
    """Accepted, and neither seen by anybody who could settle it nor confirmed as settled when everything was drained."""
    duplicated: int = 0
    """Seen again after its settlement was confirmed, or seen as two messages."""
    recovered: int = 0
    """In the broker when it crashed, and delivered afterwards. Not a fault: it says how much the crashes had to bite on."""
    unexpected: int = 0
    """Never sent, refused, changed, out of order, too early, in the wrong place."""
    seen: int = 0
    examples: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.lost == self.duplicated == self.unexpected == 0

    def __str__(self) -> str:
        counters = f"lost {self.lost}, duplicated {self.duplicated}, recovered {self.recovered}, unexpected {self.unexpected}"
        return "; ".join((f"{counters} of {self.seen} seen", *self.examples))

    @staticmethod
    def total(verdicts: Iterable[CheckResult]) -> CheckResult:
        found = list(verdicts)
        return CheckResult(
            lost=sum(one.lost for one in found),
            duplicated=sum(one.duplicated for one in found),
            recovered=sum(one.recovered for one in found),
            unexpected=sum(one.unexpected for one in found),
            seen=sum(one.seen for one in found),
            examples=tuple(example for one in found for example in one.examples),
        )


@dataclass(slots=True)
class _Fate:
    """What is known of one message."""

    sent_in: int
    """The life of the broker (how many crashes before) in which it was first sent."""
    accepted: bool = False
    refused: bool = False
    settling: bool = False
    settled: bool = False
    number: int = 0
    seen: int = 0
    recovered: bool = False
    damaged: bool = False
    """Its body rotted on the disk, and that was told."""

    def accept(self) -> None:
        self.accepted = True

    def refuse(self) -> None:
        self.refused = True

    def deliver(self, number: int) -> None:
        self.settling = False
        self.number = number
        self.seen += 1

    def recover(self) -> None:
        self.recovered = True

    def ask_to_settle(self) -> None:
        self.settling = True

    def settle(self) -> None:
        self.settled = True

    def move(self) -> None:
        """Its next number is another one."""
        self.number = 0

    def damage(self) -> None:
        self.damaged = True
        self.number = 0


@dataclass(slots=True)
class Checker:
    """Told of every step by the clients of one entity, in the order in which they took or learned it.

    Between asking and hearing the answer both outcomes are right: a send without an answer may arrive or not, a settlement without an
    answer may have happened or not. Everything that was confirmed must hold for ever.
    """

    name: str = ""
    lost_allowed: int = 0
    """Receive-and-delete may lose what was on its way to a client: raised by the credit that was out when a connection broke."""
    _fates: dict[str, _Fate] = field(default_factory=dict)
    _life: int = 0
    _duplicated: int = 0
    _recovered: int = 0
    _unexpected: int = 0
    _seen: int = 0
    _examples: list[str] = field(default_factory=list)

    # -- what clients do and hear ------------------------------------------------------------

    def sending(self, key: str) -> None:
        """About to be sent: from now on it may be seen. Sending again is allowed until it was accepted."""
        self._fates.setdefault(key, _Fate(self._life))

    def accepted(self, key: str) -> None:
        self._fates[key].accept()

    def refused(self, key: str) -> None:
        """The broker said no: it must never be seen."""
        self._fates[key].refuse()

    def delivered(self, key: str, number: int) -> None:
        """Seen by a receiver, under this sequence number."""
        self._seen += 1
        fate = self._fates.get(key)
        if fate is None:
            self.wrong(f"{key} was never sent")
            return
        if fate.refused:
            self.wrong(f"{key} was refused, and is delivered")
        if fate.settled:
            self._duplicate(f"{key} was settled and confirmed, and is delivered again")
        elif fate.number and fate.number != number:
            self._duplicate(f"{key} is there twice, as {fate.number} and {number}")
        fate.deliver(number)
        if fate.sent_in < self._life and not fate.recovered:
            fate.recover()
            self._recovered += 1

    def came_late(self, key: str) -> None:
        """Seen under a lock that was lost on the way: whatever became of it since was right."""
        self._seen += 1
        if key not in self._fates:
            self.wrong(f"{key} was never sent")

    def settling(self, key: str) -> None:
        """Asked to remove it: from now on it may be gone."""
        self._fates[key].ask_to_settle()

    def settled(self, key: str) -> None:
        """Confirmed: it must never be seen again."""
        self._fates[key].settle()

    def moved(self, key: str) -> None:
        """It will have another sequence number when it is seen next: moved to another queue, or activated."""
        self._fates[key].move()

    def damaged(self, key: str) -> None:
        """It was told that its body is lost: it need not come any more, and if it does it is a dead letter."""
        fate = self._fates.get(key)
        if fate is not None:
            fate.damage()

    def crashed(self) -> None:
        self._life += 1

    def wrong(self, what: str) -> None:
        """Something that no crash explains."""
        self._unexpected += 1
        self._example(what)

    # -- questions ---------------------------------------------------------------------------

    def is_open(self, key: str) -> bool:
        """Accepted, and nobody has asked to remove it: it must be in the broker."""
        fate = self._fates[key]
        return fate.accepted and not fate.settling and not fate.settled and not fate.damaged

    def was_seen(self, key: str) -> bool:
        return self._fates[key].seen > 0

    def was_accepted(self, key: str) -> bool:
        return self._fates[key].accepted

    @property
    def holds_so_far(self) -> bool:
        """Nothing was doubled or unexpected yet; what is lost shows at the end."""
        return self._duplicated == self._unexpected == 0

    @property
    def seen(self) -> int:
        """Deliveries so far."""
        return self._seen

    @property
    def recovered(self) -> int:
        """Delivered so far after a crash that they were in the broker for."""
        return self._recovered

    @property
    def open_count(self) -> int:
        return sum(self.is_open(key) for key in self._fates)

    def verdict(self) -> CheckResult:
        """Ask when everything was drained."""
        missing = [key for key in self._fates if self.is_open(key)]
        lost = max(len(missing) - self.lost_allowed, 0)
        examples = list(self._examples)
        if lost:
            examples.append(self._named(f"lost: {', '.join(missing[:_EXAMPLES_MAX])}"))
        return CheckResult(
            lost=lost,
            duplicated=self._duplicated,
            recovered=self._recovered,
            unexpected=self._unexpected,
            seen=self._seen,
            examples=tuple(examples),
        )

    def _duplicate(self, what: str) -> None:
        self._duplicated += 1
        self._example(what)

    def _example(self, what: str) -> None:
        if len(self._examples) < _EXAMPLES_MAX:
            self._examples.append(self._named(what))

    def _named(self, what: str) -> str:
        return f"{self.name}: {what}" if self.name else what
