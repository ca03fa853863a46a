"""AMQP values, sensible, odd and broken, made by hand: no Tandem in here."""

from __future__ import annotations

import struct


def list_of(items: list[bytes], wide: bool, lie: int = 0) -> bytes:
    content = b"".join(items)
    if wide or len(content) > 250 or len(items) > 255:
        return b"\xd0" + struct.pack(">II", max(len(content) + 4 + lie, 0), len(items)) + content
    return bytes((0xC0, max(len(content) + 1 + lie, 0) & 0xFF, len(items))) + content


def map_of(items: list[bytes], wide: bool, lie: int = 0) -> bytes:
    made = list_of(items, wide, lie)
    return bytes((made[0] + 1,)) + made[1:]


def text(value: str) -> bytes:
    raw = value.encode()
    return bytes((0xA1, len(raw))) + raw if len(raw) < 256 else b"\xb1" + struct.pack(">I", len(raw)) + raw


def symbol(value: str) -> bytes:
    return bytes((0xA3, len(value))) + value.encode()


def binary(value: bytes) -> bytes:
    return bytes((0xA0, len(value))) + value if len(value) < 256 else b"\xb0" + struct.pack(">I", len(value)) + value


def uint(value: int) -> bytes:
    return b"\x43" if value == 0 else bytes((0x52, value)) if value < 256 else b"\x70" + struct.pack(">I", value)


POOL = [
    b"\x40",
    b"\x41",
    b"\x42",
    b"\x56\x00",
    b"\x56\x01",
    b"\x56\x02",
    b"\x43",
    b"\x44",
    b"\x45",
    b"\x50\x00",
    b"\x50\xff",
    b"\x51\x80",
    b"\x52\x07",
    b"\x53\x70",
    b"\x54\x81",
    b"\x55\x01",
    b"\x60\x12\x34",
    b"\x61\xff\xfe",
    b"\x70\x00\x00\x00\x05",
    b"\x70\xff\xff\xff\xff",
    b"\x71\x80\x00\x00\x00",
    b"\x72\x7f\xc0\x00\x00",
    b"\x73\x00\x00\x00\x41",
    b"\x73\x00\x11\xff\xff",
    b"\x74\x22\x50\x00\x00",
    b"\x80" + b"\xff" * 8,
    b"\x81" + b"\x80" + b"\0" * 7,
    b"\x82" + b"\x40" + b"\0" * 7,
    b"\x83" + b"\0" * 7 + b"\x01",
    b"\x83\x00\x00\x01\x8f\x00\x00\x00\x00",
    b"\x83" + b"\xff" * 8,
    b"\x84" + b"\x22" + b"\0" * 7,
    b"\x94" + b"\x22" * 16,
    b"\x98" + b"\x11" * 16,
    b"\xa0\x00",
    b"\xa0\x03abc",
    b"\xa1\x00",
    b"\xa1\x01a",
    b"\xa1\x02\xc3\xa9",
    b"\xa1\x02\xff\xfe",
    b"\xa3\x00",
    b"\xa3\x03abc",
    b"\xa3\x01\xff",
    b"\xb0\x00\x00\x00\x02hi",
    b"\xb1\x00\x00\x00\x01z",
    b"\xb3\x00\x00\x00\x01s",
    b"\xb1\x00\x00\x00\x00",
    b"\xb1\xff\xff\xff\xff",
    b"\xa1\x7f",
    b"\xa3\x90",
    text("x" * 127),
    text("x" * 128),
    text("x" * 129),
    text("é" * 128),
    text("y" * 300),
    binary(b"z" * 300),
    b"\xc0\x01\x00",
    b"\xc0\x00",
    b"\xc0\x03\x02\x41\x40",
    b"\xc1\x01\x00",
    b"\xc1\x00",
    b"\xc1\x05\x02\xa1\x01a\x41",
    b"\xc1\x02\x01\x40",
    b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00",
    b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00",
    b"\xd0\x00\x00\x00\x00",
    b"\xd1\x00\x00\x00\x02\x00\x00",
    b"\xe0\x02\x00\x40",
    b"\xe0\x04\x02\x50\x01\x02",
    b"\xe0\x05\x01\xa3\x02ab",
    b"\xf0\x00\x00\x00\x05\x00\x00\x00\x01\x41",
    b"\xe0\x00",
    b"\x00\x53\x24\x45",
    b"\x00\x53\x25\xc0\x01\x00",
    b"\x00\x53\x26\x45",
    b"\x00\x53\x27\xc0\x03\x02\x41\x42",
    b"\x00\x53\x23\x45",
    b"\x00\x53\x34\xc0\x05\x01\xa0\x02id",
    b"\x00\x53\x1d\xc0\x04\x01\xa3\x01e",
    b"\x00\xa3\x12amqp:accepted:list\x45",
    b"\x00\x80" + b"\0" * 7 + b"\x24\x45",
    b"\x00\x53\x28\xc0\x04\x01\xa1\x01q",
    b"\x00\x53\x29\xc0\x04\x01\xa1\x01q",
    b"\x00\x53\x30\x45",
    b"\x00\x00\x53\x24\x45",
    b"\x00\x41\x41",
    b"\x00",
    symbol("x-opt-scheduled-enqueue-time"),
    symbol("x-opt-partition-key"),
    symbol("x-opt-lock-token"),
    symbol("x-opt-sequence-number"),
    symbol("application/vnd.ms-servicebus-ping"),
    text("application/vnd.ms-servicebus-ping"),
    b"",
    b"\x03",
    b"\x99",
    b"\x4f",
    b"\xdf\x01",
]


KEYS = [
    symbol(f"x-opt-{name}")
    for name in ("scheduled-enqueue-time", "partition-key", "lock-token", "sequence-number", "locked-until", "via-partition-key")
]
