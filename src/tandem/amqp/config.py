"""Settings of one connection, ours to choose before a byte is exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.amqp.sasl import SaslClient, SaslServer


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    container_id: str = "tandem"
    hostname: str | None = None
    max_frame_size: int = 65_536
    """Largest frame we take, in bytes; at least 512."""
    channel_max: int = 4_999
    """Highest channel number, so one less than the sessions allowed."""
    handle_max: int = 255
    idle_timeout_ms: int = 120_000
    """As told to the peer; 0 = it may be silent for ever."""
    drop_silent_after_ms: int = 0
    """When it is dropped; 0 = after twice `idle_timeout_ms`."""
    incoming_window: int = 5_000
    """Transfer frames a session takes before it must have been told to go on."""
    outgoing_window: int = 65_536
    sasl: SaslServer | SaslClient | None = None
    sasl_required: bool = False
    message_bytes_ceiling: int = 104_857_600
    """Largest delivery on a link that names no maximum of its own."""
    unfinished_bytes_max: int = 268_435_456
    """Bytes of deliveries whose last frame has not come, over all links of the connection."""
    next_outgoing_id: int = 0
    """First transfer id, which the window counts."""
    first_delivery_id: int | None = None
    """None: as the transfer id. `Session.number_deliveries_from` says otherwise for one session."""
    properties: dict[object, object] | None = field(default=None)
