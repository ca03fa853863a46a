"""Transfers in and out of a session: by hand and by template where they are ordinary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from tandem.amqp.codec import part, plain_uint, uint32
from tandem.amqp.encoder import FALSE, NULL, TRUE, encode_binary, encode_uint, whole_list
from tandem.amqp.errors import (
    NOT_ALLOWED,
    TRANSFER_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    AmqpError,
)
from tandem.amqp.fields import Fields
from tandem.amqp.frames import frame
from tandem.amqp.link import ATTACH_RECEIVED, DETACH_SENT, ReceiverLink, SenderLink
from tandem.amqp.performatives import ABSENT, TRANSFER, Transfer

if TYPE_CHECKING:
    from tandem.amqp.session import Session

_MASK: Final = 0xFFFFFFFF
_TAILS_MAX: Final = 64
_TAIL_BYTES_MAX: Final = 32


class TransferTail:
    """The fields of a transfer after its tag. They repeat from message to message, so each encoding is read once."""

    def __init__(self, count: i64, transfer: Transfer) -> None:
        self.count: i64 = count
        self.settled = transfer.settled
        self.message_format = 0 if transfer.message_format == ABSENT else transfer.message_format
        self.plain = not (transfer.more or transfer.aborted or transfer.resume or transfer.state)


class Waiting:
    """A delivery, or what is left of it, that the peer's window has no room for."""

    def __init__(
        self, link: SenderLink, delivery_id: int, payload: bytes, tag: bytes, settled: bool, message_format: int, state: bytes
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.payload = payload
        self.tag = tag
        self.settled = settled
        self.message_format = message_format
        self.state = state
        self.sent = 0
        self.started = False

    def take(self, count: int) -> None:
        """So many bytes are in a frame."""
        self.started = True
        self.sent += count


class WaitingFlow(Waiting):
    """What is to be said about a link's credit after the deliveries that it counts: a flow must not overtake them."""

    def __init__(self, link: SenderLink, drain: bool) -> None:
        super().__init__(link, ABSENT, b"", b"", True, 0, b"")
        self.delivery_count = link.delivery_count
        self.credit = link.credit
        self.drain = drain


def _read_head(buf: bytes, at: i64) -> tuple[i64, i64, i64, i64, i64]:
    """(list_end, count, handle, delivery_id, offset of the tag) of an ordinary transfer; list_end 0 when it is not one."""
    list_end: i64 = 0
    count: i64 = 0
    handle: i64 = 0
    delivery_id: i64 = 0
    try:
        code: i64 = buf[at]
        if code == 0xC0:
            list_end = at + 2 + buf[at + 1]
            count = buf[at + 2]
            at += 3
        elif code == 0xD0:
            list_end = at + 5 + uint32(buf, at + 1)
            count = uint32(buf, at + 5)
            at += 9
        handle, at = plain_uint(buf, at)
        delivery_id, at = plain_uint(buf, at)
        if handle < 0 or delivery_id < 0 or buf[at] != 0xA0:
            list_end = 0
    except IndexError:
        list_end = 0
    return list_end, count, handle, delivery_id, at


def take_transfer(session: Session, buf: bytes, at: i64, end: i64) -> None:
    """The ordinary transfer by hand; anything unusual goes to `_take_slowly`. `at` is the list constructor."""
    start: i64 = at
    list_end, count, handle, delivery_id, at = _read_head(buf, start)
    if list_end == 0 or at + 1 >= end:
        _take_slowly(session, buf, start, end, -1)
        return
    tag_end: i64 = at + 2 + buf[at + 1]
    if tag_end > list_end or list_end > end:
        _take_slowly(session, buf, start, end, -1)
        return
    tail = session.tails.get(buf[tag_end:list_end])
    link = session.receivers.get(handle)
    if (
        tail is None
        or link is None
        or not tail.plain
        or tail.count != count
        or link.busy
        or end - list_end > link.size_limit
        or not link.attached
    ):
        _take_slowly(session, buf, start, end, tag_end)
        return
    session.took_frame()
    link.took_delivery()
    if link.state >= DETACH_SENT:
        return
    if link.tracks and not tail.settled:
        session.tracked[delivery_id] = link
    link.handler.on_transfer(link, delivery_id, buf[at + 2 : tag_end], buf[list_end:end], tail.settled, tail.message_format, None)


def _take_slowly(session: Session, buf: bytes, at: i64, end: i64, tag_end: i64) -> None:
    """Any legal transfer. `tag_end` says where the tail begins if the fast path got that far."""
    fields = Fields("transfer", buf, at, end)
    count: i64 = fields.left
    transfer = Transfer(fields)
    list_end: i64 = fields.list_end
    if 0 < tag_end <= list_end and list_end - tag_end <= _TAIL_BYTES_MAX and not transfer.state and len(session.tails) < _TAILS_MAX:
        session.tails[buf[tag_end:list_end]] = TransferTail(count, transfer)
    session.took_frame()
    link = session.by_remote_handle.get(transfer.handle)
    if link is None:
        session.end(AmqpError(UNATTACHED_HANDLE, f"transfer: no link has handle {transfer.handle}"))
        return
    if link.state >= DETACH_SENT:
        return
    if not isinstance(link, ReceiverLink):
        link.detach(AmqpError(NOT_ALLOWED, f"transfer: link {link.name} was attached to receive"))
        return
    if link.state == ATTACH_RECEIVED:
        link.refuse(AmqpError(TRANSFER_LIMIT_EXCEEDED, f"transfer: link {link.name} has no credit yet"))
        return
    link.take_head(transfer)
    payload = b""
    if not transfer.aborted:
        payload = part(buf, list_end, end)
        link.take_part(payload, transfer.more)
        if transfer.more:
            return
    _finish(session, link, transfer.aborted, payload)


def _finish(session: Session, link: ReceiverLink, aborted: bool, payload: bytes) -> None:
    oversize = link.oversize
    if not aborted and not oversize:
        payload = link.whole(payload)
    link.forget_unfinished()
    link.took_delivery()
    if aborted or not link.attached:
        return
    if oversize:
        link.handler.on_oversize(link, link.delivery_id, link.tag, link.settled)
        return
    if link.tracks and not link.settled:
        session.tracked[link.delivery_id] = link
    link.handler.on_transfer(link, link.delivery_id, link.tag, payload, link.settled, link.message_format, link.delivery_state)


# -- transfers out, when they do not fit a template --------------------------------------------------------------------


def send_slowly(session: Session, waiting: Waiting) -> None:
    """Several frames, an unusual message format, or a window that is shut."""
    if session.waiting or not _send_parts(session, waiting):
        session.waiting.append(waiting)


def flush_waiting(session: Session) -> None:
    """What is left of links that have gone is dropped on the way: looking for it when they go would cost a look at all that waits."""
    waiting = session.waiting
    while waiting:
        first = waiting[0]
        if first.link.state < DETACH_SENT:
            if isinstance(first, WaitingFlow):
                session.write_link_flow(first.link, first.delivery_count, first.credit, first.drain, False)
            elif not _send_parts(session, first):
                return
        waiting.popleft()


def _send_parts(session: Session, w: Waiting) -> bool:
    """As many frames as the window has room for; True when the delivery is out."""
    total = len(w.payload)
    handle = encode_uint(w.link.handle)
    view = memoryview(w.payload)
    while session.window > 0:
        if w.started:
            items = [handle, NULL, NULL, NULL, NULL, TRUE, NULL, NULL, NULL, NULL, NULL]
        else:
            items = [
                handle,
                encode_uint(w.delivery_id),
                encode_binary(w.tag),
                encode_uint(w.message_format),
                TRUE if w.settled else FALSE,
                TRUE,
                NULL,
                w.state or NULL,
                NULL,
                NULL,
                NULL,
            ]
        head = whole_list(TRANSFER, items)
        room = session.frame_bytes_max - 8 - len(head)
        more = total - w.sent > room
        if not more:
            items[5] = FALSE  # as long as true
            head = whole_list(TRANSFER, items)
        part = w.payload if not more and w.sent == 0 else bytes(view[w.sent : w.sent + room])
        out = session.out
        head_frame = frame(session.channel, head)
        size = len(head_frame) + len(part)
        out.append(size.to_bytes(4, "big") + head_frame[4:])
        out.append(part)
        w.take(len(part))
        session.sent_frame()
        if not more:
            return True
    return False
