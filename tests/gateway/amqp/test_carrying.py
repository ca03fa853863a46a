"""Carried links when things go wrong: either node goes, the way between them is cut, the owner changes, a peer is no peer."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tandem.amqp.connection import Connection
from tandem.amqp.link import Link
from tandem.gateway.amqp import carrier
from tandem.gateway.amqp.carrier import LinkCarrier
from tandem.gateway.amqp.carrying import CarriedConnection
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.peer_door import CarriedClient
from tandem.gateway.amqp.spread_receiving import SpreadReceiving
from tests.cluster.carried import CarriedBroker
from tests.conformance.raw import Raw, Refused, message, token_for

QUEUES = {"plain": 12, "sessions": 4}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[CarriedBroker]:
    with CarriedBroker(tmp_path, QUEUES, real_time=True) as pair:
        yield pair


async def _stop_owner(pair: CarriedBroker) -> None:
    await pair.owner.stop()


async def _start_owner(pair: CarriedBroker) -> None:
    pair.owner = pair.make_owner()
    await pair.owner.start()


def _cut(pair: CarriedBroker) -> int:
    """Every connection between the two nodes, as if the network had failed."""
    clients = [client for context in pair.owner.contexts for client in context.connections]
    for client in clients:
        client.cut()
    return len(clients)


def _wait_for(pair: CarriedBroker, what: str, locked: int, queue: str) -> None:
    deadline = time.monotonic() + 20
    while pair.on_loop(lambda owner: owner.contexts[0].namespace.find(queue).main.counts().locked) != locked:  # type: ignore[union-attr]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_when_the_way_between_nodes_is_cut_every_carried_link_is_detached_retryably_and_comes_back(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        sender, receiver = client.sender(queue), client.receiver(queue)
        sender.send(message("before"))
        (held,) = receiver.receive()
        assert pair.on_loop(lambda owner: _cut(pair)) == 1
        client.until(lambda: sender.end.gone and receiver.end.gone)
        for end in (sender.end, receiver.end):
            assert end.error is not None
            assert end.error.condition == "amqp:internal-error"
            assert "was lost on the way. Try again." in (end.error.description or "")
        client.sender(queue).send(message("after"))
        again = client.receiver(queue).receive(2)
        assert [arrival.text for arrival in again] == ["before", "after"], "its lock went with the connection, as with any broken one"
        assert held.text == "before"


def test_a_client_that_vanishes_vanishes_at_the_owner_and_its_locks_are_free(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as stayer:
        stayer.feed(queue, "one")
        leaver = Raw(pair.port)
        leaver.receiver(queue).receive()
        _wait_for(pair, "it is locked", 1, queue)
        leaver.close()
        (arrival,) = stayer.receiver(queue).receive()
        assert (arrival.text, arrival.message.header.get("delivery-count")) == ("one", 1)


def test_a_client_that_closes_its_link_keeps_its_lock_at_the_owner(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        client.feed(queue, "one")
        receiver = client.receiver(queue)
        (arrival,) = receiver.receive()
        receiver.link.detach()
        client.until(lambda: receiver.end.gone)
        settled = {"disposition-status": "completed", "lock-tokens": amqp.Array(0x98, [arrival.token])}
        assert client.request(queue, "com.microsoft:update-disposition", settled)[0] == 200
        assert client.peek(queue) == []


def test_when_the_owner_dies_links_are_detached_and_the_next_attach_waits_for_its_return(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        sender = client.sender(queue)
        sender.send(message("kept"))
        pair.run(_stop_owner(pair))
        client.until(lambda: sender.end.gone)
        receiver = client.receiver(queue, wait=False)
        client.quiet(0.5)
        assert not receiver.end.attached
        assert not receiver.end.gone, "the attach is held"
        pair.run(_start_owner(pair))
        assert [arrival.text for arrival in receiver.receive()] == ["kept"]


@pytest.mark.slow
def test_an_attach_tries_again_when_its_new_connection_to_the_owner_ends_at_once(
    pair: CarriedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the owner's open and the attach that waited for it."""
    ended: list[CarriedClient] = []
    on_open = CarriedClient.on_open

    def say_and_hang_up(client: CarriedClient) -> None:
        client.flush()
        client.writer.hang_up()

    def hang_up_the_first_time(client: CarriedClient, connection: Connection) -> None:
        on_open(client, connection)
        if not ended:
            ended.append(client)
            asyncio.get_running_loop().call_soon(say_and_hang_up, client)

    monkeypatch.setattr(CarriedClient, "on_open", hang_up_the_first_time)
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        client.sender(queue).send(message("arrives"))
        assert [arrival.text for arrival in client.receiver(queue).receive()] == ["arrives"]
    assert len(ended) == 1


