from __future__ import annotations

import pytest

from tandem import amqp
from tandem.amqp import errors
from tandem.amqp.performatives import Disposition
from tests.amqp.peers import AMQP_HEADER, LinkNotes, Pair, Raw, RawPeer, attach, frame, notes_of, parse, performative

FIRST = 0x40000000
ACCEPTED = Raw(amqp.ACCEPTED)


def sending_peer(deliveries: int, links: int = 1) -> tuple[RawPeer, list[amqp.SenderLink]]:
    peer = RawPeer().begun()
    for i in range(links):
        peer.send(frame(0, attach(f"l{i}", i, True)))
    senders = [link for link in peer.notes.links if isinstance(link, amqp.SenderLink)]
    for i in range(deliveries):
        senders[i % links].send(b"", b"t", False, i)
    peer.frames()
    return peer, senders


def settle(*fields: object) -> bytes:
    return frame(0, performative(0x15, True, *fields))


@pytest.mark.parametrize(
    "fields",
    [
        (FIRST, FIRST, True, ACCEPTED),
        (FIRST, None, True, ACCEPTED),
        (FIRST, FIRST, True, ACCEPTED, None),
        (FIRST, FIRST, True, ACCEPTED, False),
        (FIRST, FIRST, True, ACCEPTED, Raw(b"\x56\x01")),
        (FIRST, FIRST, Raw(b"\x56\x01"), ACCEPTED),
        (FIRST, FIRST, True, Raw(b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x24\xc0\x01\x00")),
        (FIRST, FIRST, True, Raw(b"\x00\xa3\x12amqp:accepted:list\x45")),
    ],
)
def test_every_encoding_of_a_disposition_means_the_same(fields: tuple[object, ...]) -> None:
    peer, (link,) = sending_peer(2)
    peer.send(settle(*fields), settle(FIRST + 1, None, *fields[2:]))
    assert [(ids, o.code, s) for ids, o, s in notes_of(link).dispositions] == [([FIRST], 0x24, True), ([FIRST + 1], 0x24, True)]
    assert link.session.unsettled == {}


def test_small_ids_are_read_too() -> None:
    config = amqp.ConnectionConfig(next_outgoing_id=0)
    peer = RawPeer(config=config).attached(receiver=True)
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    for _ in range(300):
        link.send(b"", b"t", False, None)
    peer.send(settle(0, 0, True, ACCEPTED), settle(1, 200, True, ACCEPTED), settle(255, 299, True, ACCEPTED))
    assert [len(ids) for ids, _, _ in notes_of(link).dispositions] == [1, 200, 45]
    assert len(link.session.unsettled) == 54


def test_an_unsettled_disposition_leaves_the_delivery_known() -> None:
    peer, (link,) = sending_peer(1)
    peer.send(settle(FIRST, FIRST, False, ACCEPTED))
    assert [(ids, s) for ids, _, s in notes_of(link).dispositions] == [([FIRST], False)]
    peer.send(settle(FIRST, FIRST, None, ACCEPTED))
    assert len(notes_of(link).dispositions) == 2
    assert FIRST in link.session.unsettled
    link.session.send_disposition(False, FIRST, FIRST, True, amqp.ACCEPTED)
    assert link.session.unsettled == {}
    peer.send(settle(FIRST, FIRST, True, ACCEPTED))
    assert len(notes_of(link).dispositions) == 2


def test_a_disposition_without_a_state_has_no_outcome() -> None:
    peer, (link,) = sending_peer(1)
    peer.send(settle(FIRST, FIRST, True))
    ((_, outcome, settled),) = notes_of(link).dispositions
    assert (outcome.code, settled) == (0, True)


def test_outcomes_keep_their_details() -> None:
    peer, (link,) = sending_peer(3)
    rejected = amqp.encode_rejected(amqp.AmqpError("com.microsoft:dead-letter", "d" * 300, {amqp.Symbol("DeadLetterReason"): "r"}))
    peer.send(settle(FIRST, FIRST, False, Raw(amqp.encode_modified(True, True, {amqp.Symbol("k"): 1}))))
    peer.send(frame(0, wide_disposition(FIRST + 1, rejected)), settle(FIRST + 2, FIRST + 2, True, Raw(amqp.RELEASED)))
    modified, dead, released = [outcome for _, outcome, _ in notes_of(link).dispositions]
    assert (modified.undeliverable_here, modified.message_annotations) == (True, {"k": 1})
    assert dead.error is not None and dead.error.info == {"DeadLetterReason": "r"}
    assert released.code == 0x26


def wide_disposition(delivery_id: int, state: bytes) -> bytes:
    fields = b"\x41" + b"\x70" + delivery_id.to_bytes(4, "big") + b"\x40\x42" + state
    return b"\x00\x53\x15\xd0" + (len(fields) + 4).to_bytes(4, "big") + (5).to_bytes(4, "big") + fields


def test_a_range_reaches_the_owner_as_a_range() -> None:
    peer, (link,) = sending_peer(100)
    peer.send(settle(FIRST + 10, FIRST + 59, True, ACCEPTED))
    ((ids, _, _),) = notes_of(link).dispositions
    assert ids == list(range(FIRST + 10, FIRST + 60))
    assert len(link.session.unsettled) == 50


def test_a_range_over_several_links_is_told_to_each_in_runs() -> None:
    peer, (a, b) = sending_peer(4, links=2)
    peer.send(settle(FIRST, FIRST + 3, True, ACCEPTED))
    assert [ids for ids, _, _ in notes_of(a).dispositions] == [[FIRST], [FIRST + 2]]
    assert [ids for ids, _, _ in notes_of(b).dispositions] == [[FIRST + 1], [FIRST + 3]]


def test_an_absurd_range_costs_no_more_than_what_is_known() -> None:
    peer, (link,) = sending_peer(3)
    for _ in range(1000):
        peer.send(settle(FIRST - 0x3FFFFFFF, FIRST + 0x3FFFFFFF, False, ACCEPTED))
    peer.send(settle(FIRST + 1, FIRST + 0x7FFFFFF0, True, ACCEPTED))
    assert notes_of(link).dispositions[-1][0] == [FIRST + 1, FIRST + 2]
    assert not peer.server.closed


def test_a_range_that_ends_before_it_begins_closes_the_connection() -> None:
    for role in (True, False):
        peer, _ = sending_peer(3)
        error = peer.send(frame(0, performative(0x15, role, FIRST + 2, FIRST, True, ACCEPTED))).error()
        assert error.condition == errors.INVALID_FIELD


def test_dispositions_of_deliveries_nobody_knows_are_ignored() -> None:
    peer, (link,) = sending_peer(1)
    peer.send(settle(5, 5, True, ACCEPTED), settle(5, 50, True, ACCEPTED), frame(0, performative(0x15, False, 5, 50, True, ACCEPTED)))
    assert notes_of(link).dispositions == []
    assert not peer.server.closed


def test_the_context_of_a_delivery_comes_back() -> None:
    contexts: list[object] = []

    class Keeping(LinkNotes):
        def on_disposition(self, link: amqp.SenderLink, deliveries: list[amqp.Delivery], outcome: amqp.Outcome, settled: bool) -> None:
            contexts.extend((d.context, d.tag, d.link) for d in deliveries)

    peer, (link,) = sending_peer(2)
    link.handler = Keeping()
    peer.send(settle(FIRST, FIRST + 1, True, ACCEPTED))
    assert contexts == [(0, b"t", link), (1, b"t", link)]


# -- out ---------------------------------------------------------------------------------------------------------------


def given(peer: RawPeer) -> list[tuple[bool, int, int, bool, bytes]]:
    return [(d.receiver_role, d.first, d.last, d.settled, d.state) for _, d in peer.frames() if isinstance(d, Disposition)]


def test_equal_answers_to_consecutive_deliveries_leave_as_one_range() -> None:
    peer = RawPeer().attached()
    session = peer.notes.sessions[0]
    for i in (5, 6, 7, 9, 10):
        session.send_disposition(True, i, i, True, amqp.ACCEPTED)
    session.send_disposition(True, 11, 20, True, amqp.ACCEPTED)
    session.send_disposition(True, 21, 21, True, amqp.RELEASED)
    session.send_disposition(True, 22, 22, False, amqp.RELEASED)
    session.send_disposition(False, 23, 23, False, amqp.RELEASED)
    assert peer.server.has_output
    assert given(peer) == [
        (True, 5, 7, True, amqp.ACCEPTED),
        (True, 9, 20, True, amqp.ACCEPTED),
        (True, 21, 21, True, amqp.RELEASED),
        (True, 22, 22, False, amqp.RELEASED),
        (False, 23, 23, False, amqp.RELEASED),
    ]
    assert not peer.server.has_output


def test_ranges_run_through_the_end_of_the_numbers() -> None:
    peer = RawPeer().attached()
    session = peer.notes.sessions[0]
    for i in (0xFFFFFFFE, 0xFFFFFFFF, 0, 1):
        session.send_disposition(True, i, i, True, amqp.ACCEPTED)
    assert given(peer) == [(True, 0xFFFFFFFE, 1, True, amqp.ACCEPTED)]


def test_answers_of_two_sessions_do_not_mix() -> None:
    peer = RawPeer().opened().send(frame(1, performative(0x11, None, 0, 9, 9)), frame(2, performative(0x11, None, 0, 9, 9)))
    peer.frames()
    one, two = peer.notes.sessions
    one.send_disposition(True, 0, 0, True, amqp.ACCEPTED)
    two.send_disposition(True, 1, 1, True, amqp.ACCEPTED)
    assert [(c, d.first) for c, d in peer.frames() if isinstance(d, Disposition)] == [(1, 0), (2, 1)]


@pytest.mark.parametrize("size", [0, 10, 100, 190, 200, 210, 250, 300, 5000])
def test_states_of_any_size_are_written_whole(size: int) -> None:
    peer = RawPeer().attached()
    state = amqp.encode_rejected(amqp.AmqpError("a:b", "x" * size))
    peer.notes.sessions[0].send_disposition(True, 300, 300, True, state)
    assert given(peer) == [(True, 300, 300, True, state)]


def test_an_error_in_a_state_is_cut_to_what_the_peer_can_take() -> None:
    peer = RawPeer().send(AMQP_HEADER, frame(0, performative(0x10, "small", None, 512)), frame(0, performative(0x11, None, 0, 9, 9)))
    peer.server.bytes_to_send()
    state = amqp.encode_rejected(amqp.AmqpError("a:b", "x" * 5000, {amqp.Symbol("k"): "v" * 500}))
    peer.notes.sessions[0].send_disposition(True, 3, 3, True, state)
    said = peer.server.bytes_to_send()
    assert len(said) <= 512
    ((_, sent),) = parse(said)
    assert isinstance(sent, Disposition)
    assert amqp.decode_outcome(sent.state).error == amqp.AmqpError("a:b", "x" * 96)


def test_no_state_is_written_as_none() -> None:
    peer = RawPeer().attached()
    peer.notes.sessions[0].send_disposition(True, 3, 4, True, b"")
    assert given(peer) == [(True, 3, 4, True, b"")]


def test_an_answer_leaves_before_the_detach_that_follows_it() -> None:
    peer = RawPeer().attached()
    peer.notes.sessions[0].send_disposition(True, 3, 3, True, amqp.ACCEPTED)
    peer.link.detach()
    assert [type(p).__name__ for _, p in peer.frames()] == ["Disposition", "Detach"]


def test_nothing_is_answered_on_a_session_that_ended() -> None:
    peer = RawPeer().attached()
    session = peer.notes.sessions[0]
    session.end()
    peer.frames()
    session.send_disposition(True, 3, 3, True, amqp.ACCEPTED)
    assert not peer.server.has_output


# -- the sender's word, for receivers that wait for it -----------------------------------------------------------------


def test_a_receiver_in_second_mode_hears_the_senders_settlement() -> None:
    pair = Pair()
    receiver, sender = pair.receiver(credit=10)
    for i in range(4):
        sender.send(b"x", b"t%d" % i, False, None)
    pair.exchange()
    first = notes_of(receiver).transfers[0][0]
    receiver.session.send_disposition(True, first, first + 3, False, amqp.ACCEPTED)
    pair.exchange()
    ((ids, outcome, settled),) = notes_of(sender).dispositions
    assert (len(ids), outcome.code, settled) == (4, 0x24, False)
    sender.session.send_disposition(False, first, first + 1, True, amqp.ACCEPTED)
    sender.session.send_disposition(False, first + 3, first + 3, True, amqp.RELEASED)
    pair.exchange()
    assert notes_of(receiver).settled_incoming == [(first, first + 1, 0x24, True), (first + 3, first + 3, 0x26, True)]
    assert list(receiver.session.tracked) == [first + 2]
    assert list(sender.session.unsettled) == [first + 2]


def test_a_receiver_that_settles_itself_hears_nothing_more() -> None:
    pair = Pair()
    receiver, sender = pair.receiver(credit=10)
    for _ in range(3):
        sender.send(b"x", b"t", False, None)
    pair.exchange()
    first = notes_of(receiver).transfers[0][0]
    receiver.session.send_disposition(True, first, first, True, amqp.ACCEPTED)
    receiver.session.send_disposition(True, first + 1, first + 1000, True, amqp.ACCEPTED)
    assert receiver.session.tracked == {}
    pair.exchange()
    assert sender.session.unsettled == {}
    sender.session.send_disposition(False, first, first, True, amqp.ACCEPTED)
    pair.exchange()
    assert notes_of(receiver).settled_incoming == []


def test_the_senders_word_is_bounded_by_what_is_known() -> None:
    pair = Pair()
    receiver, sender = pair.receiver(credit=10)
    sender.send(b"x", b"t", False, None)
    pair.exchange()
    first = notes_of(receiver).transfers[0][0]
    sender.session.send_disposition(False, first - 0x3FFFFFFF, first + 0x3FFFFFFF, True, amqp.ACCEPTED)
    pair.exchange()
    assert notes_of(receiver).settled_incoming == [(first, first, 0x24, True)]


def test_a_detached_receiver_is_told_nothing() -> None:
    pair = Pair()
    receiver, sender = pair.receiver(credit=10)
    sender.send(b"x", b"t", False, None)
    pair.exchange()
    receiver.detach()
    assert receiver.session.tracked == {}
