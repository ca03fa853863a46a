"""What the tenant of a store writes again when a segment leaves, and what a restart makes of it."""

from __future__ import annotations

from tandem.broker import facts
from tandem.broker.ports import Consumer
from tandem.broker.queue.index import READY
from tandem.broker.queue.locks import Lock
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.rows import Rows
from tandem.broker.recovery.entity_facts import Roll
from tandem.broker.recovery.replay import replay
from tandem.broker.recovery.tenant import StoreTenant
from tandem.broker.recovery.unplugged import Unplugged
from tandem.model.address import parse
from tandem.model.message import NO_TTL, Message
from tandem.testing import Bus
from tandem.testing.bus import Server


class Taker(Consumer):
    """Receives and deletes, and writes it down."""

    def __init__(self) -> None:
        super().__init__(False)
        self.got: list[int] = []

    def room(self) -> int:
        return 10 - len(self.got)

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        self.got.append(seq)


def message() -> Message:
    return Message(b"\x00\x53\x77\x43", b"\xa1\x01m", None, NO_TTL, 0, b"", 0, b"", 0, b"", None, False)


def orders(server: Server) -> tuple[Queue, StoreTenant]:
    namespace = server.contexts[0].namespace
    return namespace.resolve(parse("orders")), namespace.stores[0]


def write_again(queue: Queue, tenant: StoreTenant, location: int) -> None:
    """As compaction does with the segment that holds message 1."""
    body = b"the body travels unread"
    key = facts.pack_key(b"\xa1\x01m", None, 0, 0)
    tenant.relocate(facts.ENQUEUED, 0, queue.entity_id, 1, queue.turn.now, 0, key, body, location)


def test_received_and_deleted_stays_deleted_when_its_segment_is_compacted_before_the_disk_knows() -> None:
    with Bus() as bus:
        bus.create_queue("orders")
        taker = Taker()

        def send(server: Server) -> None:
            queue, _ = orders(server)
            queue.enqueue(message(), server.turn.begin())

        def take(server: Server) -> None:
            queue, tenant = orders(server)
            location = queue.index.location(1)
            queue.consumer_ready(taker)
            queue.pump(server.turn.begin())
            assert taker.got == [], "not before the disk knows"
            write_again(queue, tenant, location)

        bus.inside(send)
        bus.inside(take)
        assert taker.got == [1]
        bus.restart()
        assert bus.counts("orders").total == 0


def test_the_body_of_a_message_is_asked_for_if_it_waits_and_not_when_it_is_gone() -> None:
    key = facts.pack_key(b"\xa1\x01m", None, 0, 0)
    with Bus() as bus:
        bus.create_queue("orders")

        def send(server: Server) -> None:
            queue, _ = orders(server)
            queue.enqueue(message(), server.turn.begin())

        def asked(server: Server) -> tuple[bool, bool]:
            """At its location, and at one where it stood before; nothing is written for the question."""
            queue, tenant = orders(server)
            location, pending = queue.index.location(1), tenant.journal.pending_bytes
            found = [tenant.relocate(facts.ENQUEUED, 0, queue.entity_id, 1, 0, 0, key, None, at) for at in (location, location + 1)]
            assert tenant.journal.pending_bytes == pending
            assert queue.index.location(1) == location
            return found[0], found[1]

        def take(server: Server) -> None:
            queue, _ = orders(server)
            queue.consumer_ready(Taker())
            queue.pump(server.turn.begin())

        def asked_when_gone(server: Server) -> bool:
            queue, tenant = orders(server)
            return tenant.relocate(facts.ENQUEUED, 0, queue.entity_id, 1, 0, 0, key, None, 0)

        bus.inside(send)
        assert bus.inside(asked) == (True, False)
        bus.inside(take)
        assert bus.inside(asked_when_gone) is False


def test_waiting_message_is_there_once_after_it_was_written_again() -> None:
    with Bus() as bus:
        bus.create_queue("orders")

        def send(server: Server) -> None:
            queue, _ = orders(server)
            queue.enqueue(message(), server.turn.begin())

        bus.inside(send)
        bus.inside(lambda server: write_again(*orders(server), orders(server)[0].index.location(1)))
        assert bus.counts("orders").total == 1
        bus.restart()
        assert bus.counts("orders").total == 1


def test_a_completed_lease_takes_its_messages_along_although_the_fact_that_took_it_has_gone_with_its_segment() -> None:
    """Message, lease, the message written again by compaction, the end of the lease; then the segment of the lease's beginning leaves."""
    tenant = StoreTenant(Unplugged("only told of facts"), 1, 0, Roll(), 0)
    rows = tenant.rows[7] = Rows(7, tenant.backing, None, True, 0)
    told: list[tuple[int, int, bytes]] = []

    class Pen(Unplugged):
        def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
            told.append((kind, flags, key))
            return 0

    facts.write_enqueued(Pen("a pen"), 7, 1, READY, True, b"\xa1\x01m", None, 0, 5, 0, 0, b"body")
    facts.write_lease_ended(Pen("a pen"), 7, "batch", True, [1], 6)
    for kind, flags, key in told:
        replay(rows, kind, flags, 1 if kind == facts.ENQUEUED else 0, 5, 0, key, 1 << 32, 4)
    rows.replay_ended()
    assert (rows.index.total, list(rows.leases_ended)) == (0, ["batch"])
