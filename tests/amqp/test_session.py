from __future__ import annotations

import pytest

from tandem import amqp
from tandem.amqp import errors
from tandem.amqp.performatives import ABSENT, Attach, Begin, Detach, Ending, Flow
from tests.amqp.peers import AMQP_HEADER, OPEN, LinkNotes, Notes, Pair, RawPeer, attach, frame, notes_of, performative, transfer


def flow(incoming_window: int, next_incoming_id: int | None = 0x40000000, **link: object) -> bytes:
    names = ("handle", "delivery_count", "link_credit", "available", "drain", "echo")
    return frame(0, performative(0x13, next_incoming_id, incoming_window, 0, 100, *[link.get(name) for name in names]))


def flows_of(peer: RawPeer) -> list[Flow]:
    return [p for _, p in peer.frames() if isinstance(p, Flow)]


def test_the_begin_is_answered_with_our_windows() -> None:
    config = amqp.ConnectionConfig(incoming_window=77, handle_max=9, next_outgoing_id=0x40000000)
    begin = RawPeer(config=config).begun().frames()[-1][1]
    assert isinstance(begin, Begin)
    assert (begin.remote_channel, begin.next_outgoing_id, begin.incoming_window, begin.handle_max) == (0, 0x40000000, 77, 9)


# -- windows -----------------------------------------------------------------------------------------------------------


def test_the_incoming_window_is_opened_again_when_half_is_used() -> None:
    peer = RawPeer(config=amqp.ConnectionConfig(incoming_window=10)).attached()
    for i in range(4):
        peer.send(frame(0, transfer(0, i, b"t", b"x")))
    assert flows_of(peer) == []
    peer.send(frame(0, transfer(0, 4, b"t", b"x")))
    (found,) = flows_of(peer)
    assert (found.handle, found.next_incoming_id, found.incoming_window) == (ABSENT, 5, 10)
    for i in range(5, 1005):
        peer.send(frame(0, transfer(0, i, b"t", b"x")))
    assert len([f for f in flows_of(peer) if f.handle == ABSENT]) == 200
    assert len(notes_of(peer.link).transfers) == 1005


def test_sends_wait_while_the_peers_window_is_shut_and_leave_in_order() -> None:
    peer = RawPeer().attached(receiver=True).send(flow(3, handle=0, delivery_count=0, link_credit=100))
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    ids = [link.send(f"m{i}".encode(), b"tag", False, None) for i in range(8)]
    assert len([1 for _, p in peer.frames() if type(p).__name__ == "Transfer"]) == 3
    assert not link.session.window_open
    assert ids == list(range(0x40000000, 0x40000008))
    peer.send(flow(2, 0x40000003))
    assert len(peer.frames()) == 2
    peer.send(flow(100, 0x40000005))
    assert len(peer.frames()) == 3
    assert link.session.window_open
    assert link.session.remote_incoming_window == 97
    link.send(b"next", b"tag", False, None)
    assert len(peer.frames()) == 1


def test_the_owner_hears_when_a_shut_window_opens() -> None:
    peer = RawPeer().attached(receiver=True).send(flow(1, handle=0, delivery_count=0, link_credit=5))
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    link.send(b"", b"", True, None)
    link.session.hold_back(link)
    heard = len(notes_of(link).flows)
    peer.send(flow(10, 0x40000001))
    assert len(notes_of(link).flows) == heard + 1
    peer.send(flow(10, 0x40000001))
    assert len(notes_of(link).flows) == heard + 1


def test_the_window_counts_what_is_under_way() -> None:
    peer = RawPeer().attached(receiver=True).send(flow(10, handle=0, delivery_count=0, link_credit=50))
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    for _ in range(4):
        link.send(b"", b"", True, None)
    # the peer has seen one of four when it says ten
    peer.send(flow(10, 0x40000001))
    assert link.session.remote_incoming_window == 7


def test_without_next_incoming_id_the_window_counts_from_our_first() -> None:
    peer = RawPeer().attached(receiver=True).send(flow(10, None, handle=0, link_credit=50))
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    assert link.session.remote_incoming_window == 10
    assert link.credit == 50


def test_a_peer_that_has_seen_what_was_never_sent_is_refused() -> None:
    error = RawPeer().attached(receiver=True).send(flow(10, 0x40000001)).error()
    assert error.condition == errors.INVALID_FIELD


