"""Messages and frames from a seed, sensible, odd and broken: the same bytes wherever they are made, so no clock, no Tandem in here."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator
from itertools import chain

from tests.differential.values import KEYS, POOL, binary, list_of, map_of, symbol, text, uint

HEADERS = b"AMQP\x00\x01\x00\x00"
FIRST_TRANSFER = 1
"""What the broker says in its begin."""
FIRST_DELIVERY = 0
_POOL_SIZE = len(POOL)
_ODD = 65536 // 5
_ODD_OR_NULL = _ODD + (65536 - _ODD) // 3
"""Of numbers of 16 bits."""


class Dice:
    """Choices from one seed. Numbers of 16 bits are drawn many at a time: a frame takes fifty."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._next = chain.from_iterable(self._drawn()).__next__

    def _drawn(self) -> Iterator[array[int]]:
        while True:
            yield array("H", self._random.randbytes(32768))

    def below(self, limit: int) -> int:
        return self._next() * limit >> 16

    def bits(self, count: int) -> int:
        return self._next() >> 16 - count

    def pick(self, of: list[bytes]) -> bytes:
        return of[self._next() * len(of) >> 16]

    def chance(self, one_in: int) -> bool:
        return self._next() * one_in < 65536

    def field(self, sensible: bytes) -> bytes:
        """What belongs there, mostly."""
        return POOL[self._next() * _POOL_SIZE >> 16] if self._next() * 5 < 65536 else sensible

    def field_or_null(self, sensible: bytes) -> bytes:
        """The same, and it may be missing."""
        drawn = self._next()
        return sensible if drawn >= _ODD_OR_NULL else POOL[self._next() * _POOL_SIZE >> 16] if drawn < _ODD else b"\x40"

    def mutated(self, data: bytes) -> bytes:
        """Now and then a byte changed, removed, doubled, or the end cut off."""
        if self.bits(2):
            return data
        changed = bytearray(data)
        for _ in range(1 + self.below(3)):
            if not changed:
                break
            at = self.below(len(changed))
            how = self.bits(3)
            if how < 4:
                changed[at] = self.bits(8)
            elif how == 4:
                changed[at] ^= 1 << self.bits(3) & 7
            elif how == 5:
                del changed[at]
            elif how == 6:
                changed[at:at] = self.pick(POOL)
            else:
                del changed[at:]
        return bytes(changed)

    def compound(self, items: list[bytes], mapped: bool = False) -> bytes:
        lie = self.below(7) - 3 if self.chance(12) else 0
        return (map_of if mapped else list_of)(items, self.chance(4), lie)


_HEADER = (b"\x41", b"\x50\x04", b"\x70\x00\x01\x00\x00", b"\x42", b"\x43")
_PROPERTIES = (
    b"\xa0\x01u",
    *(text(name) for name in ("to", "subject", "reply", "correlation")),
    symbol("text/plain"),
    symbol("utf-8"),
    b"\x83" + b"\0" * 8,
    b"\x83" + b"\0" * 8,
)
_GROUP = text("group")


