from __future__ import annotations

import pytest

from tandem import amqp
from tandem.amqp import errors
from tandem.amqp.performatives import Detach, Flow
from tests.amqp.peers import LinkNotes, Notes, Pair, RawPeer, frame, notes_of, performative, transfer

SOURCE = amqp.Described(amqp.ULong(0x28), ["a"])
TARGET = amqp.Described(amqp.ULong(0x29), ["b"])


def link_flow(delivery_count: int | None, credit: int, drain: bool = False) -> bytes:
    return frame(0, performative(0x13, 0x40000000, 1000, 0, 1000, 0, delivery_count, credit, None, drain))


def sending_peer() -> tuple[RawPeer, amqp.SenderLink]:
    """The engine sends, the raw peer receives."""
    peer = RawPeer().attached(receiver=True)
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    return peer, link


# -- credit of senders -------------------------------------------------------------------------------------------------


def test_credit_is_the_receivers_limit_minus_what_was_sent() -> None:
    peer, link = sending_peer()
    peer.send(link_flow(0, 10))
    assert link.credit == 10
    for _ in range(4):
        link.send(b"", b"t", False, None)
    assert link.credit == 6
    # this flow was written when the receiver had seen one of the four
    peer.send(link_flow(1, 10))
    assert link.credit == 7
    peer.send(link_flow(4, 0))
    assert link.credit == 0
    peer.send(link_flow(0, 2))
    assert link.credit == 0, "less than what is already sent"


def test_credit_replaces_and_does_not_add() -> None:
    peer, link = sending_peer()
    peer.send(link_flow(0, 10), link_flow(0, 3))
    assert link.credit == 3


def test_credit_wraps_around_with_the_delivery_count() -> None:
    peer, link = sending_peer()
    link.delivery_count = 0xFFFFFFFE
    peer.send(link_flow(0xFFFFFFFE, 5))
    assert link.credit == 5
    for _ in range(3):
        link.send(b"", b"t", True, None)
    peer.send(link_flow(0xFFFFFFFF, 5))
    assert link.credit == 3
    peer.send(link_flow(1, 5))
    assert link.credit == 5
    link.drained()
    assert next(p for _, p in reversed(peer.frames()) if isinstance(p, Flow)).delivery_count == 6


def test_a_sender_may_be_told_to_send_without_credit() -> None:
    peer, link = sending_peer()
    link.send(b"reply", b"", True, None)
    assert link.credit == -1
    assert len(peer.frames()) == 1


def test_a_drain_is_answered_with_the_rest_of_the_credit_used_up() -> None:
    peer, link = sending_peer()
    peer.send(link_flow(0, 10, drain=True))
    assert link.drain
    assert notes_of(link).flows == [(10, True)]
    link.send(b"", b"t", True, None)
    link.drained()
    assert not link.drain and link.credit == 0
    answer = peer.frames()[-1][1]
    assert isinstance(answer, Flow)
    assert (answer.handle, answer.delivery_count, answer.link_credit, answer.drain) == (0, 10, 0, True)


def test_nothing_is_sent_on_a_link_that_is_not_attached() -> None:
    _, link = sending_peer()
    link.detach()
    with pytest.raises(RuntimeError, match="not attached"):
        link.send(b"", b"t", True, None)
    with pytest.raises(ValueError, match="delivery tag of 33 bytes"):
        sending_peer()[1].send(b"", b"t" * 33, True, None)


def test_a_detached_link_forgets_its_deliveries() -> None:
    peer, link = sending_peer()
    peer.send(link_flow(0, 10))
    delivery_id = link.send(b"", b"t", False, None)
    link.detach()
    peer.send(frame(0, performative(0x15, True, delivery_id, delivery_id, True, amqp.Described(amqp.ULong(0x24), []))))
    assert notes_of(link).dispositions == []
    assert link.session.unsettled == {}


def test_a_handler_knows_what_was_unsettled_when_the_peer_detaches() -> None:
    peer, link = sending_peer()
    peer.send(link_flow(0, 10))
    link.send(b"", b"t", False, "the first")
    known: list[object] = []

    class Asking(amqp.LinkHandler):
        def on_detach(self, link: amqp.Link, error: amqp.AmqpError | None) -> None:
            assert isinstance(link, amqp.SenderLink)
            known.extend(delivery.context for delivery in link.unsettled())

    link.handle_with(Asking())
    peer.send(frame(0, performative(0x16, amqp.UInt(0), True)))
    assert known == ["the first"], "it may have to say that nobody will answer"
    assert link.session.unsettled == {}


# -- credit of receivers -----------------------------------------------------------------------------------------------


def flows_of(peer: RawPeer) -> list[Flow]:
    return [p for _, p in peer.frames() if isinstance(p, Flow)]


def receiving_peer(auto_credit: int, window: int = 5000) -> tuple[RawPeer, amqp.ReceiverLink]:
    notes = Notes()
    notes.auto_credit = auto_credit
    peer = RawPeer(notes, amqp.ConnectionConfig(incoming_window=window)).attached()
    link = peer.link
    assert isinstance(link, amqp.ReceiverLink)
    return peer, link