def test_an_attach_is_held_while_a_store_is_between_owners_and_then_refused_retryably(
    pair: CarriedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = pair.queue("plain")
    monkeypatch.setattr(carrier, "HOLD_MS", 600)
    pair.on_loop(lambda owner: pair.owners.move(None))
    with Raw(pair.port) as client:
        began = time.monotonic()
        with pytest.raises(Refused, match=f"The store of '{queue}' is being taken over by another node. Try again.") as refused:
            client.sender(queue)
        assert time.monotonic() - began >= 0.5
        assert refused.value.condition == "amqp:internal-error"
        assert "TrackingId" in refused.value.description
        waiting = client.receiver(queue, wait=False)
        client.quiet(0.1)
        pair.on_loop(lambda owner: pair.owners.move("b"))
        client.until(lambda: waiting.end.attached)


def test_links_leave_a_node_that_has_their_store_no_longer(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        sender = client.sender(queue)
        pair.on_loop(lambda owner: pair.owners.move(None))
        client.until(lambda: sender.end.gone)
        assert sender.end.error is not None
        assert "has moved to another node" in (sender.end.error.description or "")


def test_what_a_link_held_comes_again_at_once_when_the_link_is_taken_away(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        client.feed(queue, "one")
        receiver = client.receiver(queue)
        receiver.receive()
        _wait_for(pair, "it is locked", 1, queue)
        pair.on_loop(lambda owner: pair.owners.move(None))
        client.until(lambda: receiver.end.gone)
        _wait_for(pair, "it is free: nobody has a link to settle it on", 0, queue)
        pair.on_loop(lambda owner: pair.owners.move("b"))
        (arrival,) = client.receiver(queue).receive()
        assert (arrival.text, arrival.message.header.get("delivery-count")) == ("one", 1)


def test_an_attach_that_its_owner_is_answering_when_the_store_moves_is_refused_and_leads_nowhere(
    pair: CarriedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = pair.queue("plain")
    held: list[tuple[CarriedClient, Link]] = []
    on_attach = CarriedClient.on_attach
    with Raw(pair.port) as client, Raw(pair.port) as other:
        with monkeypatch.context() as patch:
            patch.setattr(CarriedClient, "on_attach", lambda owner, link: held.append((owner, link)))
            receiver = client.receiver(queue, wait=False)
            deadline = time.monotonic() + 20
            while not held:
                assert time.monotonic() < deadline, "the attach reaches the owner"
                client.quiet(0.01)
            pair.on_loop(lambda owner: pair.owners.move(None))
            client.until(lambda: receiver.end.gone)
        assert receiver.end.error is not None and "Attach the link again" in (receiver.end.error.description or "")
        pair.on_loop(lambda owner: on_attach(*held[0]))
        pair.on_loop(lambda owner: pair.owners.move("b"))
        other.feed(queue, "one")
        assert [arrival.text for arrival in other.receiver(queue).receive()] == ["one"], "nobody who cannot take it has it"


def test_a_receiver_whose_fragments_came_to_several_nodes_while_it_was_attached_draws_from_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CarriedBroker(tmp_path, {"partitioned": 1}, real_time=True) as pair, Raw(pair.port) as client:
        connected = LinkCarrier._continued

        async def one_moves_meanwhile(self: LinkCarrier, connection: PeerConnection, node: str) -> CarriedConnection | None:
            found = await connected(self, connection, node)
            monkeypatch.setattr(pair.owners, "owner", lambda store: "c" if store == 1 else "b")
            return found

        monkeypatch.setattr(LinkCarrier, "_continued", one_moves_meanwhile)
        client.receiver(pair.queue("partitioned"))
        (connection,) = pair.server.contexts[0].connections
        assert isinstance(connection, PeerConnection)
        (receiving,) = [link.handler for link in connection.links]
        assert isinstance(receiving, SpreadReceiving)
        assert receiving.nodes == {"b", "c"}


def test_a_client_that_waits_for_a_session_hears_of_the_cut_and_may_wait_again(pair: CarriedBroker) -> None:
    queue = pair.queue("sessions")
    with Raw(pair.port) as client:
        waiting = client.receiver(queue, session=None, wait=False)
        client.quiet(0.2)
        assert not waiting.end.gone
        pair.on_loop(lambda owner: _cut(pair))
        client.until(lambda: waiting.end.gone)
        assert waiting.end.error is not None
        assert waiting.end.error.condition == "amqp:internal-error"
        again = client.receiver(queue, session=None, wait=False)
        with Raw(pair.port) as other:
            other.feed(queue, "hello", session_id="s")
        assert [arrival.text for arrival in again.receive()] == ["hello"]


def test_a_slow_reader_holds_back_its_own_messages_only(pair: CarriedBroker) -> None:
    queue, other = pair.queue("plain"), pair.queue("plain")
    body = "x" * 60_000
    with Raw(pair.port) as feeder, Raw(pair.port) as slow:
        for _ in range(20):
            feeder.feed(queue, *[body] * 20)
        receiver = slow.receiver(queue, delete=True)
        receiver.link.grant(400)
        slow.flush()  # and reads nothing
        for number in range(20):
            feeder.feed(other, str(number))
        got = feeder.receiver(other).receive(20)
        assert [arrival.text for arrival in got] == [str(number) for number in range(20)]
        buffered = pair.on_loop(
            lambda owner: sum(len(client.engine.out) for client in pair.server.contexts[0].connections)  # type: ignore[attr-defined]
        )
        assert buffered < 400, "what the client does not read is not taken from the owner"
        assert len(receiver.receive(400)) == 400


def test_a_shut_session_window_stops_the_owner_before_it_fills_this_node(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as feeder, Raw(pair.port, incoming_window=10) as client:
        for _ in range(6):
            feeder.feed(queue, *["m"] * 500)
        client.session.keep_window_shut()
        receiver = client.receiver(queue, delete=True)
        receiver.link.grant(3000)
        client.until(lambda: len(receiver.end.deliveries) >= 10)
        client.quiet(0.3)
        assert len(receiver.end.deliveries) == 10
        waiting = pair.on_loop(
            lambda owner: sum(
                len(session.waiting)
                for near in pair.server.contexts[0].connections
                for session in near.engine.sessions.values()  # type: ignore[attr-defined]
            )
        )
        assert 0 < waiting <= 2048, "a window between the nodes, not the client's credit"
        client.session.let_window_open()
        client.until(lambda: len(receiver.end.deliveries) >= 3000)


def test_nodes_speak_over_tcp_as_well_and_pass_http_requests_on(tmp_path: Path, unused_tcp_port: int) -> None:
    with CarriedBroker(tmp_path, QUEUES, real_time=True, tcp_port=unused_tcp_port) as pair, Raw(pair.port) as client:
        queue = pair.queue("plain")
        client.feed(queue, "over amqp")
        token = token_for(pair.port, queue)
        where = f"http://127.0.0.1:{pair.port}/{queue}/messages"
        sent = urllib.request.Request(where, b"over http", {"Authorization": token}, method="POST")
        with urllib.request.urlopen(sent) as answer:
            assert answer.status == 201
        got = client.receiver(queue).receive(2)
        assert [arrival.text for arrival in got] == ["over amqp", "over http"]
        taken = urllib.request.Request(f"{where}/head?timeout=0", b"", {"Authorization": token}, method="POST")
        with urllib.request.urlopen(taken) as answer:
            assert answer.status == 204, "both are locked, at the node that has them"