def message(dice: Dice) -> bytes:
    """A payload: sections mostly in order, fields mostly of their types."""
    sections: list[bytes] = []
    if dice.chance(2):
        sections.append(b"\x00\x53\x70" + dice.compound([dice.field(one) for one in _HEADER[: dice.below(6)]]))
    if dice.chance(4):
        entries = [one for _ in range(dice.below(3)) for one in (dice.field(dice.pick(KEYS)), dice.pick(POOL))]
        sections.append(b"\x00\x53\x71" + dice.compound(entries, True))
    if dice.chance(2):
        entries = [one for _ in range(dice.below(4)) for one in (dice.field(dice.pick(KEYS)), dice.pick(POOL))]
        sections.append(b"\x00\x53\x72" + dice.compound(entries, True))
    if not dice.chance(5):
        usual = (text(f"id-{dice.below(1000)}"), *_PROPERTIES, text(f"s{dice.below(4)}"), uint(dice.below(9)), _GROUP)
        fields = [dice.field_or_null(one) for one in usual[: 1 + dice.below(14)]]
        sections.append(b"\x00\x53\x73" + dice.compound(fields))
    if dice.chance(3):
        entries = [one for number in range(dice.below(4)) for one in (dice.field(text(f"k{number}")), dice.pick(POOL))]
        sections.append(b"\x00\x53\x74" + dice.compound(entries, True))
    kind = dice.below(8)
    if kind < 5:
        sections.extend([b"\x00\x53\x75" + dice.field(binary(bytes(dice.below(40))))] * (1 + (kind == 4)))
    elif kind == 5:
        sections.append(b"\x00\x53\x76" + dice.compound([dice.pick(POOL)]))
    elif kind == 6:
        sections.append(b"\x00\x53\x77" + dice.pick(POOL))
    if dice.chance(12):
        sections.append(b"\x00\x53\x78" + dice.compound([symbol("f"), dice.pick(POOL)], True))
    if dice.chance(20) and len(sections) > 1:
        sections.reverse()
    if dice.chance(30):
        sections.append(dice.pick(sections) if sections else b"")
    return dice.mutated(b"".join(sections))


def batch(dice: Dice) -> bytes:
    return dice.mutated(b"".join(b"\x00\x53\x75" + binary(message(dice)[:4000]) for _ in range(1 + dice.below(3))))


def frame(channel: int, body: bytes) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, 0, channel) + body


def performative(code: int, dice: Dice, fields: list[bytes]) -> bytes:
    """One in sixteen is odd: most of those cost the connection, and with it what the next frames could have found."""
    if dice.chance(16):
        return b"\x00\x53" + bytes((code,)) + dice.compound([dice.field(one) if dice.chance(3) else one for one in fields])
    return b"\x00\x53" + bytes((code,)) + list_of(fields, dice.chance(4))


def terminus(code: int, address: str) -> bytes:
    return b"\x00\x53" + bytes((code,)) + list_of([text(address)], False)


def still_dice() -> Dice:
    """Nothing is left to chance."""
    still = Dice(0)
    still.chance = lambda one_in: False  # type: ignore[method-assign]
    return still