def test_credit_comes_with_the_attach_and_is_topped_up_when_half_is_used() -> None:
    notes = Notes()
    notes.auto_credit = 10
    peer = RawPeer(notes).begun()
    peer.frames()
    peer.send(frame(0, performative(0x12, "l", 0, False, None, None, SOURCE, TARGET, None, None, 7)))
    _, (_, flow) = peer.frames()
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 7, 10)
    for i in range(4):
        peer.send(frame(0, transfer(0, i, b"t", b"")))
    assert flows_of(peer) == []
    peer.send(frame(0, transfer(0, 4, b"t", b"")))
    (flow,) = flows_of(peer)
    assert (flow.delivery_count, flow.link_credit) == (12, 10)


def test_a_missing_initial_delivery_count_counts_as_zero() -> None:
    peer = RawPeer().begun()
    peer.send(frame(0, performative(0x12, "l", 0, False, None, None, SOURCE, TARGET)))
    assert peer.link.attached
    assert peer.link.delivery_count == 0


def test_grant_sets_the_credit_and_tells() -> None:
    peer, link = receiving_peer(0)
    link.grant(3)
    link.grant(2)
    assert [f.link_credit for f in flows_of(peer)] == [3, 2]
    assert link.credit == 2


def test_overrun_is_tolerated_up_to_twice_the_window_and_then_ends_the_link() -> None:
    peer, link = receiving_peer(0, window=10)
    for i in range(19):
        peer.send(frame(0, transfer(0, i, b"t", b"")))
    assert link.attached
    assert len(notes_of(link).transfers) == 19
    peer.send(frame(0, transfer(0, 19, b"t", b"")))
    detach = peer.frames()[-1][1]
    assert isinstance(detach, Detach) and detach.error is not None
    assert detach.error.condition == errors.TRANSFER_LIMIT_EXCEEDED
    peer.send(frame(0, transfer(0, 20, b"t", b"")))
    assert len(notes_of(link).transfers) == 19
    assert not peer.server.closed


def test_transfers_before_the_link_was_accepted_refuse_it() -> None:
    notes = Notes()
    notes.answer = lambda link: None
    peer = RawPeer(notes).begun().send(frame(0, performative(0x12, "l", 0, False, None, None, None, None, None, None, 0)))
    peer.send(frame(0, transfer(0, 0, b"t", b"")))
    detach = peer.frames()[-1][1]
    assert isinstance(detach, Detach) and detach.error is not None
    assert detach.error.condition == errors.TRANSFER_LIMIT_EXCEEDED


def test_a_sender_that_skips_deliveries_uses_up_its_credit() -> None:
    peer, link = receiving_peer(0)
    link.grant(10)
    peer.send(frame(0, performative(0x13, 0, 1000, 0, 1000, 0, 4, 0, 8)))
    assert (link.delivery_count, link.credit, link.available) == (4, 6, 8)
    peer.send(frame(0, performative(0x13, 0, 1000, 0, 1000, 0, 4, 0)))
    assert link.credit == 6


def test_a_receiver_may_ask_for_a_drain() -> None:
    pair = Pair()
    receiver, sender = pair.receiver(credit=10)
    sender.send(b"one", b"t", True, None)
    pair.exchange()
    receiver.ask_drain()
    pair.exchange()
    assert sender.drain and sender.credit == 9
    sender.drained()
    pair.exchange()
    assert (receiver.credit, receiver.drain, receiver.delivery_count) == (0, False, 10)
    assert notes_of(receiver).flows[-1] == (0, False)
    receiver.grant(4)
    pair.exchange()
    assert (sender.credit, sender.drain) == (4, False)


def test_a_drain_that_is_asked_for_as_soon_as_the_link_is_attached_holds() -> None:
    class Draining(LinkNotes):
        def on_attached(self, link: amqp.Link) -> None:
            super().on_attached(link)
            assert isinstance(link, amqp.ReceiverLink)
            link.credit = 5
            link.ask_drain()

    pair = Pair()
    pair.session().attach_receiver("r", amqp.Terminus("queue"), amqp.Terminus("here"), Draining())
    pair.exchange()
    sender = pair.server_notes.links[-1]
    assert (sender.credit, sender.drain) == (5, True)


def test_credit_granted_before_the_link_is_answered_counts() -> None:
    pair = Pair()
    pair.client.open()
    session = pair.client.begin()
    link = session.attach_receiver("r", amqp.Terminus("q"), amqp.Terminus("a"), LinkNotes())
    link.grant(7)
    pair.exchange()
    assert pair.server_notes.links[0].credit == 7


def test_a_transfer_on_a_link_that_receives_is_refused() -> None:
    peer, _ = sending_peer()
    peer.send(frame(0, transfer(0, 0, b"t", b"")))
    detach = peer.frames()[-1][1]
    assert isinstance(detach, Detach) and detach.error is not None
    assert detach.error.condition == errors.NOT_ALLOWED
