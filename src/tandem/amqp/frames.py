"""Bytes of every frame we send: templates for the frequent ones, lists of encoded fields for the rest."""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandem.amqp.encoder import (
    FALSE,
    NULL,
    TRUE,
    described_list,
    encode_binary,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_ulong,
    encode_value,
    whole_list,
)
from tandem.amqp.errors import FRAMING_ERROR, AmqpError, ProtocolError
from tandem.amqp.performatives import ABSENT, ATTACH, BEGIN, CLOSE, DETACH, END, OPEN
from tandem.amqp.terminus import SOURCE, TARGET, Coordinator, Terminus, encode_symbols
from tandem.amqp.types import Array

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
MIN_MAX_FRAME_SIZE: Final = 512

_HEAD: Final = Struct(">IBBH")
_USHORT: Final = Struct(">BH")
_ROLE: Final = {True: TRUE, False: FALSE}

# size, doff, type, channel, 00 53 15, list8 header, role, first and last as full uints, settled
_DISPOSITION: Final = Struct(">IHH3sBBBBBIBIB")
_pack_disposition: Final = _DISPOSITION.pack
_DISPOSITION_NO_STATE_SIZE: Final = 8 + 3 + 3 + 1 + 5 + 5 + 1 + 1
# size, doff+type, channel, 00 53 13, list8 header, four session fields, then three link fields
_SESSION_FLOW: Final = Struct(">IHH3sBBBBIBIBIBI7s")
_LINK_FLOW: Final = Struct(">IHH3sBBBBIBIBIBIBIBIBIBBBB")


def frame(channel: int, performative: bytes) -> bytes:
    return _HEAD.pack(8 + len(performative), 2, 0, channel) + performative


def sasl_frame(performative: bytes) -> bytes:
    return _HEAD.pack(8 + len(performative), 2, 1, 0) + performative


def wrong_size(size: int, max_frame_size: int) -> ProtocolError:
    if size < 8:
        return ProtocolError(AmqpError(FRAMING_ERROR, f"frame of {size} bytes; 8 is the least"))
    return ProtocolError(AmqpError(FRAMING_ERROR, f"frame of {size} bytes; max-frame-size is {max_frame_size}"))


def wrong_head(kind: int) -> ProtocolError:
    """`kind` is data offset and type, the two bytes behind the size."""
    if kind & 0xFF:
        return ProtocolError(AmqpError(FRAMING_ERROR, f"frame of type {kind & 0xFF} where an AMQP frame (0) was expected"))
    return ProtocolError(AmqpError(FRAMING_ERROR, f"data offset {kind >> 8} does not lie in its frame"))


def encode_ushort(value: int) -> bytes:
    return _USHORT.pack(0x60, value)


def encode_open(
    container_id: str,
    hostname: str | None,
    max_frame_size: int,
    channel_max: int,
    idle_timeout_ms: int,
    properties: dict[object, object] | None,
) -> bytes:
    return whole_list(
        OPEN,
        [
            encode_string(container_id),
            NULL if hostname is None else encode_string(hostname),
            encode_uint(max_frame_size),
            encode_ushort(channel_max),
            encode_uint(idle_timeout_ms) if idle_timeout_ms else NULL,
            NULL,
            NULL,
            NULL,
            NULL,
            NULL if properties is None else encode_value(properties),
        ],
    )


def encode_begin(remote_channel: int, next_outgoing_id: int, incoming_window: int, outgoing_window: int, handle_max: int) -> bytes:
    return whole_list(
        BEGIN,
        [
            NULL if remote_channel == ABSENT else encode_ushort(remote_channel),
            encode_uint(next_outgoing_id),
            encode_uint(incoming_window),
            encode_uint(outgoing_window),
            encode_uint(handle_max),
            NULL,
            NULL,
            NULL,
        ],
    )


