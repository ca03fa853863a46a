"""The door for other nodes: who is let in, and what the clients of a peer may do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tandem.cluster import peers
from tandem.gateway.amqp import carrier
from tandem.server.sas import make_token
from tests.cluster.carried import SECRET, CarriedBroker
from tests.conformance.house import RULES
from tests.conformance.raw import Raw, Refused

QUEUES = {"plain": 4}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[CarriedBroker]:
    with CarriedBroker(tmp_path, QUEUES, real_time=True) as pair:
        yield pair


def test_what_a_client_may_do_at_a_management_node_is_what_its_token_says(pair: CarriedBroker) -> None:
    with Raw(pair.port, user="", password="") as client:
        until = int((time.time() + 3600) * 1000)
        token = make_token(f"sb://localhost:{pair.port}/guarded", "listener", "listener-first", until)
        assert client.put_token("guarded", token)[0] == 202
        assert "Listen" in RULES["listener"]
        status, reply = client.request("guarded", "com.microsoft:schedule-message", {"messages": []})
        assert status == 401, reply.application_properties
        assert client.request("guarded", "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(1)})[0] == 204
        with pytest.raises(Refused, match="'Send' claim"):
            client.sender("guarded")


def test_a_node_with_another_secret_is_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "HOLD_MS", 300)
    with CarriedBroker(tmp_path, QUEUES, real_time=True, secret=b"something else altogether") as pair, Raw(pair.port) as client:
        with pytest.raises(Refused, match="node 'b', which cannot be reached"):
            client.sender(pair.queue("plain"))
        told = [note for note in pair.notes if "cannot be reached" in note]
        assert len(told) == 1, "once, not with every attempt"
        assert "it does not know the same cluster secret" in told[0]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:5700"])
def test_an_address_at_which_a_node_is_not_is_named(pair: CarriedBroker, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(carrier, "HOLD_MS", 300)
    pair.owners.addresses["b"] = address
    with Raw(pair.port) as client, pytest.raises(Refused, match="node 'b', which cannot be reached"):
        client.sender(pair.queue("plain"))
    (told,) = [note for note in pair.notes if "cannot be reached" in note]
    assert f"at {address}, where it says it is (cluster.advertise): " in told


def test_a_node_of_another_version_is_told_so(pair: CarriedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "HOLD_MS", 300)
    monkeypatch.setattr(peers.ClusterNode, "_properties", lambda self: {amqp.Symbol(peers.VERSION_PROPERTY): 7})
    with Raw(pair.port) as client, pytest.raises(Refused, match="cannot be reached"):
        client.sender(pair.queue("plain"))
    assert any("speaks version 7 between nodes, this one 1" in note for note in pair.notes)


def test_the_peer_door_lets_nobody_in_who_does_not_know_the_secret(pair: CarriedBroker, tmp_path: Path) -> None:
    async def knock(sasl: amqp.SaslClient | None) -> amqp.Connection:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "b.sock"))
        engine = amqp.Connection(amqp.ConnectionHandler(), amqp.ConnectionConfig(hostname="tandem", sasl=sasl), False)
        engine.open()
        while not engine.closed and not engine.remote_open:
            writer.write(engine.bytes_to_send())
            data = await reader.read(65_536)
            if not data:
                engine.lost()
            engine.receive_bytes(data)
        writer.close()
        return engine

    for stranger in (None, amqp.SaslClient(), amqp.SaslClient("RootManageSharedAccessKey", "SAS_KEY_VALUE")):
        assert not pair.run(knock(stranger)).remote_open
    assert not pair.run(knock(amqp.SaslClient(secret=b"guess", nonce=bytes(32)))).remote_open
    assert not pair.run(knock(amqp.SaslClient(secret=SECRET, nonce=b"short"))).remote_open


def test_a_server_that_does_not_know_the_secret_learns_nothing() -> None:
    client = amqp.SaslClient(secret=SECRET, nonce=bytes(32))
    assert client.answer(bytes(64)) is None
    assert client.answer(b"") is None
