"""Links that trace: which spans there are, when they end, and that messages and answers are what they are without."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.amqp.message import DATA, encode_message
from tandem.amqp.outcomes import ACCEPTED_CODE, MODIFIED_CODE, REJECTED_CODE, RELEASED_CODE, Outcome
from tandem.gateway.amqp.sending import BATCH_FORMAT
from tandem.gateway.amqp.traced import TracedConsumer, TracedReceiving, TracedSending
from tandem.tracing import MessageSpans
from tests.gateway.amqp.connected import Connected, outcomes, payload

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorder(MessageSpans):
    """Writes spans down instead of sending them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[tuple[str, str]] = []

    def start(self, name: str, parent: str, entity: str, start_ns: int | None = None, **attributes: str | int) -> Any:
        assert (parent, entity) == (PARENT, "q")
        self.begun.append(name)
        return f"{name} {attributes.get('settlement', '')}".strip()

    def end(self, span: Any, error: BaseException | None = None, end_ns: int | None = None) -> None:
        self.ended.append((span, "" if error is None else str(getattr(error, "condition", error))))


def traced(text: str, **properties: object) -> bytes:
    return encode_message(properties={"message-id": text}, application_properties=properties, body=[text.encode()], body_kind=DATA)


def connected() -> tuple[Connected, Recorder]:
    both = Connected()
    recorder = Recorder()
    both.context.tracing = recorder
    return both, recorder


def test_accept_ends_when_the_disk_knows_and_only_messages_with_a_context_are_traced() -> None:
    both, recorder = connected()
    link, notes = both.sender()
    assert any(type(one.handler) is TracedSending for one in both.peer.links)
    link.send(traced("a", traceparent=PARENT), b"a", False, None)
    link.send(payload("b"), b"b", False, None)
    link.send(traced("c", traceparent="nonsense"), b"c", False, None)
    batch = encode_message(body=[traced("d", **{"Diagnostic-Id": PARENT}), payload("e")], body_kind=DATA)
    link.send(batch, b"d", False, None, BATCH_FORMAT)
    both.exchange()
    assert (recorder.begun, recorder.ended) == (["accept", "accept"], [])
    both.settle()
    assert recorder.ended == [("accept", ""), ("accept", "")]
    assert {code for _, code, _ in outcomes(notes)} == {ACCEPTED_CODE} and both.desk.texts() == ["a", "b", "c", "d", "e"]


def test_a_refusal_ends_the_span_with_its_reason() -> None:
    both, recorder = connected()
    link, notes = both.sender()
    both.context.draining = True
    link.send(traced("a", traceparent=PARENT), b"a", False, None)
    link.send(b"\x00\x53\x75", b"b", False, None, BATCH_FORMAT)
    both.settle()
    assert recorder.ended == [("accept", "com.microsoft:server-busy")]
    assert {code for _, code, _ in outcomes(notes)} == {REJECTED_CODE}


def test_deliver_and_settle_are_of_the_trace_the_message_carries() -> None:
    both, recorder = connected()
    link, _ = both.sender()
    link.send(traced("a", traceparent=PARENT), b"a", False, None)
    link.send(payload("b"), b"b", False, None)
    both.settle()
    _, received = both.receiver()
    both.settle()
    handlers = [one.handler for one in both.peer.links]
    assert any(isinstance(one, TracedReceiving) and isinstance(one.consumer, TracedConsumer) for one in handlers)
    assert recorder.ended == [("accept", ""), ("deliver", "")]
    for delivery_id, *_ in received.transfers:
        both.say(delivery_id, Outcome(ACCEPTED_CODE))
    both.exchange()
    assert recorder.begun == ["accept", "deliver", "settle"] and len(recorder.ended) == 2
    both.settle()
    assert recorder.ended[2:] == [("settle complete", "")]
    assert both.desk.texts() == []


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (MODIFIED_CODE, "abandon"),
        (MODIFIED_CODE, "defer"),
        (REJECTED_CODE, "dead-letter"),
        (RELEASED_CODE, "release"),
    ],
)
def test_a_settlement_is_traced_by_its_name(code: int, how: str) -> None:
    outcome = Outcome(code)
    outcome.undeliverable_here = how == "defer"
    both, recorder = connected()
    link, _ = both.sender()
    link.send(traced("a", traceparent=PARENT), b"a", False, None)
    both.settle()
    _, received = both.receiver(credit=1)
    both.settle()
    both.say(received.transfers[0][0], outcome)
    both.settle()
    assert (f"settle {how}", "") in recorder.ended