def encode_attach(
    name: str,
    handle: int,
    receiver_role: bool,
    snd_settle_mode: int,
    rcv_settle_mode: int,
    source: Terminus | None,
    target: Terminus | Coordinator | None,
    initial_delivery_count: int,
    max_message_size: int,
    offered_capabilities: list[str],
    desired_capabilities: list[str],
    properties: dict[object, object] | None,
) -> bytes:
    if target is None:
        encoded_target = NULL
    elif isinstance(target, Coordinator):
        encoded_target = target.encode()
    else:
        encoded_target = target.encode(TARGET)
    return whole_list(
        ATTACH,
        [
            encode_string(name),
            encode_uint(handle),
            _ROLE[receiver_role],
            bytes((0x50, snd_settle_mode)),
            bytes((0x50, rcv_settle_mode)),
            NULL if source is None else source.encode(SOURCE),
            encoded_target,
            NULL,
            NULL,
            NULL if initial_delivery_count == ABSENT else encode_uint(initial_delivery_count),
            encode_ulong(max_message_size) if max_message_size else NULL,
            encode_symbols(offered_capabilities),
            encode_symbols(desired_capabilities),
            NULL if properties is None else encode_value(properties),
        ],
    )


def session_flow_frame(channel: int, next_incoming_id: int, incoming_window: int, next_outgoing_id: int, outgoing_window: int) -> bytes:
    return _SESSION_FLOW.pack(
        41,
        0x0200,
        channel,
        b"\x00\x53\x13",
        0xC0,
        28,
        11,
        0x70,
        next_incoming_id,
        0x70,
        incoming_window,
        0x70,
        next_outgoing_id,
        0x70,
        outgoing_window,
        b"\x40\x40\x40\x40\x40\x40\x40",
    )


def link_flow_frame(
    channel: int,
    next_incoming_id: int,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int,
    delivery_count: int,
    link_credit: int,
    drain: bool,
    echo: bool,
) -> bytes:
    return _LINK_FLOW.pack(
        53,
        0x0200,
        channel,
        b"\x00\x53\x13",
        0xC0,
        40,
        11,
        0x70,
        next_incoming_id,
        0x70,
        incoming_window,
        0x70,
        next_outgoing_id,
        0x70,
        outgoing_window,
        0x70,
        handle,
        0x70,
        delivery_count,
        0x70,
        link_credit,
        0x40,
        0x41 if drain else 0x42,
        0x41 if echo else 0x42,
        0x40,
    )


def disposition_frame(channel: int, receiver_role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """`state` is encoded, empty for none; `last` is always written."""
    if not state:
        state = NULL
    n = len(state)
    if n > 200:
        return frame(
            channel,
            whole_list(0x15, [_ROLE[receiver_role], encode_uint(first), encode_uint(last), _ROLE[settled], state, NULL]),
        )
    return (
        _pack_disposition(
            _DISPOSITION_NO_STATE_SIZE + n,
            0x0200,
            channel,
            b"\x00\x53\x15",
            0xC0,
            14 + n,
            6,
            0x41 if receiver_role else 0x42,
            0x70,
            first,
            0x70,
            last,
            0x41 if settled else 0x42,
        )
        + state
        + NULL
    )


def encode_detach(handle: int, closed: bool, error: AmqpError | None) -> bytes:
    return whole_list(DETACH, [encode_uint(handle), TRUE if closed else FALSE, NULL if error is None else error.encode()])


def encode_end(error: AmqpError | None) -> bytes:
    return whole_list(END, [NULL if error is None else error.encode()])


def encode_close(error: AmqpError | None) -> bytes:
    return whole_list(CLOSE, [NULL if error is None else error.encode()])


def encode_sasl_mechanisms(mechanisms: list[str]) -> bytes:
    return described_list(0x40, [encode_value(Array(0xA3, mechanisms))])


def encode_sasl_init(mechanism: str, initial_response: bytes, hostname: str | None) -> bytes:
    return described_list(
        0x41,
        [encode_symbol(mechanism), encode_binary(initial_response), NULL if hostname is None else encode_string(hostname)],
    )


def encode_sasl_challenge(challenge: bytes) -> bytes:
    return described_list(0x42, [encode_binary(challenge)])


def encode_sasl_response(response: bytes) -> bytes:
    return described_list(0x43, [encode_binary(response)])


def encode_sasl_outcome(code: int) -> bytes:
    return described_list(0x44, [bytes((0x50, code))])
