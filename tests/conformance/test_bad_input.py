"""Whatever one connection says, it costs that connection an error and nobody else anything."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tandem import amqp
from tests.conformance import wire
from tests.conformance.house import ProcessBroker
from tests.conformance.raw import Raw, message, token_for
from tests.conformance.wire import ATTACH, BEGIN, CLOSE, DETACH, DISPOSITION, END, FLOW, NAMES, OPEN, TRANSFER, Wire, frame, performative

QUEUES = {"plain": 28, "sessions": 4, "roomy": 2}
MIB = 1_048_576


@pytest.fixture(scope="module")
def witness(broker: ProcessBroker) -> Iterator[Raw]:
    """A well-behaved connection that lives through the whole module."""
    with Raw(broker.port) as raw:
        yield raw


@pytest.fixture(scope="module")
def witness_queue(broker: ProcessBroker) -> str:
    return broker.queue("plain")


@pytest.fixture(autouse=True)
def others_are_unharmed(witness: Raw, witness_queue: str) -> Iterator[None]:
    """Around every test: the witness sends, receives and completes on the connection it has had from the start."""
    yield
    receiver = witness.receiver(witness_queue)
    witness.feed(witness_queue, "still", "here")
    for arrival in receiver.receive(2):
        assert receiver.settle(arrival, amqp.ACCEPTED).code == 0x24  # type: ignore[union-attr]
    receiver.link.detach()
    witness.until(lambda: receiver.end.gone)


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", range(7))
def test_garbage_at_any_stage_ends_the_connection(broker: ProcessBroker, witness_queue: str, stage: int) -> None:
    for seed in range(5):
        rude = Wire(broker.port, stage, witness_queue)
        rude.say(random.Random(seed).randbytes(5000))
        heard = rude.listen_to_the_end()
        if stage >= 3:
            assert wire.AMQP_HEADER in heard
        rude.close()


@pytest.mark.parametrize("stage", [3, 4, 5, 6])
def test_a_frame_over_the_limit_is_a_framing_error(broker: ProcessBroker, witness_queue: str, stage: int) -> None:
    rude = Wire(broker.port, stage, witness_queue)
    rude.say((65_537).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    error = rude.last_word()
    assert error is not None
    assert error.condition == "amqp:connection:framing-error"
    assert error.description == "frame of 65537 bytes; max-frame-size is 65536"


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "frame of 7 bytes; 8 is the least"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", "frame of 0 bytes; 8 is the least"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "data offset 1 does not lie in its frame"),
        (b"\x00\x00\x00\x08\xff\x00\x00\x00", "data offset 255 does not lie in its frame"),
        (b"\x00\x00\x00\x08\x02\x01\x00\x00", "frame of type 1 where an AMQP frame (0) was expected"),
        (b"\xff\xff\xff\xff\x02\x00\x00\x00", "frame of 4294967295 bytes; max-frame-size is 65536"),
    ],
)
def test_a_wrong_frame_header_is_named(broker: ProcessBroker, head: bytes, words: str) -> None:
    rude = Wire(broker.port, 5)
    rude.say(head)
    error = rude.last_word()
    assert error == amqp.AmqpError("amqp:connection:framing-error", words)


def test_truncated_frames_wait_for_the_rest_and_leave_nothing_behind(broker: ProcessBroker, witness_queue: str) -> None:
    whole = frame(performative(OPEN, wire.usual(OPEN, "")))
    waiting = [Wire(broker.port, 3) for _ in range(20)]
    for number, rude in enumerate(waiting):
        rude.say(whole[: 1 + number * 2])
    for rude in waiting[:10]:
        rude.close()
    for number, rude in list(enumerate(waiting))[10:]:
        rude.say(whole[1 + number * 2 :])
        rude.say(frame(performative(CLOSE, [])))
        assert rude.last_word() is None


def test_a_conversation_may_come_byte_by_byte(broker: ProcessBroker, witness_queue: str) -> None:
    slow = Wire(broker.port)
    slow.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    talk = wire.AMQP_HEADER + b"".join(frame(performative(code, wire.usual(code, witness_queue))) for code in (OPEN, BEGIN, END, CLOSE))
    for byte in talk:
        slow.say(bytes((byte,)))
    assert slow.last_word() is None


def test_a_million_empty_frames_cost_nothing(broker: ProcessBroker, witness: Raw, witness_queue: str) -> None:
    before = broker.resident_bytes()
    chatty = Wire(broker.port, 5)
    block = wire.EMPTY_FRAME * 10_000
    done = threading.Event()

    def chatter() -> None:
        for _ in range(100):
            chatty.say(block)
        chatty.say(frame(performative(CLOSE, [])))
        done.set()

    threading.Thread(target=chatter, daemon=True).start()
    rounds = 0
    while not done.is_set():
        witness.feed(witness_queue, "meanwhile")
        rounds += 1
    assert chatty.last_word() is None
    assert rounds > 0
    assert broker.resident_bytes() - before < 16 * MIB
    receiver = witness.receiver(witness_queue, delete=True)
    assert len(receiver.drain(rounds + 1)) == rounds


# -- performatives -----------------------------------------------------------------------------------------------------

WRONG = {
    "list": b"\x45",
    "described": b"\x00\x53\x28\x45",
    "map": b"\xc1\x01\x00",
    "double": b"\x82" + bytes(8),
    "cut string": b"\xb1\xff\xff\xff\xff",
    "no type": b"\x01",
}
LEGAL = {(ATTACH, 5, "described"), (ATTACH, 13, "map"), (OPEN, 9, "map"), (BEGIN, 7, "map"), (FLOW, 10, "map")}
"""By performative, position and kind: no mistake there."""
SKIPPED = {(ATTACH, 7), (TRANSFER, 7)}
"""`unsettled` is of no interest to a broker that resumes nothing; the state of a transfer concerns its delivery alone."""
STAGE = {OPEN: 3, BEGIN: 4, ATTACH: 5, FLOW: 6, TRANSFER: 6, DISPOSITION: 6, DETACH: 6, END: 6, CLOSE: 6}


@pytest.mark.parametrize("code", list(STAGE), ids=list(NAMES.values()))
def test_wrong_types_in_every_field_of_every_performative_are_decode_errors(broker: ProcessBroker, witness_queue: str, code: int) -> None:
    fields = wire.usual(code, witness_queue)
    for position in range(len(fields)):
        for kind, value in WRONG.items():
            if (code, position, kind) in LEGAL or ((code, position) in SKIPPED and kind not in ("cut string", "no type")):
                continue
            rude = Wire(broker.port, STAGE[code], witness_queue)
            rude.say(frame(performative(code, [*fields[:position], value, *fields[position + 1 :]]) + (b"x" if code == TRANSFER else b"")))
            error = rude.last_word()
            rude.close()
            assert error is not None, (position, kind)
            assert error.condition in ("amqp:decode-error", "amqp:invalid-field"), (position, kind, error)
            assert error.description, (position, kind)


def test_a_state_of_a_transfer_that_is_no_state_costs_the_delivery(broker: ProcessBroker, witness_queue: str) -> None:
    for kind in ("list", "described", "map", "double"):
        rude = Wire(broker.port, 6, witness_queue)
        fields = wire.usual(TRANSFER, witness_queue)
        fields[7] = WRONG[kind]
        rude.say(frame(performative(TRANSFER, fields) + message("x")))
        rude.say(frame(performative(CLOSE, [])))
        assert rude.last_word() is None
        assert b"amqp:decode-error" in rude.heard, kind


@pytest.mark.parametrize("code", [OPEN, BEGIN, ATTACH, TRANSFER, DISPOSITION, DETACH, FLOW], ids=lambda code: NAMES[code])
def test_a_missing_mandatory_field_is_named(broker: ProcessBroker, witness_queue: str, code: int) -> None:
    fields = wire.usual(code, witness_queue)
    position = {OPEN: 0, BEGIN: 1, ATTACH: 0, TRANSFER: 0, DISPOSITION: 1, DETACH: 0, FLOW: 1}[code]
    for shorter in (fields[:position], [*fields[:position], wire.NULL, *fields[position + 1 :]]):
        rude = Wire(broker.port, STAGE[code], witness_queue)
        rude.say(frame(performative(code, shorter)))
        error = rude.last_word()
        assert error is not None
        assert error.condition in ("amqp:decode-error", "amqp:invalid-field")
        assert NAMES[code] in (error.description or "")


@pytest.mark.parametrize(
    "descriptor", [b"\x53\x99", b"\x53\x0f", b"\x53\x24", b"\x80" + b"\xff" * 8, b"\xa3\x0famqp:dance:list", b"\x40", b"\x45"]
)
def test_an_unknown_descriptor_ends_the_connection(broker: ProcessBroker, witness_queue: str, descriptor: bytes) -> None:
    rude = Wire(broker.port, 6, witness_queue)
    rude.say(frame(b"\x00" + descriptor + b"\x45"))
    error = rude.last_word()
    assert error is not None
    assert error.condition == "amqp:decode-error"


@pytest.mark.parametrize(
    ("code", "fields", "condition"),
    [
        (OPEN, None, "amqp:illegal-state"),
        (BEGIN, None, "amqp:not-allowed"),
        (BEGIN, [b"\x60\x00\x07", wire.u(0), wire.u(1), wire.u(1)], "amqp:not-allowed"),
    ],
    ids=["open twice", "begin on a channel in use", "begin that answers nobody"],
)
def test_performatives_out_of_place_end_the_connection(
    broker: ProcessBroker, witness_queue: str, code: int, fields: list[bytes] | None, condition: str
) -> None:
    rude = Wire(broker.port, 6, witness_queue)
    rude.say(frame(performative(code, fields or wire.usual(code, witness_queue))))
    error = rude.last_word()
    assert error is not None
    assert error.condition == condition


@pytest.mark.parametrize("code", [BEGIN, ATTACH, TRANSFER, FLOW, DISPOSITION, DETACH, END], ids=lambda code: NAMES[code])
def test_nothing_comes_before_open(broker: ProcessBroker, witness_queue: str, code: int) -> None:
    rude = Wire(broker.port, 3)
    rude.say(frame(performative(code, wire.usual(code, witness_queue))))
    error = rude.last_word()
    assert error == amqp.AmqpError("amqp:illegal-state", f"{NAMES[code]} before open")


@pytest.mark.parametrize("channel", [1, 255, 256, 65535])
def test_a_channel_without_a_session_is_an_error(broker: ProcessBroker, witness_queue: str, channel: int) -> None:
    rude = Wire(broker.port, 5)
    rude.say(frame(performative(ATTACH, wire.usual(ATTACH, witness_queue)), channel))
    error = rude.last_word()
    assert error is not None
    assert error.condition == ("amqp:connection:framing-error" if channel > 255 else "amqp:not-allowed")


def test_handles_that_lead_nowhere_end_the_session_alone(broker: ProcessBroker, witness_queue: str) -> None:
    for code in (TRANSFER, FLOW, DETACH):
        rude = Wire(broker.port, 5)
        fields = wire.usual(code, witness_queue)
        fields[4 if code == FLOW else 0] = wire.u(9)
        rude.say(frame(performative(code, fields)))
        rude.say(frame(performative(BEGIN, wire.usual(BEGIN, "")), 1))
        rude.say(frame(performative(CLOSE, [])))
        assert rude.last_word() is None
        assert b"amqp:session:unattached-handle" in rude.heard


# -- those who do not listen -------------------------------------------------------------------------------------------


@contextmanager
def deaf(broker: ProcessBroker) -> Iterator[Raw]:
    """A connection whose receive buffer is tiny and that never reads once `mute` is set."""
    with Raw(broker.port) as raw:
        raw.until(lambda: raw.engine.remote_open)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield raw


def peak_growth(broker: ProcessBroker, seconds: float) -> int:
    start = most = broker.resident_bytes()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        most = max(most, broker.resident_bytes())
        time.sleep(0.02)
    return most - start


@contextmanager
def slow_disk(broker: ProcessBroker, milliseconds: int) -> Iterator[None]:
    """Each sync takes so much longer; nothing is changed by 0."""
    url = f"http://localhost:{broker.port}/$tandem/faults"
    headers = {"Authorization": token_for(broker.port, "")}
    wish = json.dumps({"kind": "store-slow", "store": 0, "delay_ms": milliseconds}).encode()
    if milliseconds:
        urllib.request.urlopen(urllib.request.Request(url, wish, headers, method="POST"), timeout=20)
    yield
    if milliseconds:
        urllib.request.urlopen(urllib.request.Request(url, None, headers, method="DELETE"), timeout=20)


@pytest.mark.parametrize("delay_ms", [0, 1500], ids=["quick-disk", "slow-disk"])
@pytest.mark.parametrize("delete", [False, True], ids=["peek-lock", "receive-and-delete"])
@pytest.mark.parametrize("kind", ["plain", "sessions"])
def test_a_receiver_that_never_reads_costs_bounded_memory(
    broker: ProcessBroker, witness: Raw, kind: str, delete: bool, delay_ms: int
) -> None:
    """80 MB wait; the deaf receiver has credit for all of it, several times.

    On a slow disk what receive-and-delete has chosen waits in memory until the disk knows that it is gone: that has to have a bound too,
    and whether a disk is slow is not ours to choose.
    """
    queue = broker.queue(kind)
    body = "x" * 200_000
    options = {"session_id": "s"} if kind == "sessions" else {}
    for _ in range(20):
        witness.feed(queue, *[body] * 20, **options)
    with slow_disk(broker, delay_ms), deaf(broker) as raw:
        links = 1 if kind == "sessions" else 4
        for receiver in [raw.receiver(queue, delete=delete, **({"session": "s"} if options else {})) for _ in range(links)]:
            receiver.link.grant(1_000_000)
        raw.flush()
        assert peak_growth(broker, 2 + 2 * delay_ms / 1000) < 64 * MIB


def test_a_client_that_asks_and_never_reads_the_answers_costs_bounded_memory(broker: ProcessBroker, witness: Raw) -> None:
    queue = broker.queue("plain")
    witness.feed(queue, *["x" * 200_000] * 2)
    with deaf(broker) as raw:
        raw.request(queue, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(1)})
        sender, _ = raw._management[f"{queue}/$management"]
        wish = amqp.encode_message(
            properties={"message-id": "m"},
            application_properties={"operation": "com.microsoft:peek-message"},
            body={"from-sequence-number": 0, "message-count": amqp.Int(1)},
            body_kind=0x77,
        )
        start = broker.resident_bytes()
        raw.socket.settimeout(1)
        asked = 0
        try:
            for _ in range(1500):
                sender.start(wish)
                raw.flush()
                asked += 1
        except TimeoutError:
            pass  # the broker stopped reading: that is how it keeps its bounds
        assert peak_growth(broker, 1) + broker.resident_bytes() - start < 96 * MIB


def test_a_sender_that_never_reads_its_answers_costs_bounded_memory(broker: ProcessBroker, witness: Raw) -> None:
    queue = broker.queue("plain")
    with deaf(broker) as raw:
        sender = raw.sender(queue)
        start = broker.resident_bytes()
        raw.socket.settimeout(1)
        try:
            for _ in range(100):
                for _ in range(200):
                    sender.start(b"nonsense")
                raw.flush()
        except TimeoutError:
            pass
        assert broker.resident_bytes() - start < 48 * MIB


def test_a_delivery_that_never_ends_costs_bounded_memory(broker: ProcessBroker, witness_queue: str) -> None:
    rude = Wire(broker.port, 6, witness_queue)
    fields = wire.usual(TRANSFER, witness_queue)
    fields[5] = b"\x41"  # more
    part = frame(performative(TRANSFER, fields) + bytes(60_000))
    start = broker.resident_bytes()
    for _ in range(300):
        rude.say(part)
    assert peak_growth(broker, 0.5) + broker.resident_bytes() - start < 16 * MIB
    rude.close()


# -- locks that are not one's own --------------------------------------------------------------------------------------


def test_dispositions_for_deliveries_of_others_do_nothing(broker: ProcessBroker, witness: Raw) -> None:
    queue = broker.queue("plain")
    witness.feed(queue, "held")
    receiver = witness.receiver(queue)
    [held] = receiver.receive()
    with Raw(broker.port) as stranger:
        stranger.receiver(queue)
        stranger.session.send_disposition(True, held.delivery_id, held.delivery_id, True, amqp.ACCEPTED)
        stranger.session.send_disposition(True, 0, 0x7FFFFFFE, False, amqp.ACCEPTED)
        stranger.session.send_disposition(True, 0x7FFFFFFE, 0x7FFFFFFF, True, amqp.encode_modified(True, True))
        stranger.quiet(0.2)
        assert not stranger.engine.closed
    assert receiver.settle(held, amqp.ACCEPTED).code == 0x24  # type: ignore[union-attr]


def test_settling_twice_on_the_link_is_answered_once(broker: ProcessBroker, witness: Raw) -> None:
    queue = broker.queue("plain")
    witness.feed(queue, "a", "b")
    receiver = witness.receiver(queue)
    first, _ = receiver.receive(2)
    assert receiver.settle(first, amqp.ACCEPTED).code == 0x24  # type: ignore[union-attr]
    receiver.link.session.send_disposition(True, first.delivery_id, first.delivery_id, False, amqp.encode_modified(True, False))
    witness.quiet(0.1)
    assert receiver.end.outcomes == {}
    with Raw(broker.port) as other:
        status, reply = other.request(queue, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(9)})
        assert status == 200
        assert len(reply.body["messages"]) == 1  # type: ignore[index]


@pytest.mark.parametrize(
    "state",
    [b"\x00\x53\x33\xc0\x04\x01\xa0\x01t", b"\x00\x53\x23\xc0\x05\x02\x52\x01\x53\x01", b""],
    ids=["declared", "received", "none"],
)
def test_states_that_are_no_outcomes_leave_the_lock_where_it_is(broker: ProcessBroker, witness: Raw, state: bytes) -> None:
    queue = broker.queue("plain")
    witness.feed(queue, "a")
    receiver = witness.receiver(queue)
    [held] = receiver.receive()
    receiver.link.session.send_disposition(True, held.delivery_id, held.delivery_id, False, state)
    witness.quiet(0.1)
    assert receiver.settle(held, amqp.ACCEPTED).code == 0x24  # type: ignore[union-attr]


def test_a_flood_of_links_is_refused_without_harm(broker: ProcessBroker, witness_queue: str) -> None:
    rude = Wire(broker.port, 5)
    flood: list[bytes] = []
    for handle in range(257):
        fields = wire.usual(ATTACH, witness_queue)
        fields[0], fields[1] = wire.s(f"link {handle}"), wire.u(handle)
        flood.append(frame(performative(ATTACH, fields)))
    rude.say(b"".join(flood))
    assert rude.last_word() == amqp.AmqpError("amqp:connection:framing-error", "attach: handle 256 is above handle-max 255")


def test_a_flood_of_sessions_is_refused_without_harm(broker: ProcessBroker) -> None:
    rude = Wire(broker.port, 4)
    rude.say(b"".join(frame(performative(BEGIN, wire.usual(BEGIN, "")), channel) for channel in range(257)))
    assert rude.last_word() == amqp.AmqpError("amqp:connection:framing-error", "begin: channel 256 is above channel-max 255")


def test_bad_messages_among_good_ones_cost_only_themselves(broker: ProcessBroker, witness: Raw) -> None:
    queue = broker.queue("plain")
    sender = witness.sender(queue)
    ids = [sender.start(message(str(n)) if n % 3 else b"\x00\x53\x75\xa0\xff") for n in range(300)]
    witness.until(lambda: all(one in sender.end.outcomes for one in ids))
    codes = [sender.end.outcomes[one].code for one in ids]
    assert codes == [0x24 if n % 3 else 0x25 for n in range(300)]
    assert [a.text for a in witness.receiver(queue).drain(400)] == [str(n) for n in range(300) if n % 3]
