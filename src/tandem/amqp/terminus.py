"""Source, target and coordinator: the two ends of a link."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tandem.amqp.encoder import NULL, TRUE, compound, encode_string, encode_symbol, encode_uint, encode_value
from tandem.amqp.errors import DecodeError
from tandem.amqp.fields import Fields
from tandem.amqp.types import Array

SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30


class Terminus:
    """A source or a target. Fields a target has not are left at their defaults."""

    def __init__(
        self,
        address: str | None = None,
        filter: dict[object, object] | None = None,
        durable: int = 0,
        expiry_policy: str | None = None,
        timeout: int = 0,
        dynamic: bool = False,
        dynamic_node_properties: dict[object, object] | None = None,
        distribution_mode: str | None = None,
        default_outcome: object = None,
        outcomes: list[str] | None = None,
        capabilities: list[str] | None = None,
    ) -> None:
        self.address = address
        self.filter: dict[object, object] = {} if filter is None else filter
        self.durable = durable
        self.expiry_policy = expiry_policy
        self.timeout = timeout
        self.dynamic = dynamic
        self.dynamic_node_properties = dynamic_node_properties
        self.distribution_mode = distribution_mode
        self.default_outcome = default_outcome
        self.outcomes: list[str] = [] if outcomes is None else outcomes
        self.capabilities: list[str] = [] if capabilities is None else capabilities

    def read(self, f: Fields, is_source: bool) -> None:
        self.address = f.address("address")
        self.durable = f.uint("durable", 0)
        self.expiry_policy = f.symbol("expiry-policy")
        self.timeout = f.uint("timeout", 0)
        self.dynamic = f.boolean("dynamic", False)
        self.dynamic_node_properties = f.map("dynamic-node-properties")
        if is_source:
            self.distribution_mode = f.symbol("distribution-mode")
            found = f.map("filter")
            self.filter = {} if found is None else found
            self.default_outcome = f.value("default-outcome")
            self.outcomes = f.symbols("outcomes")
        self.capabilities = f.symbols("capabilities")

    def answer_filter(self, filter: dict[object, object]) -> None:
        """What is left of it, as the peer is told."""
        self.filter = filter

    def encode(self, code: int) -> bytes:
        """`code` is SOURCE or TARGET. Never list0: the SDK reads an empty terminus as a refusal."""
        items = [
            NULL if self.address is None else encode_string(self.address),
            encode_uint(self.durable) if self.durable else NULL,
            NULL if self.expiry_policy is None else encode_symbol(self.expiry_policy),
            encode_uint(self.timeout) if self.timeout else NULL,
            TRUE if self.dynamic else NULL,
            NULL if self.dynamic_node_properties is None else encode_value(self.dynamic_node_properties),
        ]
        if code == SOURCE:
            items.append(NULL if self.distribution_mode is None else encode_symbol(self.distribution_mode))
            items.append(encode_value(self.filter) if self.filter else NULL)
            items.append(encode_value(self.default_outcome))
            items.append(encode_symbols(self.outcomes))
        items.append(encode_symbols(self.capabilities))
        while len(items) > 1 and items[-1] == NULL:
            items.pop()
        return bytes((0x00, 0x53, code)) + compound(0xC0, b"".join(items), len(items))


class Coordinator:
    """The target of a transaction controller's link."""

    def __init__(self, capabilities: list[str] | None = None) -> None:
        self.capabilities: list[str] = [] if capabilities is None else capabilities

    def encode(self) -> bytes:
        return bytes((0x00, 0x53, COORDINATOR)) + compound(0xC0, encode_symbols(self.capabilities), 1)


def encode_symbols(symbols: list[str]) -> bytes:
    """A `multiple` symbol field."""
    if not symbols:
        return NULL
    if len(symbols) == 1:
        return encode_symbol(symbols[0])
    return encode_value(Array(0xA3, symbols))


def read_source(fields: Fields) -> Terminus | None:
    code, at = fields.composite("source")
    if code == 0:
        return None
    if code != SOURCE:
        raise DecodeError(f"{fields.name}.source: expected source, found descriptor 0x{int(code):02x}")
    return _read_terminus("source", True, fields.buf, at, fields.decoder.end)


def read_target(fields: Fields) -> Terminus | Coordinator | None:
    code, at = fields.composite("target")
    if code == 0:
        return None
    if code == COORDINATOR:
        return _read_coordinator(fields.buf, at, fields.decoder.end)
    if code != TARGET:
        raise DecodeError(f"{fields.name}.target: expected target or coordinator, found descriptor 0x{int(code):02x}")
    return _read_terminus("target", False, fields.buf, at, fields.decoder.end)


def _read_terminus(name: str, is_source: bool, buf: bytes, at: i64, end: i64) -> Terminus:
    f = Fields(name, buf, at, end)
    try:
        terminus = Terminus()
        terminus.read(f, is_source)
        f.finish()
    except DecodeError as error:
        raise f.explain(error) from None
    return terminus


def _read_coordinator(buf: bytes, at: i64, end: i64) -> Coordinator:
    f = Fields("coordinator", buf, at, end)
    try:
        capabilities = f.symbols("capabilities")
        f.finish()
    except DecodeError as error:
        raise f.explain(error) from None
    return Coordinator(capabilities)
