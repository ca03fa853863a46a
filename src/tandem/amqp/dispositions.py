"""Dispositions in: the ordinary form by hand, ranges as ranges, work bounded by what we know rather than by what the peer claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from tandem.amqp.codec import plain_uint
from tandem.amqp.errors import INVALID_FIELD, AmqpError, DecodeError, ProtocolError
from tandem.amqp.fields import Fields
from tandem.amqp.link import Delivery
from tandem.amqp.outcomes import Outcome, decode_outcome
from tandem.amqp.performatives import Disposition
from tandem.amqp.serial import difference

if TYPE_CHECKING:
    from tandem.amqp.session import Session

_MASK: Final = 0xFFFFFFFF
_TAILS_MAX: Final = 64
_TAIL_BYTES_MAX: Final = 32


class DispositionTail:
    """The fields of a disposition after its ids, read once per distinct encoding, as with transfers."""

    def __init__(self, count: i64, settled: bool, outcome: Outcome) -> None:
        self.count: i64 = count
        self.settled = settled
        self.outcome = outcome


def take_disposition(session: Session, buf: bytes, at: i64, end: i64) -> None:
    """The ordinary form by hand: list8, receiver role, an id or two; what follows is mostly known already."""
    start: i64 = at
    first: i64 = -1
    last: i64 = -1
    list_end: i64 = 0
    count: i64 = 0
    try:
        if buf[at] != 0xC0 or buf[at + 3] != 0x41:
            _take_disposition_slowly(session, buf, start, end, -1)
            return
        list_end = at + 2 + buf[at + 1]
        count = buf[at + 2]
        first, at = plain_uint(buf, at + 4)
        if buf[at] == 0x40:
            last = first
            at += 1
        else:
            last, at = plain_uint(buf, at)
    except IndexError:
        list_end = 0
    if first < 0 or last < 0 or at > list_end or list_end > end:
        _take_disposition_slowly(session, buf, start, end, -1)
        return
    tail = session.disposition_tails.get(buf[at:list_end])
    if tail is None or tail.count != count:
        _take_disposition_slowly(session, buf, start, end, at)
        return
    _apply_disposition(session, first, last, tail.settled, tail.outcome)


def _take_disposition_slowly(session: Session, buf: bytes, at: i64, end: i64, tail_at: i64) -> None:
    """Any legal disposition. `tail_at` says where the tail begins if the fast path got that far."""
    fields = Fields("disposition", buf, at, end)
    count: i64 = fields.left
    d = Disposition(fields)
    outcome = _outcome(d.state)
    list_end: i64 = fields.list_end
    if 0 < tail_at <= list_end and list_end - tail_at <= _TAIL_BYTES_MAX and len(session.disposition_tails) < _TAILS_MAX:
        session.disposition_tails[buf[tail_at:list_end]] = DispositionTail(count, d.settled, outcome)
    if d.receiver_role:
        _apply_disposition(session, d.first, d.last, d.settled, outcome)
    else:
        _apply_sender_disposition(session, d.first, d.last, d.settled, outcome)


def _outcome(state: bytes) -> Outcome:
    try:
        return decode_outcome(state)
    except DecodeError as error:
        raise DecodeError(f"disposition.state: {error.description}") from None


def _apply_disposition(session: Session, first: int, last: int, settled: bool, outcome: Outcome) -> None:
    unsettled = session.unsettled
    if first == last:
        delivery = session.take_unsettled(first) if settled else unsettled.get(first)
        if delivery is not None:
            link = delivery.link
            link.handler.on_disposition(link, [delivery], outcome, settled)
        return
    run: list[Delivery] = []
    for delivery in _within(unsettled, first, last):
        if settled:
            session.forget_unsettled(delivery)
        if run and run[0].link is not delivery.link:
            link = run[0].link
            link.handler.on_disposition(link, run, outcome, settled)
            run = []
        run.append(delivery)
    if run:
        link = run[0].link
        link.handler.on_disposition(link, run, outcome, settled)


def _within(unsettled: dict[int, Delivery], first: int, last: int) -> list[Delivery]:
    """Known deliveries in a range that the peer chose: the work is bounded by what we know, not by what it claims."""
    n = _span(first, last)
    found: list[Delivery] = []
    if n <= len(unsettled):
        i = first
        while n > 0:
            delivery = unsettled.get(i)
            if delivery is not None:
                found.append(delivery)
            i = (i + 1) & _MASK
            n -= 1
    else:
        # kept in the order they were sent
        for delivery in unsettled.values():
            if (delivery.delivery_id - first) & _MASK < n:
                found.append(delivery)
    return found


def _span(first: int, last: int) -> int:
    n = difference(last, first) + 1
    if n <= 0:
        raise ProtocolError(AmqpError(INVALID_FIELD, f"disposition.last: {last} is before first {first}"))
    return n


def _apply_sender_disposition(session: Session, first: int, last: int, settled: bool, outcome: Outcome) -> None:
    """The sender's word on what we received: of interest only to links that wait for it."""
    n = _span(first, last)
    tracked = session.tracked
    if not tracked:
        return
    if n <= len(tracked):
        ids = [(first + i) & _MASK for i in range(n) if (first + i) & _MASK in tracked]
    else:
        ids = [i for i in tracked if (i - first) & _MASK < n]
    at = 0
    while at < len(ids):
        link = tracked[ids[at]]
        run = at + 1
        while run < len(ids) and ids[run] == (ids[run - 1] + 1) & _MASK and tracked[ids[run]] is link:
            run += 1
        for i in range(at, run):
            if settled:
                del tracked[ids[i]]
        link.handler.on_settled_incoming(link, ids[at], ids[run - 1], outcome, settled)
        at = run


def forget_unsettled(session: Session, first: int, last: int) -> None:
    """We, the sender, settled these."""
    if first == last:
        session.take_unsettled(first)
        return
    for delivery in _within(session.unsettled, first, last):
        session.forget_unsettled(delivery)


def forget_tracked(session: Session, first: int, last: int) -> None:
    """We settled these ourselves: nothing more will be said about them."""
    tracked = session.tracked
    n = difference(last, first) + 1
    if n <= len(tracked):
        for i in range(n):
            tracked.pop((first + i) & _MASK, None)
    else:
        for i in [i for i in tracked if (i - first) & _MASK < n]:
            del tracked[i]