def test_ids_wrap_around() -> None:
    config = amqp.ConnectionConfig(next_outgoing_id=0xFFFFFFFE)
    peer = RawPeer(config=config).attached(receiver=True)
    peer.send(flow(3, 0xFFFFFFFE, handle=0, delivery_count=0, link_credit=100))
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    assert [link.send(b"", b"t", False, None) for _ in range(4)] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    peer.send(flow(3, 1))
    assert link.session.remote_incoming_window == 2
    peer.send(frame(0, performative(0x15, True, 0xFFFFFFFE, 1, True, amqp.Described(amqp.ULong(0x24), []))))
    assert [ids for ids, _, _ in notes_of(link).dispositions] == [[0xFFFFFFFE, 0xFFFFFFFF, 0, 1]]


def test_incoming_ids_wrap_around() -> None:
    peer = RawPeer(config=amqp.ConnectionConfig(incoming_window=4)).send(AMQP_HEADER, frame(0, OPEN))
    peer.send(frame(0, performative(0x11, None, 0xFFFFFFFF, 100, 100)), frame(0, attach("l", 0, False)))
    peer.frames()
    peer.send(frame(0, transfer(0, 0xFFFFFFFF, b"t", b"")), frame(0, transfer(0, 0, b"t", b"")))
    (found,) = flows_of(peer)
    assert found.next_incoming_id == 1


@pytest.mark.parametrize("with_link", [False, True])
def test_an_echo_is_answered(with_link: bool) -> None:
    peer = RawPeer().attached(receiver=True)
    peer.send(flow(10, handle=0 if with_link else None, delivery_count=0, link_credit=7, echo=True))
    (found,) = flows_of(peer)
    assert (found.handle, found.link_credit) == ((0, 7) if with_link else (ABSENT, ABSENT))
    assert not found.echo


# -- attach and detach -------------------------------------------------------------------------------------------------


def test_an_accepted_link_echoes_name_handle_modes_and_termini() -> None:
    filters: dict[object, object] = {
        amqp.Symbol("com.microsoft:session-filter"): "s1",
        amqp.Symbol("x"): amqp.Described(amqp.ULong(7), "v"),
    }
    released = amqp.Described(amqp.ULong(0x26), [])
    fields = ["amqps://host/q", amqp.UInt(1), amqp.Symbol("never"), amqp.UInt(9), True, {amqp.Symbol("p"): 1}, amqp.Symbol("copy"), filters]
    source = amqp.Described(amqp.ULong(0x28), [*fields, released, amqp.Array(0xA3, ["a", "b"]), amqp.Symbol("cap")])
    target = amqp.Described(amqp.ULong(0x29), ["me"])
    rest = [None, None, None, amqp.ULong(9), None, amqp.Symbol("d"), {amqp.Symbol("k"): "v"}]
    peer = RawPeer().begun()
    peer.send(frame(0, performative(0x12, "n", 5, True, amqp.UByte(1), amqp.UByte(1), source, target, *rest)))
    link = peer.link
    assert (link.name, link.handle, link.role, link.snd_settle_mode, link.rcv_settle_mode) == ("n", 5, "sender", 1, 1)
    assert (link.remote_max_message_size, link.desired_capabilities, link.properties) == (9, ["d"], {"k": "v"})
    assert link.source is not None and link.source.filter == filters
    reply = peer.frames()[-1][1]
    assert isinstance(reply, Attach)
    assert (reply.name, reply.handle, reply.receiver_role, reply.snd_settle_mode, reply.rcv_settle_mode) == ("n", 5, False, 1, 1)
    assert reply.initial_delivery_count == 0
    echoed = reply.source
    assert echoed is not None
    assert (echoed.address, echoed.durable, echoed.expiry_policy, echoed.timeout, echoed.dynamic) == ("amqps://host/q", 1, "never", 9, True)
    assert (echoed.dynamic_node_properties, echoed.distribution_mode, echoed.filter) == ({"p": 1}, "copy", filters)
    assert (echoed.default_outcome, echoed.outcomes, echoed.capabilities) == (released, ["a", "b"], ["cap"])
    assert isinstance(reply.target, amqp.Terminus) and reply.target.address == "me"


