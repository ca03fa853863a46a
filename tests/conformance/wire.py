"""A bare socket that has learned just enough AMQP to be rude at any stage of a conversation."""

from __future__ import annotations

import socket
import time
from typing import Any

from tandem import amqp

SASL_HEADER, AMQP_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
NAMES = dict(zip(range(0x10, 0x19), "open begin attach flow transfer disposition detach end close".split(), strict=True))  # noqa: SIM905
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

NULL = b"\x40"


def u(number: int) -> bytes:
    return amqp.encode_value(amqp.UInt(number))


def s(text: str) -> bytes:
    return amqp.encode_value(text)


def terminus(code: int, address: str) -> bytes:
    content = s(address)
    return bytes((0, 0x53, code, 0xC0, len(content) + 1, 1)) + content


def performative(code: int, fields: list[bytes]) -> bytes:
    content = b"".join(fields)
    return bytes((0, 0x53, code, 0xD0)) + (len(content) + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big") + content


def frame(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big") + body


def usual(code: int, queue: str) -> list[bytes]:
    """The fields of a performative as a well-behaved client would write them."""
    return {
        OPEN: [s("rude"), s("localhost"), u(65536), b"\x60\xff\xff", NULL, NULL, NULL, NULL, NULL, NULL],
        BEGIN: [NULL, u(0), u(5000), u(5000), u(255), NULL, NULL, NULL],
        ATTACH: [
            *(s("link"), u(0), b"\x42", b"\x50\x00", b"\x50\x00", terminus(0x28, "here"), terminus(0x29, queue)),
            *(NULL, NULL, u(0), b"\x80" + bytes(8), NULL, NULL, NULL),
        ],
        FLOW: [u(0), u(5000), u(0), u(5000), u(0), u(0), u(10), NULL, b"\x42", b"\x42", NULL],
        TRANSFER: [u(0), u(0), b"\xa0\x01t", u(0), b"\x42", b"\x42", NULL, NULL, b"\x42", b"\x42", b"\x42"],
        DISPOSITION: [b"\x41", u(0), u(0), b"\x41", b"\x00\x53\x24\x45", b"\x42"],
        DETACH: [u(0), b"\x41", NULL],
        END: [NULL],
        CLOSE: [NULL],
    }[code]


class Wire:
    """A connection at a chosen stage: 0 nothing said, 1 SASL header, 2 SASL done, 3 AMQP header, 4 open, 5 begin, 6 attached as sender."""

    def __init__(self, port: int, stage: int = 0, queue: str = "", password: str = "SAS_KEY_VALUE") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(20)
        self.heard = b""
        if stage >= 1:
            self.say(SASL_HEADER)
        if stage >= 2:
            response = b"\x00RootManageSharedAccessKey\x00" + password.encode()
            init = performative(0x41, [b"\xa3\x05PLAIN", b"\xa0" + bytes((len(response),)) + response])
            self.say(frame(init, kind=1))
        if stage >= 3:
            self.say(AMQP_HEADER)
        for extra, code in enumerate((OPEN, BEGIN, ATTACH)):
            if stage >= 4 + extra:
                self.say(frame(performative(code, usual(code, queue))))

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        self.socket.close()

    def listen_to_the_end(self) -> bytes:
        """Everything the broker still says; returns when it hangs up."""
        deadline = time.monotonic() + 20
        while True:
            assert time.monotonic() < deadline, "the broker did not hang up"
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError:
                return self.heard
            if not data:
                return self.heard
            self.heard += data

    def last_word(self) -> amqp.AmqpError | None:
        """The error in the broker's close."""
        heard = self.listen_to_the_end()
        found = heard.rfind(b"\x00\x53\x18")
        assert found >= 0, f"no close among {heard[-200:]!r}"
        return _error(amqp.decode_value(heard, found)[0])


def _error(described: Any) -> amqp.AmqpError | None:
    fields = described.value
    if not fields or fields[0] is None:
        return None
    condition, description, _ = fields[0].value
    return amqp.AmqpError(str(condition), description)
