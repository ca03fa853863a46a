"""What is recognised at a glance is what the walk over all sections finds."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tandem.client.sdk_codec import payload_from_message
from tandem.gateway import common_form, translate
from tandem.gateway.common_form import read_common_form
from tandem.gateway.translate import Translator
from tandem.model.errors import BusError
from tandem.model.message import Message

HEADERS = (b"", b"\x00\x53\x70\xc0\x02\x01\x41", b"\x00\x53\x70\xc0\x08\x03\x41\x40\x70\x00\x00\x10\x00", b"\x00\x53\x70\x45")
IDS = (b"\xa1\x03abc", b"\xa1\x24" + b"i" * 36, b"\xa1\x90" + b"i" * 144, b"\x40", b"\x80" + bytes(8), b"\xa0\x02id")
TAILS = (
    (b"", 1),
    (b"\x40", 2),
    (b"\x40" * 12, 13),
    (b"\x40" * 13, 14),
    (b"\x40\xa1\x02to", 3),
    (b"\x40" * 9 + b"\xa1\x01s", 11),
    (b"\x40" * 5 + b"\xa3\x01t", 7),
)
APPLICATION = (b"", b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x54\x01", b"\x00\x53\x74\xd1\x00\x00\x00\x09\x00\x00\x00\x02\xa1\x01a\x54\x01")
BODIES = (
    b"\x00\x53\x75\xa0\x02hi",
    b"\x00\x53\x75\xb0\x00\x00\x01\x00" + bytes(256),
    b"\x00\x53\x77\xa1\x02hi",
    b"\x00\x53\x75\xa0\x02hi" * 2,
)


def properties(identity: bytes, tail: bytes, count: int, wide: bool) -> bytes:
    content = identity + tail
    if wide:
        return b"\x00\x53\x73\xd0" + (len(content) + 4).to_bytes(4) + count.to_bytes(4) + content
    return b"\x00\x53\x73\xc0" + bytes((len(content) + 1, count)) + content


def shapes() -> list[bytes]:
    return [
        header + properties(identity, tail, count, wide) + application + body
        for header in HEADERS
        for identity in IDS
        for tail, count in TAILS
        for wide in (False, True)
        for application in APPLICATION
        for body in BODIES
    ]


def fields(message: Message) -> dict[str, Any]:
    found = {name: getattr(message, name) for name in dir(message) if not name.startswith("_")}
    return {name: value for name, value in found.items() if not callable(value)}


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator that never takes the short way."""
    monkeypatch.setattr(translate, "read_common_form", lambda payload: None)
    return Translator(uuid.uuid4)


def check(walk: Translator, payload: bytes) -> bool:
    """Whether it was recognised; if it was, the walk has to find the same."""
    recognised = read_common_form(payload)
    if recognised is None:
        return False
    assert fields(recognised) == fields(walk.message(payload)), payload.hex()
    return True


def test_every_shape_is_seen_as_the_walk_sees_it(walk: Translator) -> None:
    for header in HEADERS:
        walk.message(header + properties(IDS[0], b"", 1, False) + BODIES[0])
    recognised = sum(check(walk, payload) for payload in shapes())
    # three headers, two kinds of id, three tails, both widths, three kinds of application properties, two bodies; few are too short
    assert 3 * 2 * 3 * 2 * 3 * 2 - 10 <= recognised <= 3 * 2 * 3 * 2 * 3 * 2


def test_damaged_messages_are_never_seen_differently(walk: Translator) -> None:
    dice = Random(1)
    whole = [payload for payload in shapes() if read_common_form(payload) is not None]
    recognised = 0
    for _ in range(20_000):
        payload = bytearray(dice.choice(whole))
        for _ in range(dice.randint(1, 3)):
            payload[dice.randrange(min(len(payload), 60))] = dice.choice((dice.randrange(256), 0, 0x40, 0xC0, 0xD0, 0xA1, 0xFF))
        if dice.random() < 0.3:
            del payload[dice.randrange(len(payload)) :]
        try:
            recognised += check(walk, bytes(payload))
        except BusError as error:
            pytest.fail(f"recognised, and refused by the walk: {payload.hex()}: {error}")
    assert recognised > 1_000


def test_the_official_sdk_is_recognised_at_a_glance() -> None:
    translator = Translator(uuid.uuid4)
    for message in (
        ServiceBusMessage(b"x" * 100, message_id="m"),
        ServiceBusMessage("text", message_id="m", application_properties={"a": 1}),
    ):
        payload = payload_from_message(message)
        translator.message(payload)
        assert read_common_form(payload) is not None
    assert read_common_form(payload_from_message(ServiceBusMessage(b"x", message_id="m", session_id="s"))) is None


def test_headers_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_form, "_headers", {})
    translator = Translator(uuid.uuid4)
    for ttl in range(1_000):
        header = b"\x00\x53\x70\xc0\x08\x03\x40\x40\x70" + ttl.to_bytes(4)
        translator.message(header[:4] + bytes((len(header) - 5,)) + header[5:] + properties(IDS[0], b"", 1, False) + BODIES[0])
    assert len(common_form._headers) == 256
