"""The nine performatives as they are read. How we write them is in `frames`."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tandem.amqp.errors import DecodeError
from tandem.amqp.fields import Fields
from tandem.amqp.terminus import Coordinator, Terminus, read_source, read_target

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

ABSENT: Final = -1
UINT_MAX: Final = 0xFFFFFFFF


class Open:
    def __init__(self, f: Fields) -> None:
        try:
            self.container_id = str(f.string("container-id", True))
            self.hostname = f.string("hostname")
            self.max_frame_size = f.uint("max-frame-size", UINT_MAX)
            self.channel_max = f.ushort("channel-max", 65535)
            self.idle_timeout_ms = f.uint("idle-time-out", 0)
            f.symbols("outgoing-locales")
            f.symbols("incoming-locales")
            self.offered_capabilities = f.symbols("offered-capabilities")
            self.desired_capabilities = f.symbols("desired-capabilities")
            self.properties = f.map("properties")
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None


class Begin:
    def __init__(self, f: Fields) -> None:
        try:
            self.remote_channel = f.ushort("remote-channel", ABSENT)
            self.next_outgoing_id = f.uint("next-outgoing-id", 0, True)
            self.incoming_window = f.uint("incoming-window", 0, True)
            self.outgoing_window = f.uint("outgoing-window", 0, True)
            self.handle_max = f.uint("handle-max", UINT_MAX)
            f.symbols("offered-capabilities")
            f.symbols("desired-capabilities")
            self.properties = f.map("properties")
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None


class Attach:
    def __init__(self, f: Fields) -> None:
        try:
            self.name = str(f.string("name", True))
            self.handle = f.uint("handle", 0, True)
            self.receiver_role = f.boolean("role", False, True)
            self.snd_settle_mode = f.ubyte("snd-settle-mode", 2)
            self.rcv_settle_mode = f.ubyte("rcv-settle-mode", 0)
            self.source: Terminus | None = read_source(f)
            self.target: Terminus | Coordinator | None = read_target(f)
            f.skip("unsettled")
            f.boolean("incomplete-unsettled", False)
            self.initial_delivery_count = f.uint("initial-delivery-count", ABSENT)
            self.max_message_size = f.ulong("max-message-size", 0)
            self.offered_capabilities = f.symbols("offered-capabilities")
            self.desired_capabilities = f.symbols("desired-capabilities")
            found = f.map("properties")
            self.properties: dict[object, object] = {} if found is None else found
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None
        if self.snd_settle_mode > 2:
            raise DecodeError(f"attach.snd-settle-mode: expected 0 to 2, found {self.snd_settle_mode}")
        if self.rcv_settle_mode > 1:
            raise DecodeError(f"attach.rcv-settle-mode: expected 0 or 1, found {self.rcv_settle_mode}")


class Flow:
    """`ABSENT` where the peer left a field out."""

    def __init__(
        self,
        next_incoming_id: int = ABSENT,
        incoming_window: int = 0,
        next_outgoing_id: int = 0,
        outgoing_window: int = 0,
        handle: int = ABSENT,
        delivery_count: int = ABSENT,
        link_credit: int = ABSENT,
        available: int = ABSENT,
        drain: bool = False,
        echo: bool = False,
    ) -> None:
        self.next_incoming_id = next_incoming_id
        self.incoming_window = incoming_window
        self.next_outgoing_id = next_outgoing_id
        self.outgoing_window = outgoing_window
        self.handle = handle
        self.delivery_count = delivery_count
        self.link_credit = link_credit
        self.available = available
        self.drain = drain
        self.echo = echo


def read_flow(buf: bytes, at: i64, end: i64) -> Flow:
    """Some clients send a flow per message, so the plain form is read by hand."""
    found = _plain_flow(buf, at, end)
    if found is not None:
        return found
    f = Fields("flow", buf, at, end)
    try:
        flow = Flow(
            f.uint("next-incoming-id", ABSENT),
            f.uint("incoming-window", 0, True),
            f.uint("next-outgoing-id", 0, True),
            f.uint("outgoing-window", 0, True),
            f.uint("handle", ABSENT),
            f.uint("delivery-count", ABSENT),
            f.uint("link-credit", ABSENT),
            f.uint("available", ABSENT),
            f.boolean("drain", False),
            f.boolean("echo", False),
        )
        f.map("properties")
        f.finish()
    except DecodeError as error:
        raise f.explain(error) from None
    return flow


def _plain_flow(buf: bytes, at: i64, end: i64) -> Flow | None:
    """list8 of plain uints and one-byte booleans; None for anything else, which the general reading judges."""
    # the longest plain flow: eight full uints, two booleans, a null
    if end - at < 3 or buf[at] != 0xC0 or buf[at + 2] > 11 or at + 2 + buf[at + 1] != end:
        return None
    count: i64 = buf[at + 2]
    at += 3
    values = [ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT]
    i: i64 = 0
    while i < count and at < end:
        code: i64 = buf[at]
        if code == 0x40:
            at += 1
        elif i >= 8:
            if (code != 0x41 and code != 0x42) or i == 10:
                return None
            values[i] = 0x42 - code
            at += 1
        elif code == 0x43:
            values[i] = 0
            at += 1
        elif code == 0x52 and at + 1 < end:
            values[i] = buf[at + 1]
            at += 2
        elif code == 0x70 and at + 4 < end:
            values[i] = (buf[at + 1] << 24) | (buf[at + 2] << 16) | (buf[at + 3] << 8) | buf[at + 4]
            at += 5
        else:
            return None
        i += 1
    if at != end or i != count or values[1] < 0 or values[2] < 0 or values[3] < 0:
        return None
    v = values
    return Flow(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8] == 1, v[9] == 1)


class Transfer:
    """The general reading, for encodings the engine's fast path does not know. The payload begins at `payload_at`."""

    def __init__(self, f: Fields) -> None:
        try:
            self.handle = f.uint("handle", 0, True)
            self.delivery_id = f.uint("delivery-id", ABSENT)
            self.tag = f.binary("delivery-tag")
            self.message_format = f.uint("message-format", ABSENT)
            self.settled = f.boolean("settled", False)
            self.more = f.boolean("more", False)
            f.ubyte("rcv-settle-mode", 0)
            self.state = f.raw("state")
            self.resume = f.boolean("resume", False)
            self.aborted = f.boolean("aborted", False)
            f.boolean("batchable", False)
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None


class Disposition:
    def __init__(self, f: Fields) -> None:
        try:
            self.receiver_role = f.boolean("role", False, True)
            self.first = f.uint("first", 0, True)
            self.last = f.uint("last", self.first)
            self.settled = f.boolean("settled", False)
            self.state = f.raw("state")
            f.boolean("batchable", False)
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None


class Detach:
    def __init__(self, f: Fields) -> None:
        try:
            self.handle = f.uint("handle", 0, True)
            self.closed = f.boolean("closed", False)
            self.error = f.error("error")
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None


class Ending:
    """`end` and `close`: an error or nothing."""

    def __init__(self, f: Fields) -> None:
        try:
            self.error = f.error("error")
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None