def test_an_owner_may_answer_with_termini_properties_and_size_of_its_own() -> None:
    notes = Notes()
    notes.answer = lambda link: link.accept(
        source=amqp.Terminus("elsewhere", {amqp.Symbol("f"): "x"}), properties={amqp.Symbol("p"): 2**40}, max_message_size=2**64 - 1
    )
    reply = RawPeer(notes).begun().send(frame(0, attach("n", 0, True))).frames()[-1][1]
    assert isinstance(reply, Attach)
    assert reply.source is not None and (reply.source.address, reply.source.filter) == ("elsewhere", {"f": "x"})
    assert isinstance(reply.target, amqp.Terminus) and reply.target.address == "b"
    assert (reply.max_message_size, reply.properties) == (2**64 - 1, {"p": 2**40})


def test_termini_are_never_written_as_empty_lists() -> None:
    peer = RawPeer().begun()
    peer.server.bytes_to_send()
    peer.send(frame(0, performative(0x12, "n", 0, True, None, None, amqp.Described(amqp.ULong(0x28), ["$cbs"]))))
    said = peer.server.bytes_to_send()
    assert b"\x00\x53\x29\xc0\x02\x01\x40" in said
    assert b"\x00\x53\x29\x45" not in said
    assert peer.link.target is not None


def test_a_coordinator_is_a_target_of_its_own_kind() -> None:
    coordinator = amqp.Described(amqp.ULong(0x30), [amqp.Array(0xA3, ["amqp:local-transactions", "amqp:multi-txns-per-ssn"])])
    peer = RawPeer().begun()
    peer.send(frame(0, performative(0x12, "tx", 0, False, None, None, amqp.Described(amqp.ULong(0x28), ["c"]), coordinator, None, None, 0)))
    assert isinstance(peer.link.target, amqp.Coordinator)
    assert peer.link.target.capabilities == ["amqp:local-transactions", "amqp:multi-txns-per-ssn"]
    reply = next(p for _, p in peer.frames() if isinstance(p, Attach))
    assert isinstance(reply.target, amqp.Coordinator)


def test_a_refusal_is_an_attach_without_termini_and_a_closing_detach() -> None:
    notes = Notes()
    notes.answer = lambda link: link.refuse(amqp.AmqpError(errors.NOT_FOUND, "no such queue"))
    for receiver in (False, True):
        peer = RawPeer(notes).begun()
        peer.frames()
        peer.send(frame(0, attach("n", 4, receiver)))
        (_, reply), (_, detach) = peer.frames()
        assert isinstance(reply, Attach) and isinstance(detach, Detach)
        assert (reply.source, reply.target, reply.name, reply.receiver_role) == (None, None, "n", not receiver)
        assert (detach.handle, detach.closed, detach.error) == (reply.handle, True, amqp.AmqpError(errors.NOT_FOUND, "no such queue"))
        assert not peer.link.attached
        peer.send(frame(0, performative(0x16, 4, True)))
        assert not peer.server.has_output
        assert notes_of(peer.link).detached == [None]


def test_an_answer_may_come_later() -> None:
    notes = Notes()
    notes.answer = lambda link: None
    peer = RawPeer(notes).begun().send(frame(0, attach("n", 0, True)), flow(10, handle=0, delivery_count=None, link_credit=5))
    link = peer.link
    peer.frames()
    assert not link.attached
    assert notes_of(link).flows == []
    link.accept()
    assert link.attached
    assert notes_of(link).flows == [(5, False)]
    link.accept()
    link.refuse(amqp.AmqpError("a:b"))
    assert len(peer.frames()) == 1


def test_a_link_given_up_before_it_was_accepted_is_answered_with_both_frames() -> None:
    notes = Notes()
    notes.answer = lambda link: None
    peer = RawPeer(notes).begun().send(frame(0, attach("n", 0, True)))
    peer.frames()
    peer.send(frame(0, performative(0x16, 0, True)))
    assert [type(p) for _, p in peer.frames()] == [Attach, Detach]
    assert notes_of(peer.link).detached == [None]
    peer.link.accept()
    assert not peer.server.has_output


def test_a_detach_is_answered_in_kind_and_the_handle_is_free_again() -> None:
    peer = RawPeer().attached()
    error = amqp.Described(amqp.ULong(0x1D), [amqp.Symbol("a:b"), None, None])
    peer.send(frame(0, performative(0x16, 0, False, error)))
    ((_, detach),) = peer.frames()
    assert isinstance(detach, Detach)
    assert (detach.closed, detach.error) == (False, None)
    assert notes_of(peer.link).detached == [amqp.AmqpError("a:b")]
    peer.send(frame(0, attach("again", 0, True)))
    assert peer.link.name == "again" and peer.link.attached


