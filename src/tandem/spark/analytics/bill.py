"""The bill: what pairing, failover and replication cost beside each other. Arithmetic only: what was counted is brought by `cost`.

The figures everybody quotes come from here: ten idle backlog queues polled every 15 minutes are 40 operations an hour, and a diverted
message takes four operations instead of two.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.prices import Prices, load_prices

DIVERTED_OPERATIONS: Final = ("send to backlog", "receive from backlog", "send to primary", "receive from primary")
DAYS: Final = 30
_HOURS_PER_MONTH: Final = 24 * DAYS
_MINUTES_PER_DAY: Final = 24 * 60
_BACKLOG: Final = "/x-servicebus-transfer/"


@dataclass(frozen=True, slots=True)
class Operations:
    """One line of the bill."""

    namespace: str
    entity: str
    operation: str
    outcome: str
    count: int
    billed: int
    """Started 64 KB units, by the weight in the price table."""
    bytes: int

    @property
    def backlog(self) -> bool:
        return _BACKLOG in self.entity.casefold()


@dataclass(frozen=True, slots=True)
class Counted:
    """What meters say."""

    lines: tuple[Operations, ...] = ()
    minutes: int = 0
    """From the first counted minute to the last."""
    broken_lines: int = 0

    def sum(self, operation: str, outcome: str, *, backlog: bool) -> int:
        return sum(one.count for one in self.lines if (one.operation, one.outcome, one.backlog) == (operation, outcome, backlog))

    def paths(self) -> int:
        """Entities that were sent to."""
        return len({(one.namespace, one.entity) for one in self.lines if one.operation == "send" and not one.backlog})


@dataclass(frozen=True, slots=True)
class IdleCost:
    """Backlog queues that nobody writes to, each polled by one receive at a time."""

    queues: int
    per_hour: float
    per_day: float
    per_month: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the same messages would take in 30 days."""

    name: str
    operations: float
    price: float
    words: str


@dataclass(frozen=True, slots=True)
class Cost:
    lines: tuple[Operations, ...]
    minutes: int
    """From the first counted minute to the last."""
    broken_lines: int
    """In meter files, not counted: damaged, or just being written."""
    billed: int
    messages: int
    """Accepted by the entities themselves, not by backlog queues; each message once."""
    diverted: int
    measured_per_diverted: float | None
    """Operations that diverted messages took, as counted: those on the backlog queues, and two in the primary."""
    idle: IdleCost
    idle_measured_per_hour: float | None
    """Empty receives from backlog queues, as counted."""
    messages_per_month: float
    """What the scenarios are about."""
    basis: str
    """Where that number comes from, in words."""
    scenarios: tuple[Scenario, ...]
    currency: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"operations_per_diverted_message": len(DIVERTED_OPERATIONS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """30 days of one application, as far as they are not counted."""

    backlog_queues: int = 10
    poll_minutes: float = 15.0
    messages: int | None = None
    """None: those that were counted."""
    outage_minutes: float = 60.0
    """They decide the share of messages that is diverted: sends are taken to be spread evenly."""
    paths: int | None = None
    """Entities that are pinged while they are failed over, by each process; None: those that were counted, at least one."""

    def __post_init__(self) -> None:
        if self.backlog_queues < 1 or not 0 < self.poll_minutes < math.inf:
            raise ConfigurationError("backlog queues must be at least 1, and the poll longer than 0 minutes")
        if not 0 <= self.outage_minutes <= _HOURS_PER_MONTH * 60:
            raise ConfigurationError(f"minutes of outage in 30 days are 0 to {_HOURS_PER_MONTH * 60}")


def idle_cost(queues: int, poll_minutes: float) -> IdleCost:
    """One receive per queue and poll, whether it finds something or not."""
    per_hour = queues * 60 / poll_minutes
    return IdleCost(queues, per_hour, per_hour * 24, per_hour * 24 * DAYS)


def bill(counted: Counted, month: Month, prices: str | None = None) -> Cost:
    """Price what was counted, and compare what other set-ups would cost for the same messages."""
    table = load_prices(prices)
    diverted = counted.sum("send", "ok", backlog=True)
    # what the syphon brought home arrived in the primary as a send, so that every message is there once, and in the backlog besides
    messages = counted.sum("send", "ok", backlog=False)
    polls = counted.sum("receive", "empty", backlog=True)
    idle = idle_cost(month.backlog_queues, month.poll_minutes)
    monthly, basis = _per_month(month, messages, counted.minutes)
    paths = month.paths if month.paths is not None else max(1, counted.paths())
    return Cost(
        lines=counted.lines,
        minutes=counted.minutes,
        broken_lines=counted.broken_lines,
        billed=sum(line.billed for line in counted.lines),
        messages=messages,
        diverted=diverted,
        measured_per_diverted=(diverted + counted.sum("receive", "ok", backlog=True)) / diverted + 2 if diverted else None,
        idle=idle,
        idle_measured_per_hour=polls * 60 / counted.minutes if polls else None,
        messages_per_month=monthly,
        basis=basis,
        scenarios=_scenarios(table, monthly, paths, idle, month),
        currency=table.currency,
    )


def _per_month(month: Month, messages: int, minutes: int) -> tuple[float, str]:
    """(messages in 30 days, where the number comes from). Less than a day says nothing of the nights: it is not multiplied."""
    if month.messages is not None:
        return float(month.messages), f"{month.messages:,} messages, as given"
    if not messages:
        return 0.0, "no messages were counted"
    if minutes < _MINUTES_PER_DAY:
        return float(messages), (
            f"{messages:,} messages, all that were counted in {_length(minutes)}: too short a time to be multiplied to 30 days"
        )
    scaled = messages * _HOURS_PER_MONTH * 60 / minutes
    return scaled, f"{scaled:,.0f} messages, multiplied from {messages:,} counted in {_length(minutes)}"


def _length(minutes: int) -> str:
    if minutes >= 2 * _MINUTES_PER_DAY:
        return f"{minutes / _MINUTES_PER_DAY:,.1f} days"
    return f"{minutes / 60:,.1f} hours" if minutes >= 120 else f"{minutes:,} minute{'' if minutes == 1 else 's'}"


def _scenarios(prices: Prices, messages: float, paths: int, idle: IdleCost, month: Month) -> tuple[Scenario, ...]:
    share = month.outage_minutes / (_HOURS_PER_MONTH * 60)
    diverted = messages * share
    pings = month.outage_minutes * paths
    second = _HOURS_PER_MONTH * 60 / month.poll_minutes
    wishes = (
        ("one namespace", 2 * messages, "send and receive, and nothing else when it is down"),
        ("paired, idle", 2 * messages + idle.per_month, f"and {idle.queues} backlog queues polled every {month.poll_minutes:g} minutes"),
        (
            "paired, with failover",
            2 * (messages - diverted) + len(DIVERTED_OPERATIONS) * diverted + pings + idle.per_month,
            f"{month.outage_minutes:g} minutes of outage: {share:.2%} of the messages diverted at four operations each, and a ping "
            f"a minute for {'each of ' if paths > 1 else ''}{paths} path{'s' if paths > 1 else ''}",
        ),
        ("active replication", 4 * messages, "every message sent to both namespaces and received from both"),
        ("passive replication", 2 * messages + second, "sent once; receivers listen on both, the second one idle"),
    )
    return tuple(Scenario(name, operations, prices.of_month(operations), words) for name, operations, words in wishes)
