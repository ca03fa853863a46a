"""The coordinator link of a connection: transactions are declared and discharged on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.message import VALUE, decode_message
from tandem.amqp.outcomes import ACCEPTED, encode_declared, encode_rejected
from tandem.amqp.types import Described
from tandem.gateway.amqp.carried_transactions import SHARE
from tandem.gateway.amqp.joint_transactions import CoordinatorAnswer, NodeShares
from tandem.model.errors import BusError, DecodeFailed, NotImplementedByBroker

if TYPE_CHECKING:
    from tandem.amqp.link import Link, ReceiverLink
    from tandem.amqp.session import Session
    from tandem.gateway.amqp.connection import PeerConnection

_DECLARE: Final = (0x31, "amqp:declare:list")
_DISCHARGE: Final = (0x32, "amqp:discharge:list")
_SHARE: Final = -1
"""Of nodes among each other."""


class CoordinatorLink(LinkHandler):
    """The link on which a client declares and discharges."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection
        self._shares = NodeShares(connection)

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        answer = _Answer(self._connection, link.session, delivery_id, settled)
        try:
            code, fields = _request(payload)
            if code == _DECLARE[0]:
                answer.send(encode_declared(self._connection.transactions.declare(link)))
                return
            if code == _SHARE:
                if self._connection.may_carry:
                    raise NotImplementedByBroker(
                        "The coordinator knows declare and discharge; shares are what nodes have among each other."
                    )
                self._shares.answer(fields, answer)
                return
            id_, fail = _discharge_fields(fields)
            self._connection.transactions.discharge(id_, fail, answer)
        except BusError as error:
            answer.done(error)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._shares.gone()
        self._connection.transactions.coordinator_gone(link)
        self._connection.link_gone(link)


class _Answer(CoordinatorAnswer):
    """The word on a declare or discharge."""

    __slots__ = ("_connection", "_delivery_id", "_session", "_settled")

    def __init__(self, connection: PeerConnection, session: Session, delivery_id: int, settled: bool) -> None:
        self._connection = connection
        self._session = session
        self._delivery_id = delivery_id
        self._settled = settled

    def send(self, state: bytes) -> None:
        if not self._settled and not self._connection.gone:
            self._connection.send_disposition(self._session, True, self._delivery_id, self._delivery_id, state, "")

    def done(self, error: BaseException | None) -> None:
        self.send(ACCEPTED if error is None else encode_rejected(self._connection.error_of(error, "")))


def _request(payload: bytes) -> tuple[int, list[object]]:
    try:
        message = decode_message(payload)
        body = message.body
    except DecodeError as error:
        raise DecodeFailed(f"The request to the coordinator could not be decoded: {error.description}.") from error
    if message.body_kind != VALUE or not isinstance(body, Described) or not isinstance(body.value, list):
        raise DecodeFailed("A message to the coordinator holds one value: declare or discharge.")
    if body.descriptor in _DECLARE:
        return _DECLARE[0], body.value
    if body.descriptor in _DISCHARGE:
        return _DISCHARGE[0], body.value
    if body.descriptor == SHARE:
        return _SHARE, body.value
    raise NotImplementedByBroker(f"The coordinator knows declare and discharge, not {body.descriptor!r}.")


def _discharge_fields(fields: list[object]) -> tuple[bytes, bool]:
    id_ = fields[0] if fields else None
    if not isinstance(id_, bytes):
        raise DecodeFailed("A discharge names its transaction as binary.")
    return id_, len(fields) > 1 and fields[1] is True
