"""A queue of a namespace with its sub-queues, whole or in fragments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from tandem.broker.queue.entity import Entity
from tandem.model.address import SubQueue
from tandem.model.entity import MAX_DURATION_MS, QueueDescription
from tandem.model.errors import NotAllowed

_NO_LIMIT: Final = 1 << 62
_MEGABYTES_UNLIMITED: Final = 1 << 40


class QueueEntity:
    """A queue with its sub-queues."""

    def __init__(self, id_: int, store: int, description: QueueDescription, queues: Mapping[SubQueue, Entity]) -> None:
        self.id = id_
        self.store = store
        self.description = description
        self.queues = queues

    @property
    def main(self) -> Entity:
        return self.queues[SubQueue.MAIN]

    @property
    def dead_letters(self) -> Entity:
        return self.queues[SubQueue.DEAD_LETTER]

    def configure(self, description: QueueDescription) -> None:
        self.description = description
        self.main.configure(description)
        for sub_queue in (SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER):
            self.queues[sub_queue].configure(sub_queue_description(description, sub_queue))
        if self.main.terms.forwards:
            self.main.tell_all(NotAllowed(f"'{self.main.path}' now forwards its messages to '{description.forward_to}'."))
        for queue in self.queues.values():
            for part in queue.parts():
                if part.terms.forwards or part.receivers.consumers:
                    part.slot.touch()


def sub_queue_description(description: QueueDescription, sub_queue: SubQueue) -> QueueDescription:
    """A dead-letter queue keeps messages for ever, without sessions, whatever its parent says."""
    return dataclasses.replace(
        description,
        requires_session=False,
        requires_duplicate_detection=False,
        default_message_time_to_live_ms=MAX_DURATION_MS,
        dead_lettering_on_message_expiration=False,
        max_delivery_count=_NO_LIMIT,
        max_size_megabytes=_MEGABYTES_UNLIMITED,
        forward_to=description.forward_dead_lettered_messages_to if sub_queue is SubQueue.DEAD_LETTER else None,
        forward_dead_lettered_messages_to=None,
    )
