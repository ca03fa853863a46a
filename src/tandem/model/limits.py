"""Every limit of a broker in one place, with its default. One that nobody reads is an error in tests/test_house.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STORES_MAX: Final = 64
"""Of a namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one broker. Unit last, bound after it. Override under `[limits]` in tandem.toml."""

    frame_bytes_max: int = 65_536
    channels_max: int = 255
    links_per_session_max: int = 255
    links_before_token_max: int = 8
    sessions_before_token_max: int = 8
    """What a connection may have before its first valid token; beyond it the connection is closed."""
    connections_max: int = 10_000
    """AMQP connections over all namespaces; one more is told so and closed."""
    message_bytes_max: int = 262_144
    """Default for entities that do not say otherwise (256 KiB)."""
    message_bytes_ceiling: int = 104_857_600
    """No entity may ask for more than this (100 MiB)."""
    header_bytes_max: int = 65_536
    """All sections of a message but its body, as they are sent."""
    session_id_chars_max: int = 128
    message_id_chars_max: int = 128
    session_state_bytes_max: int = 262_144
    entity_name_chars_max: int = 260
    link_credit: int = 5_000
    """Credit granted to each sending client."""
    unsettled_deliveries_per_link_max: int = 5_000
    link_credit_max: int = 100_000
    """A larger credit from a receiver counts as this at any moment: all of it is used up, this much at a time."""
    ingress_bytes_in_flight_max: int = 33_554_432
    """Taken from the network and not yet on disk, per store; beyond it connections are not read until half of it is written."""
    egress_bytes_buffered_max: int = 4_194_304
    """Written but not yet taken by a slow peer, per connection; delivery pauses beyond it."""
    idle_timeout_ms: int = 120_000
    """As told to clients: they say something at least this often."""
    drop_silent_peer_after_ms: int = 240_000
    """A client that has said nothing for so long is taken for dead; not less than `idle_timeout_ms`."""
    authentication_ms_max: int = 20_000
    handshake_ms_max: int = 20_000
    linkless_connection_ms_max: int = 300_000
    next_session_wait_ms: int = 65_000
    hot_bytes_max: int = 67_108_864
    """Message bodies kept in memory over all queues of a store; the rest stays on disk."""
    peek_messages_max: int = 256
    batch_delete_messages_max: int = 4_000
    lease_messages_max: int = 100_000
    lease_bytes_max: int = 268_435_456
    lease_ms_max: int = 3_600_000
    lease_wait_ms_max: int = 900_000
    """A long poll for a lease: 15 minutes, as for any receive."""
    lease_read_bytes_max: int = 2_097_152
    """Of one reply to read-lease; the reader asks again for the rest."""
    management_requests_in_flight_max: int = 1_000
    http_body_bytes_max: int = 1_048_576
    http_header_ms_max: int = 20_000
    """From the first byte of a request (or the accepted connection) to the end of its header."""
    http_body_ms_max: int = 60_000
    http_keepalive_ms_max: int = 75_000
    """Between two requests of one connection."""
    transactions_open_max: int = 256
    """Per connection."""
    transaction_operations_max: int = 1_000
    """Messages sent and settled in one transaction."""
    transaction_bytes_max: int = 33_554_432
    """Messages held back until the transaction is over."""
    transaction_ms_max: int = 120_000
    """A transaction that takes longer is rolled back."""
    rules_per_subscription_max: int = 2_000
    sql_expression_chars_max: int = 1_024
    sql_expression_nesting_max: int = 32
    """Parentheses, signs and chained arithmetic of one expression, one inside the other."""
    sql_expression_terms_max: int = 512
    """Constants and properties in one expression, or properties in a correlation filter."""
    sql_action_statements_max: int = 32
    relay_listeners_max: int = 25
    """Of one hybrid connection."""
    relay_connections_max: int = 5_000
    """Of senders to the relays of one namespace at a time, WebSocket and HTTP."""
    relays_max: int = 10_000
    """Hybrid connections of one namespace."""
    relay_accept_ms_max: int = 30_000
    """A sender waits so long for a listener to take it; a rendezvous address is good for as long."""
    relay_response_ms_max: int = 60_000
    """Until a listener's response begins; its body may not pause longer either."""
    relay_control_bytes_max: int = 65_536
    """Headers and body of a request that goes over a listener's control channel; larger ones meet at a rendezvous."""
    relay_header_bytes_max: int = 32_768
    """Headers of a request to a relay."""
    relay_buffer_bytes_max: int = 262_144
    """Read from one side of a relayed connection and not yet taken by the other; beyond it the faster side is not read."""
    relay_ping_ms: int = 30_000
    """How often listeners and both sides of a connection are pinged; who is silent for three times as long is gone."""
