"""Faults at the AMQP door: bytes, attaches, transfers and answers that get lost, refused or late, and nothing else."""

from __future__ import annotations

import asyncio

from tandem.amqp.outcomes import ACCEPTED_CODE, REJECTED_CODE
from tandem.model.entity import QueueDescription
from tandem.server.faults import FaultRequest
from tests.gateway.amqp.connected import Connected, outcomes, payload


def test_without_a_fault_in_force_nothing_is_different() -> None:
    both = Connected(faults=True)
    link, notes = both.sender()
    link.send(payload("a"), b"a", False, None)
    both.settle()
    assert outcomes(notes) == [([0], ACCEPTED_CODE, "")]


def test_an_entity_that_refuses_says_why_and_stores_nothing() -> None:
    both = Connected(faults=True)
    link, notes = both.sender()
    both.points.inject(FaultRequest(kind="entity-error", entity="q", condition="amqp:internal-error", count=1))
    link.send(payload("a"), b"a", False, None)
    link.send(payload("b"), b"b", False, None)
    both.settle()
    assert outcomes(notes) == [([0], REJECTED_CODE, "amqp:internal-error"), ([1], ACCEPTED_CODE, "")]
    assert both.desk.texts() == ["b"]


def test_an_entity_that_cannot_be_reached_leaves_attach_and_transfer_without_an_answer() -> None:
    both = Connected(faults=True)
    link, notes = both.sender()
    fault = both.points.inject(FaultRequest(kind="entity-unreachable", entity="q"))
    link.send(payload("a"), b"a", False, None)
    _, other = both.receiver()
    both.settle()
    assert notes.dispositions == [] and other.attached == [] and other.detached == []
    both.points.heal(fault.id)
    link.send(payload("b"), b"b", False, None)
    both.settle()
    assert both.desk.texts() == ["b"]


def test_a_lost_acknowledgement_is_a_stored_message_and_a_broken_connection() -> None:
    both = Connected(faults=True)
    link, _ = both.sender()
    both.points.inject(FaultRequest(kind="lose-acknowledgement", entity="q"))
    link.send(payload("a"), b"a", False, None)
    both.exchange()
    both.desk.run()
    assert both.writer.cuts == 1 and both.peer.gone
    assert both.desk.texts() == ["a"]


def test_a_black_hole_takes_everything_and_gives_nothing() -> None:
    both = Connected(faults=True)
    link, notes = both.sender()
    fault = both.points.inject(FaultRequest(kind="black-hole"))
    link.send(payload("a"), b"a", False, None)
    both.settle()
    assert notes.dispositions == [] and both.desk.texts() == []
    both.points.heal(fault.id)


def test_forced_detaches_and_expired_tokens_end_the_links_of_the_entity_alone() -> None:
    both = Connected(QueueDescription(name="q"), QueueDescription(name="other"), faults=True)
    _, sending = both.sender()
    _, other = both.receiver("other")
    both.points.inject(FaultRequest(kind="force-detach", entity="q"))
    both.exchange()
    assert [error.condition for error in sending.detached if error] == ["amqp:link:detach-forced"]
    assert other.detached == []
    both.points.inject(FaultRequest(kind="expire-tokens"))
    both.exchange()
    assert [error.condition for error in other.detached if error] == ["amqp:unauthorized-access"]


async def test_slow_dispositions_come_late_and_whole() -> None:
    both = Connected(faults=True)
    link, notes = both.sender()
    both.points.inject(FaultRequest(kind="slow-dispositions", entity="q", delay_ms=20, count=1))
    link.send(payload("a"), b"a", False, None)
    both.settle()
    assert notes.dispositions == []
    async with asyncio.timeout(20):
        while not notes.dispositions:
            await asyncio.sleep(0.005)
            both.exchange()
    assert outcomes(notes) == [([0], ACCEPTED_CODE, "")]