def opening() -> bytes:
    """PLAIN, open, begin, a sender (handle 0), a receiver with credit (1). What else there may be is attached when it is first wanted."""
    still = still_dice()
    plain = b"\x00\x53\x41" + list_of([symbol("PLAIN"), binary(b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE")], False)
    out = [b"AMQP\x03\x01\x00\x00", struct.pack(">IBBH", len(plain) + 8, 2, 1, 0) + plain, HEADERS]
    out.append(frame(0, performative(0x10, still, [text("fuzz"), text("localhost"), uint(65536), b"\x60\x00\xff"])))
    out.append(frame(0, performative(0x11, still, [b"\x40", uint(0), uint(5000), uint(5000), uint(255)])))
    return b"".join([*out, *(_opened(handle, still) for handle in (0, 1))])


def _opened(handle: int, still: Dice) -> bytes:
    """The attach of one of the links, and if it receives its credit."""
    out = []
    if handle < 6:
        receives, address, mode = (
            (False, "q", 2),
            (True, "q", 0),
            (False, "$cbs", 2),
            (True, "$cbs", 1),
            (False, "q/$management", 2),
            (True, "q/$management", 1),
        )[handle]
        source, target = (terminus(0x28, address), terminus(0x29, "me")) if receives else (terminus(0x28, "me"), terminus(0x29, address))
        role = b"\x41" if receives else b"\x42"
        fields = [text(f"link-{handle}"), uint(handle), role, bytes((0x50, mode)), b"\x50\x00", source, target, b"\x40", b"\x40", uint(0)]
        out.append(frame(0, performative(0x12, still, fields)))
        if receives:
            flow = [uint(FIRST_TRANSFER), uint(5000), uint(0), uint(5000), uint(handle), uint(0), uint(1000)]
            out.append(frame(0, performative(0x13, still, flow)))
    else:
        coordinator = [
            text("txn"),
            uint(6),
            b"\x42",
            b"\x50\x00",
            b"\x50\x00",
            terminus(0x28, "me"),
            b"\x00\x53\x30\xc0\x01\x00",
            b"\x40",
            b"\x40",
            uint(0),
        ]
        out.append(frame(0, performative(0x12, still, coordinator)))
    return b"".join(out)


def request(dice: Dice) -> bytes:
    """To `$cbs` or `$management`."""
    operation = dice.pick(OPERATIONS)
    properties = b"\x00\x53\x73" + list_of([dice.field(text("m")), b"\x40", b"\x40", b"\x40", dice.field(text("me"))], False)
    named = [
        text("operation"),
        dice.field(operation),
        text("name"),
        dice.field(text("sb://localhost/q")),
        text("type"),
        dice.field(text("x")),
    ]
    if dice.chance(4):
        named += [text("associated-link-name"), dice.field(text("link-1"))]
    wishes = [one for _ in range(dice.below(4)) for one in (dice.field(dice.pick(WISHES)), dice.pick(POOL))]
    body = b"\x00\x53\x77" + (dice.pick(POOL) if dice.chance(3) else dice.compound(wishes, True))
    return dice.mutated(properties + b"\x00\x53\x74" + map_of(named, False) + body)


OPERATIONS = [
    text("put-token"),
    *[
        text(f"com.microsoft:{name}")
        for name in (
            "peek-message",
            "renew-lock",
            "receive-by-sequence-number",
            "schedule-message",
            "cancel-scheduled-message",
            "update-disposition",
            "set-session-state",
            "get-session-state",
            "renew-session-lock",
            "get-message-sessions",
            "batch-delete-messages",
            "enumerate-rules",
            "add-rule",
        )
    ],
]
WISHES = [
    text(name)
    for name in (
        "from-sequence-number",
        "message-count",
        "lock-tokens",
        "sequence-numbers",
        "receiver-settle-mode",
        "messages",
        "session-id",
        "session-state",
        "disposition-status",
        "skip",
        "top",
        "last-updated-time",
        "enqueued-time-utc",
        "rule-name",
        "properties-to-modify",
    )
]


REQUESTS = {
    2: b"".join(_opened(handle, still_dice()) for handle in (2, 3)),
    4: b"".join(_opened(handle, still_dice()) for handle in (4, 5)),
}
COORDINATOR = {6: _opened(6, still_dice())}
"""Links of `$cbs` (2, 3), of `$management` (4, 5), and the coordinator's (6), by the handle that sends."""


class Conversation:
    """Frames of one connection, one after another; ids go on as a client's would."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self._next = 0
        self._links = [0, 1]
        """Handles of the links that are always the same."""
        self._attached: set[int] = set()
        self._begun = 0
        """Channels, as bits."""

    def begin(self) -> None:
        """On a new connection."""
        self._next = 0
        self._links = [0, 1]
        self._attached.clear()
        self._begun = 0

    def next(self) -> bytes:
        dice = self.dice
        kind = dice.below(20)
        channel = 0 if not dice.chance(60) else dice.below(3)
        if kind < 9:
            whole = frame(
                channel, self._transfer(uint(0), message(dice) if kind else batch(dice), uint(0x80013700) if not kind else b"\x43")
            )
        elif kind == 9:
            handle = 2 if dice.chance(2) else 4
            whole = self._wanted(handle, REQUESTS) + frame(channel, self._transfer(uint(handle), request(dice), b"\x43"))
        elif kind == 10:
            declare = b"\x00\x53\x77\x00\x53" + (
                b"\x31\x45" if dice.chance(2) else b"\x32" + list_of([dice.field(binary(b"id")), b"\x42"], False)
            )
            whole = self._wanted(6, COORDINATOR) + frame(channel, self._transfer(uint(6), dice.mutated(declare), b"\x43"))
        elif kind < 15:
            whole = frame(channel, self._disposition())
        elif kind == 15:
            whole = frame(channel, self._flow())
        elif kind == 16:
            whole = frame(channel, self._attach())
        elif kind == 17:
            whole = frame(channel, self._detach() if self._attached or dice.chance(6) else self._attach())
        elif kind == 18:
            whole = self._begin_or_end()
        elif dice.chance(2):
            whole = frame(channel, self._flow())
        else:
            whole = frame(
                channel, b"\x00\x53" + bytes((0x10 + dice.below(10),)) + dice.compound([dice.pick(POOL) for _ in range(dice.below(9))])
            )
        return dice.mutated(whole) if dice.chance(12) else whole

    def _wanted(self, handle: int, links: dict[int, bytes]) -> bytes:
        """Its attach, the first time on a connection."""
        if handle in self._links:
            return b""
        self._links.append(handle)
        if handle < 6:
            self._links.append(handle + 1)
        return links[handle]

    def _flow(self) -> bytes:
        dice = self.dice
        link = (
            uint(self._links[dice.below(len(self._links))]),
            uint(dice.below(3)),
            uint(dice.below(50)),
            b"\x40",
            b"\x41" if dice.chance(3) else b"\x42",
        )
        return performative(0x13, dice, [uint(FIRST_TRANSFER), uint(5000), uint(0), uint(5000), *link][: 4 + dice.below(6)])

    def _detach(self) -> bytes:
        """Mostly of a link that it has attached."""
        handle = 7 + self.dice.below(3)
        if self._attached and not self.dice.chance(6):
            handle = self._attached.pop()
        self._attached.discard(handle)
        return performative(0x16, self.dice, [uint(handle), b"\x41"])

    def _begin_or_end(self) -> bytes:
        """Another session; mostly one that has begun is ended."""
        channel = 1 + self.dice.below(3)
        if self.dice.chance(8):
            return frame(channel, performative(0x11 if self.dice.chance(2) else 0x17, self.dice, [b"\x40", uint(0), uint(9), uint(9)]))
        self._begun ^= 1 << channel
        if self._begun >> channel & 1:
            return frame(channel, performative(0x11, self.dice, [b"\x40", uint(0), uint(9), uint(9)]))
        return frame(channel, performative(0x17, self.dice, []))

    def _transfer(self, handle: bytes, payload: bytes, message_format: bytes) -> bytes:
        dice = self.dice
        self._next += 1
        state = dice.pick(POOL) if dice.chance(15) else b"\x40"
        fields = [
            handle,
            uint(self._next - 1),
            binary(b"tag"),
            message_format,
            b"\x41" if dice.chance(8) else b"\x42",
            b"\x42",
            b"\x40",
            state,
        ]
        return performative(0x14, dice, fields[: 5 if state == b"\x40" else 8]) + payload

    def _disposition(self) -> bytes:
        dice = self.dice
        first = FIRST_DELIVERY + dice.below(40)
        last = b"\x40" if dice.chance(2) else uint(first + dice.below(4))
        state = dice.pick(POOL[72:82]) if dice.chance(5) else b"\x00\x53\x24\x45"
        return performative(0x15, dice, [b"\x41", uint(first), last, b"\x41" if dice.chance(2) else b"\x42", state])

    def _attach(self) -> bytes:
        dice = self.dice
        handle = 7 + dice.below(3)
        if handle in self._attached and not dice.chance(6):
            handle = min({7, 8, 9} - self._attached, default=handle)
        receives = dice.chance(2)
        source, target = terminus(0x28, "q" if receives else "me"), terminus(0x29, "me" if receives else "q")
        fields = [
            text(f"more-{handle}"),
            uint(handle),
            b"\x41" if receives else b"\x42",
            b"\x50\x02",
            b"\x50\x00",
            source,
            target,
            b"\x40",
            b"\x40",
        ]
        self._attached.add(handle)
        return performative(0x12, dice, [*fields, uint(0)])