def test_our_detach_waits_for_the_peers_and_ignores_what_is_under_way() -> None:
    peer = RawPeer().attached()
    link = peer.link
    link.detach(amqp.AmqpError(errors.DETACH_FORCED, "idle"))
    link.detach(amqp.AmqpError(errors.DETACH_FORCED, "again"))
    ((_, detach),) = peer.frames()
    assert isinstance(detach, Detach) and detach.error == amqp.AmqpError(errors.DETACH_FORCED, "idle")
    peer.send(frame(0, transfer(0, 0, b"t", b"x")), flow(10, handle=0, delivery_count=0, link_credit=1))
    assert notes_of(link).transfers == []
    assert notes_of(link).detached == []
    peer.send(frame(0, performative(0x16, 0, True)))
    assert notes_of(link).detached == [None]
    assert not peer.server.has_output and not peer.server.closed


@pytest.mark.parametrize(
    "data",
    [
        frame(0, transfer(7, 0, b"t", b"x")),
        frame(0, performative(0x13, 0x40000000, 1, 0, 1, 7, 0, 1)),
        frame(0, performative(0x16, 7, True)),
    ],
)
def test_an_unattached_handle_ends_the_session(data: bytes) -> None:
    peer = RawPeer().attached().send(data)
    end = peer.frames()[-1][1]
    assert isinstance(end, Ending) and end.error is not None
    assert end.error.condition == errors.UNATTACHED_HANDLE
    assert not peer.server.closed
    assert [e.condition for e in notes_of(peer.link).detached if e] == [errors.UNATTACHED_HANDLE]


def test_a_handle_in_use_ends_the_session() -> None:
    peer = RawPeer().attached().send(frame(0, attach("another", 0, False)))
    end = peer.frames()[-1][1]
    assert isinstance(end, Ending) and end.error is not None
    assert end.error.condition == errors.HANDLE_IN_USE


def test_a_handle_beyond_handle_max_closes_the_connection() -> None:
    error = RawPeer().begun().send(frame(0, attach("n", 256, False))).error()
    assert error.condition == errors.FRAMING_ERROR


def test_attaching_the_same_link_again_under_its_handle_steals_it() -> None:
    peer = RawPeer().attached().send(frame(0, attach("link", 0, False)))
    old, new = peer.notes.links
    (_, detach), (_, reply) = peer.frames()[:2]
    assert isinstance(detach, Detach) and detach.error is not None and detach.error.condition == errors.STOLEN
    assert isinstance(reply, Attach)
    assert [e.condition for e in notes_of(old).detached if e] == [errors.STOLEN]
    peer.send(frame(0, transfer(0, 0, b"t", b"x")))
    assert len(notes_of(new).transfers) == 1 and notes_of(old).transfers == []


def test_a_name_in_use_is_stolen_by_the_attach_that_comes_later() -> None:
    peer = RawPeer().attached().send(frame(0, attach("link", 1, False)))
    old, new = peer.notes.links
    (_, told), (_, reply) = peer.frames()[:2]
    assert isinstance(told, Detach) and told.error is not None and told.error.condition == errors.STOLEN
    assert isinstance(reply, Attach)
    assert [e.condition for e in notes_of(old).detached if e] == [errors.STOLEN]
    assert new.attached and not old.attached
    peer.send(frame(0, transfer(0, 0, b"t", b"late")), frame(0, performative(0x16, 0, True)), frame(0, transfer(1, 1, b"t", b"x")))
    assert len(notes_of(new).transfers) == 1 and notes_of(old).transfers == []
    assert not peer.server.closed


def test_a_name_is_stolen_from_another_session_too_but_not_from_the_other_direction() -> None:
    peer = RawPeer().attached().send(frame(1, performative(0x11, None, 0, 100, 100)), frame(1, attach("link", 0, True)))
    old, other = peer.notes.links
    assert old.attached and other.attached
    peer.send(frame(1, attach("link", 1, False)))
    assert not old.attached and other.attached and peer.notes.links[2].attached
    assert not peer.server.closed


