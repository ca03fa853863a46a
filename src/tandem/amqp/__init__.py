"""AMQP 1.0 without I/O, for either side of a connection: types, codec, message sections, and the engine."""

from tandem.amqp.codec import decode_value, skip_value
from tandem.amqp.config import ConnectionConfig
from tandem.amqp.connection import Connection
from tandem.amqp.encoder import encode_value
from tandem.amqp.errors import AmqpError, DecodeError, ProtocolError
from tandem.amqp.handlers import ConnectionHandler, LinkHandler
from tandem.amqp.link import Delivery, Link, ReceiverLink, SenderLink
from tandem.amqp.message import DecodedMessage, Sections, decode_message, encode_message, scan
from tandem.amqp.outcomes import (
    ACCEPTED,
    RELEASED,
    Outcome,
    decode_outcome,
    encode_declared,
    encode_modified,
    encode_outcome,
    encode_rejected,
    encode_transactional,
)
from tandem.amqp.sasl import SaslClient, SaslServer
from tandem.amqp.session import Session
from tandem.amqp.terminus import Coordinator, Terminus
from tandem.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    EncodeError,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

__all__ = [
    "ACCEPTED",
    "RELEASED",
    "AmqpError",
    "Array",
    "Byte",
    "Char",
    "Connection",
    "ConnectionConfig",
    "ConnectionHandler",
    "Coordinator",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "DecodeError",
    "DecodedMessage",
    "Delivery",
    "Described",
    "EncodeError",
    "Float",
    "Int",
    "Link",
    "LinkHandler",
    "Outcome",
    "ProtocolError",
    "ReceiverLink",
    "SaslClient",
    "SaslServer",
    "Sections",
    "SenderLink",
    "Session",
    "Short",
    "Symbol",
    "Terminus",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "decode_message",
    "decode_outcome",
    "decode_value",
    "encode_declared",
    "encode_message",
    "encode_modified",
    "encode_outcome",
    "encode_rejected",
    "encode_transactional",
    "encode_value",
    "scan",
    "skip_value",
]
