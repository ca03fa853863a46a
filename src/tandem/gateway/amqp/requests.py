"""NodeRequest and response over a pair of links, as `$cbs` and `$management` speak it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, ReceiverLink
from tandem.amqp.message import VALUE, decode_message, encode_message
from tandem.amqp.outcomes import ACCEPTED, encode_rejected
from tandem.model.errors import ArgumentRefused, BusError, DecodeFailed, MessageSizeExceeded, NotImplementedByBroker, QuotaExceeded

if TYPE_CHECKING:
    from tandem.gateway.amqp.connection import PeerConnection

Reply = tuple[int, dict[object, object]]
"""Status and body of an answer."""
_T = TypeVar("_T")


def is_of(value: object, kind: type[_T]) -> TypeGuard[_T]:
    """Python takes true for the number 1; a request that says true means no number."""
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def need(body: dict[object, object], name: str, kind: type[_T]) -> _T:
    """What a request must say."""
    value = body.get(name)
    if not is_of(value, kind):
        raise ArgumentRefused(f"The request needs '{name}' as {kind.__name__}, found {type(value).__name__}.")
    return value


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One request, decoded."""

    link: ReceiverLink
    message_id: object
    reply_to: str | None
    properties: dict[object, object]
    """Application properties."""
    body: object


class Requests(LinkHandler):
    """Takes requests on one link; subclasses answer them."""

    def __init__(self, connection: PeerConnection, node: str) -> None:
        self.connection = connection
        self.node: str = node

    def handle(self, request: NodeRequest) -> None:
        """Answer now or later with `reply`."""

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        if state is not None and not settled:
            # Done outside of the transaction it would be a lie.
            unfit = NotImplementedByBroker("Requests cannot be part of a transaction; send or settle on a link.")
            self._reject(link, delivery_id, settled, unfit)
            return
        try:
            message = decode_message(payload)
            body = message.body
        except DecodeError as error:
            self._reject(link, delivery_id, settled, DecodeFailed(f"The request could not be decoded: {error.description}."))
            return
        if not settled:
            self.connection.send_disposition(link.session, True, delivery_id, delivery_id, ACCEPTED, "")
        properties = message.properties
        reply_to = properties.get("reply-to")
        self.handle(
            NodeRequest(
                link,
                properties.get("message-id"),
                reply_to if isinstance(reply_to, str) else None,
                message.application_properties,
                body,
            )
        )

    def on_oversize(self, link: ReceiverLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        large = MessageSizeExceeded(f"The request exceeds the limit of {link.max_message_size} bytes of '{self.node}'.")
        self._reject(link, delivery_id, settled, large)

    def _reject(self, link: ReceiverLink, delivery_id: int, settled: bool, error: BusError) -> None:
        if not settled:
            state = encode_rejected(self.connection.error_of(error, self.node))
            self.connection.send_disposition(link.session, True, delivery_id, delivery_id, state, "")

    def reply(self, request: NodeRequest, application_properties: dict[object, object], body: object) -> None:
        """The correlation id has the type of the request's message id. Sent settled, whatever credit is left."""
        if self.connection.gone:
            return
        link = self.connection.replies.find(self.node, request.link.session, request.reply_to)
        if link is None:
            self.connection.context.warn(f"no link to answer a request of {self.connection.peer} to {self.node} on")
            return
        if len(link.session.waiting) > self.connection.context.limits.management_requests_in_flight_max:
            # Its window stays shut while it goes on asking: what it does not take in is not kept without end.
            full = QuotaExceeded(f"{len(link.session.waiting)} answers wait for the session's incoming window to open.")
            link.detach(self.connection.error_of(full, self.node))
            self.connection.touch()
            return
        payload = encode_message(
            properties={"correlation-id": request.message_id, "to": request.reply_to},
            application_properties=application_properties,
            body=body,
            body_kind=VALUE,
        )
        # The request was accepted before it was answered, and has to be so on the wire: the C client (uamqp) takes an answer to a request
        # that it does not know to have arrived for a failure.
        self.connection.engine.answers.flush()
        link.send(payload, b"", True, None)
        self.connection.touch()

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        """Nothing is kept per link."""
