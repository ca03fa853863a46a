"""The client on our own engine says what happened, and when it cannot know, it says that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tandem import amqp
from tandem.simulator.amqp_client import NEXT_SESSION, AmqpClient, Gone, PeerRefused
from tandem.testing import Bus


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as made:
        made.create_queue("orders")
        made.create_queue("sessions", requires_session=True)
        yield made


def message(text: str, **properties: object) -> bytes:
    return amqp.encode_message(properties={"message-id": text, **properties}, body=[text.encode()])


def text(payload: bytes) -> str:
    [body] = amqp.decode_message(payload).body  # type: ignore[misc, has-type]
    return bytes(body).decode()


async def test_sends_are_pipelined_and_settlements_are_confirmed_in_any_order(bus: Bus) -> None:
    client = await AmqpClient.connect(bus.port)
    sender = await client.sender("orders")
    await asyncio.gather(*(sender.send(message(f"m{n}")) for n in range(100)))
    await sender.send_batch([message("b0"), message("b1")])
    receiver = await client.receiver("orders", credit=10)
    found = [await receiver.get() for _ in range(102)]
    assert [text(one.payload) for one in found] == [f"m{n}" for n in range(100)] + ["b0", "b1"]
    await asyncio.gather(*(receiver.settle(one) for one in reversed(found)))
    assert bus.counts("orders").total == 0
    await client.close()


async def test_receive_and_delete_takes_what_was_granted(bus: Bus) -> None:
    client = await AmqpClient.connect(bus.port)
    sender = await client.sender("orders")
    await asyncio.gather(*(sender.send(message(f"m{n}")) for n in range(5)))
    receiver = await client.receiver("orders", delete=True)
    receiver.grant(2)
    assert [text((await receiver.get()).payload) for _ in range(2)] == ["m0", "m1"]
    assert bus.counts("orders").total == 3
    await client.close()


async def test_next_session_and_its_state(bus: Bus) -> None:
    client = await AmqpClient.connect(bus.port)
    await (await client.sender("sessions")).send(message("m", **{"group-id": "blue"}))
    receiver = await client.receiver("sessions", session=NEXT_SESSION)
    assert receiver.link.source is not None
    assert receiver.link.source.filter["com.microsoft:session-filter"] == "blue"
    await client.request("sessions", "com.microsoft:set-session-state", {"session-id": "blue", "session-state": b"half"})
    assert await client.request("sessions", "com.microsoft:get-session-state", {"session-id": "blue"}) == (200, {"session-state": b"half"})
    await receiver.detach()
    with pytest.raises(PeerRefused, match="session-lock-lost"):
        await client.request("sessions", "com.microsoft:get-session-state", {"session-id": "blue"})
    await client.close()


async def test_refusals_carry_their_condition(bus: Bus) -> None:
    client = await AmqpClient.connect(bus.port)
    with pytest.raises(PeerRefused) as missing:
        await client.sender("nowhere")
    assert missing.value.condition == "amqp:not-found"
    with pytest.raises(PeerRefused) as without_session:
        await (await client.sender("sessions")).send(message("m"))
    assert without_session.value.condition == "amqp:not-allowed"
    with pytest.raises((PeerRefused, Gone)):
        await AmqpClient.connect(bus.port, password="wrong")


async def test_answers_that_can_no_longer_come_fail_as_unknown(bus: Bus) -> None:
    client = await AmqpClient.connect(bus.port)
    sender = await client.sender("orders")
    receiver = await client.receiver("orders", credit=1)
    answer = sender.send(message("m"))
    client.abort()
    with pytest.raises(Gone):
        await answer
    with pytest.raises(Gone):
        await receiver.get()
    with pytest.raises(Gone):
        await sender.send(message("m"))
    with pytest.raises(Gone):
        await client.sender("orders")
    bus.stop()
    with pytest.raises(Gone):
        await AmqpClient.connect(bus.port)
