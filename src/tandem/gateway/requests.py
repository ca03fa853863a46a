"""Request and response over a pair of links, as `$cbs` and `$management` speak it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, ReceiverLink, SenderLink
from tandem.amqp.outcomes import ACCEPTED, encode_rejected
from tandem.amqp.sections import VALUE, decode_message, encode_message
from tandem.model.errors import ArgumentRefused, DecodeFailed, MessageSizeExceeded, NotImplementedByBroker

if TYPE_CHECKING:
    from tandem.amqp.session import Session
    from tandem.gateway.client import Client

Reply = tuple[int, dict[object, object]]
"""Status and body of an answer."""
_T = TypeVar("_T")


def need(body: dict[object, object], name: str, kind: type[_T]) -> _T:
    """What a request must say."""
    value = body.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ArgumentRefused(f"The request needs '{name}' as {kind.__name__}, found {type(value).__name__}.")
    return value


@dataclass(frozen=True, slots=True)
class Request:
    """One request, decoded."""

    link: ReceiverLink
    message_id: object
    reply_to: str | None
    properties: dict[object, object]
    """Application properties."""
    body: object


class ReplyLinks(LinkHandler):
    """The links on which this connection wants its answers, by node."""

    def __init__(self) -> None:
        self._by_node: dict[str, list[SenderLink]] = {}

    def add(self, node: str, link: SenderLink) -> None:
        self._by_node.setdefault(node, []).append(link)

    def find(self, node: str, session: Session, reply_to: str | None) -> SenderLink | None:
        """Clients write the same reply-to for every link, or the link's name: what is closest wins."""
        links = [link for link in self._by_node.get(node, []) if link.attached]
        for link in links:
            if reply_to is not None and link.name == reply_to:
                return link
        near = [link for link in links if link.session is session]
        for link in near:
            target = link.target
            if target is not None and getattr(target, "address", None) == reply_to:
                return link
        if near:
            return near[-1]
        return links[-1] if links else None

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        for links in self._by_node.values():
            if isinstance(link, SenderLink) and link in links:
                links.remove(link)


class Requests(LinkHandler):
    """Takes requests on one link; subclasses answer them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.replies: ReplyLinks = ReplyLinks()
        self.node: str = ""

    def handle(self, request: Request) -> None:
        """Answer now or later with `reply`."""

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        client = self.client
        client.touch()
        if state is not None and not settled:
            # Done outside of the transaction it would be a lie.
            unfit = NotImplementedByBroker("Requests cannot be part of a transaction; send or settle on a link.")
            answer = encode_rejected(client.error_of(unfit, self.node))
            link.session.send_disposition(True, delivery_id, delivery_id, True, answer)
            return
        try:
            message = decode_message(payload)
        except DecodeError as error:
            if not settled:
                refused = client.error_of(DecodeFailed(f"The request could not be decoded: {error.description}."), self.node)
                link.session.send_disposition(True, delivery_id, delivery_id, True, encode_rejected(refused))
            return
        if not settled:
            link.session.send_disposition(True, delivery_id, delivery_id, True, ACCEPTED)
        properties = message.properties
        reply_to = properties.get("reply-to")
        self.handle(
            Request(
                link,
                properties.get("message-id"),
                reply_to if isinstance(reply_to, str) else None,
                message.application_properties,
                message.body,
            )
        )

    def on_oversize(self, link: ReceiverLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        if not settled:
            large = MessageSizeExceeded(f"The request exceeds the limit of {link.max_message_size} bytes of '{self.node}'.")
            refused = self.client.error_of(large, self.node)
            link.session.send_disposition(True, delivery_id, delivery_id, True, encode_rejected(refused))
            self.client.touch()

    def reply(self, request: Request, application_properties: dict[object, object], body: object) -> None:
        """The correlation id has the type of the request's message id. Sent settled, whatever credit is left."""
        if self.client.gone:
            return
        link = self.replies.find(self.node, request.link.session, request.reply_to)
        if link is None:
            self.client.site.note(f"no link to answer a request of {self.client.peer} to {self.node} on")
            return
        payload = encode_message(
            properties={"correlation-id": request.message_id, "to": request.reply_to},
            application_properties=application_properties,
            body=body,
            body_kind=VALUE,
        )
        link.send(payload, b"", True, None)
        self.client.touch()

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        """Nothing is kept per link."""
