"""What a queue is bound by: its description, ready to be asked for each message, and whether it is in service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.model.entity import LATEST_MS
from tandem.model.errors import EntityDisabled, NotAllowed
from tandem.model.message import NO_TTL

if TYPE_CHECKING:
    from tandem.model.entity import EntityStatus, QueueDescription


class Terms:
    """All parts of a queue hold the same one."""

    def __init__(self, path: str, parent_path: str, is_dead_letter: bool, description: QueueDescription, message_bytes_max: int) -> None:
        self.path: str = path
        self.parent_path: str = parent_path
        """Of the entity itself, also in its sub-queues."""
        self.is_dead_letter: bool = is_dead_letter
        self.has_sessions: bool = description.requires_session
        self.description: QueueDescription = description
        self.message_bytes_max: int = message_bytes_max
        self.deleted: bool = False
        self.out_of_service: bool = False
        """Its store is down, or it is deleted: who comes to it looks it up again."""
        self.lock_ms: int = 0
        self.max_delivery_count: int = 0
        self.default_ttl_ms: int = 0
        self.dead_letter_expired: bool = False
        self.quota_bytes: int = 0
        self.detects_duplicates: bool = False
        self.may_send: bool = True
        self.may_receive: bool = True
        self.forwards: bool = False
        """What arrives here moves on to another entity."""
        self.configure(description)

    def configure(self, description: QueueDescription) -> None:
        """Take over a new description; what it changes holds for messages from now on."""
        self.description = description
        self.lock_ms = description.lock_duration_ms
        self.max_delivery_count = description.max_delivery_count
        self.default_ttl_ms = description.default_message_time_to_live_ms
        self.dead_letter_expired = description.dead_lettering_on_message_expiration
        self.quota_bytes = description.max_size_megabytes * 1_048_576
        self.forwards = description.forward_to is not None
        self.detects_duplicates = description.requires_duplicate_detection
        status: EntityStatus = description.status
        self.may_send = status.may_send
        self.may_receive = status.may_receive
        if description.max_message_bytes is not None:
            self.message_bytes_max = description.max_message_bytes

    def leave_service(self, deleted: bool) -> None:
        self.out_of_service = True
        self.deleted = self.deleted or deleted

    def expiry(self, ttl_ms: int, now: int) -> int:
        """The instant of expiry: the sender's wish, capped by the entity's; 0 = never."""
        if ttl_ms == NO_TTL or ttl_ms > self.default_ttl_ms:
            ttl_ms = self.default_ttl_ms
        if now + ttl_ms > LATEST_MS or self.is_dead_letter:
            return 0
        return now + ttl_ms

    def check_receiving(self) -> None:
        if not self.may_receive:
            raise EntityDisabled(f"Messaging entity '{self.path}' is currently disabled for receiving. Set its status to Active.")

    def check_receiver(self) -> None:
        if self.forwards and not self.is_dead_letter:
            raise NotAllowed(
                f"Cannot create a message receiver on '{self.path}', an entity with auto-forwarding enabled: "
                f"its messages go to '{self.description.forward_to}'."
            )
