"""A client that speaks transactions: declares, sends and settles in them, discharges."""

from __future__ import annotations

import itertools
from typing import Any

from tandem import amqp
from tandem.amqp.encoder import FALSE, NULL, TRUE, described_list, encode_binary, encode_uint
from tandem.amqp.outcomes import ACCEPTED
from tests.conformance.raw import Arrival, End, Raw, Receiver, Refused, Sender

DECLARED, TRANSACTIONAL, REJECTED = 0x33, 0x34, 0x25


class Coordinator:
    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.end = End()
        self._tags = itertools.count()
        target = amqp.Coordinator(["amqp:local-transactions"])
        self.link = raw.session.attach_sender("coordinator", amqp.Terminus("here"), target, self.end)
        raw.until(lambda: self.end.attached or self.end.gone)
        if not self.end.attached:
            raise Refused(self.end.error)

    def request(self, body: object) -> amqp.Outcome:
        payload = amqp.encode_message(body=body, body_kind=0x77)
        delivery_id = self.link.send(payload, next(self._tags).to_bytes(4, "big"), False, None)
        self.raw.until(lambda: delivery_id in self.end.outcomes or self.end.gone)
        if delivery_id not in self.end.outcomes:
            raise Refused(self.end.error)
        outcome = self.end.outcomes[delivery_id]
        if outcome.code == REJECTED:
            raise Refused(outcome.error)
        return outcome

    def declare(self) -> bytes:
        outcome = self.request(amqp.Described(amqp.ULong(0x31), [None]))
        assert outcome.code == DECLARED and outcome.txn_id
        return outcome.txn_id

    def discharge(self, transaction: bytes, fail: bool = False) -> None:
        self.request(amqp.Described(amqp.ULong(0x32), [transaction, fail]))

    def start_discharge(self, transaction: bytes) -> None:
        """Without waiting for the answer."""
        payload = amqp.encode_message(body=amqp.Described(amqp.ULong(0x32), [transaction, False]), body_kind=0x77)
        self.link.send(payload, next(self._tags).to_bytes(4, "big"), False, None)
        self.raw.flush()


def transactional_transfer(
    link: Any, transaction: bytes, payload: bytes, context: object, settled: bool = False, message_format: int = 0
) -> int:
    """Queue one transfer with a transactional state, which our own client engine has no call for; its delivery id."""
    session = link.session
    delivery_id: int = session.next_delivery_id
    session.next_delivery_id += 1
    session.next_outgoing_id += 1
    session.window -= 1
    link.credit -= 1
    link.delivery_count += 1
    tag = delivery_id.to_bytes(4, "big")
    if not settled:
        session.unsettled[delivery_id] = amqp.Delivery(delivery_id, link, context, tag)
    state = amqp.encode_transactional(transaction)
    fields = [encode_uint(link.handle), encode_uint(delivery_id), encode_binary(tag), encode_uint(message_format)]
    fields += [TRUE if settled else FALSE, FALSE, NULL, state]
    frame = described_list(0x14, fields) + payload
    session.out.append((len(frame) + 8).to_bytes(4, "big") + b"\x02\x00" + session.channel.to_bytes(2, "big") + frame)
    return delivery_id


def send_in(sender: Sender, transaction: bytes, payload: bytes, settled: bool = False, message_format: int = 0) -> amqp.Outcome | None:
    delivery_id = transactional_transfer(sender.link, transaction, payload, None, settled, message_format)
    if settled:
        sender.raw.flush()
        return None
    sender.raw.until(lambda: delivery_id in sender.end.outcomes or sender.end.gone)
    if delivery_id not in sender.end.outcomes:
        raise Refused(sender.end.error)
    outcome = sender.end.outcomes[delivery_id]
    if outcome.code == REJECTED:
        raise Refused(outcome.error)
    assert outcome.code == TRANSACTIONAL and outcome.txn_id == transaction
    return outcome


def settle_in(receiver: Receiver, transaction: bytes, arrival: Arrival, outcome: bytes = ACCEPTED) -> amqp.Outcome:
    answer = receiver.settle(arrival, amqp.encode_transactional(transaction, outcome))
    assert answer is not None
    if answer.code == REJECTED:
        raise Refused(answer.error)
    assert answer.code == TRANSACTIONAL and answer.txn_id == transaction
    return answer


def is_settled(receiver: Receiver, arrival: Arrival, code: int) -> None:
    """The broker says so, in its own time: this is what became of it."""
    receiver.raw.until(lambda: arrival.delivery_id in receiver.end.settled)
    assert receiver.end.outcomes[arrival.delivery_id].code == code