def test_a_name_is_free_again_when_its_link_is_detached() -> None:
    peer = RawPeer().attached().send(frame(0, performative(0x16, 0, True)), frame(0, attach("link", 1, False)))
    assert peer.notes.links[1].attached
    assert [type(one) for _, one in peer.frames()[:2]] == [Detach, Attach]
    peer.send(frame(0, performative(0x16, 1, True)))
    assert peer.server.named == {}


def test_a_handle_whose_link_we_detached_may_be_taken_at_once() -> None:
    peer = RawPeer().attached()
    peer.link.detach(amqp.AmqpError("a:b"))
    peer.send(frame(0, attach("another", 0, False)))
    first, second = peer.notes.links
    assert len(notes_of(first).detached) == 1
    assert second.attached


def test_links_take_the_handles_the_peer_has_and_no_more() -> None:
    peer = RawPeer().send(AMQP_HEADER, frame(0, OPEN), frame(0, performative(0x11, None, 0, 9, 9, 0)), frame(0, attach("a", 3, False)))
    assert peer.link.handle == 0 and peer.link.remote_handle == 3
    with pytest.raises(RuntimeError, match="1 links"):
        peer.notes.sessions[0].attach_sender("x", None, None, LinkNotes())
    peer.send(frame(0, attach("b", 0, False)))
    end = peer.frames()[-1][1]
    assert isinstance(end, Ending) and end.error is not None
    assert end.error.condition == errors.RESOURCE_LIMIT_EXCEEDED


def test_sessions_take_the_channels_the_peer_has_and_no_more() -> None:
    peer = RawPeer().send(AMQP_HEADER, frame(0, performative(0x10, "one", None, None, amqp.UShort(0))))
    peer.send(frame(4, performative(0x11, None, 0, 9, 9)))
    assert (peer.notes.sessions[0].channel, peer.notes.sessions[0].remote_channel) == (0, 4)
    assert peer.send(frame(5, performative(0x11, None, 0, 9, 9))).error().condition == errors.RESOURCE_LIMIT_EXCEEDED


# -- two engines -------------------------------------------------------------------------------------------------------


def test_a_client_learns_that_its_link_was_refused() -> None:
    pair = Pair()
    pair.server_notes.answer = lambda link: link.refuse(amqp.AmqpError(errors.UNAUTHORIZED_ACCESS, "Send"))
    session = pair.session()
    notes = LinkNotes()
    session.attach_sender("s", amqp.Terminus("a"), amqp.Terminus("q"), notes)
    session.attach_receiver("s", amqp.Terminus("q"), amqp.Terminus("a"), notes)
    pair.exchange()
    assert notes.attached == []
    assert notes.detached == [amqp.AmqpError(errors.UNAUTHORIZED_ACCESS, "Send")] * 2
    assert session.links == {}
    assert [notes_of(link).detached for link in pair.server_notes.links] == [[None], [None]]


def test_a_client_may_give_up_a_link_before_it_is_answered() -> None:
    pair = Pair()
    session = pair.session()
    notes = LinkNotes()
    link = session.attach_receiver("r", amqp.Terminus("q"), amqp.Terminus("a"), notes)
    link.detach()
    pair.exchange()
    assert notes.attached == []
    assert notes.detached == [None]
    assert session.links == {} and session.by_remote_handle == {}


def test_ending_a_session_tells_both_sides() -> None:
    pair = Pair()
    sender, receiver = pair.sender()
    sender.session.end(amqp.AmqpError("a:b"))
    pair.exchange()
    assert notes_of(sender).detached == [amqp.AmqpError("a:b")]
    assert notes_of(receiver).detached == [amqp.AmqpError("a:b")]
    assert pair.client.sessions == {} and pair.server.sessions == {}
    assert len(pair.client_notes.ended) == len(pair.server_notes.ended) == 1


def test_links_of_several_sessions_do_not_mix() -> None:
    pair = Pair()
    pair.client.open()
    sessions = [pair.client.begin() for _ in range(3)]
    links = [s.attach_sender(f"to {i}", amqp.Terminus("a"), amqp.Terminus(f"q{i}"), LinkNotes()) for i, s in enumerate(sessions)]
    pair.exchange()
    for i, link in enumerate(links):
        link.send(f"to {i}".encode(), b"t", True, None)
    pair.exchange()
    for link in pair.server_notes.links:
        assert isinstance(link.target, amqp.Terminus) and link.target.address is not None
        assert [t[2] for t in notes_of(link).transfers] == [f"to {link.target.address[1:]}".encode()]
