"""Request and response over a pair of links, as `$cbs` and `$management` speak it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, ReceiverLink, SenderLink
from tandem.amqp.message import VALUE, decode_message, encode_message
from tandem.amqp.outcomes import ACCEPTED, encode_rejected
from tandem.model.errors import ArgumentRefused, DecodeFailed, MessageSizeExceeded, NotImplementedByBroker, QuotaExceeded

if TYPE_CHECKING:
    from tandem.amqp.session import Session
    from tandem.gateway.amqp.connection import PeerConnection

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


class _Latest:
    """Links in the order in which they came, the latest that is still attached at hand, in whatever order they leave."""

    def __init__(self) -> None:
        self._links: list[SenderLink] = []
        self._left = 0

    def add(self, link: SenderLink) -> None:
        self._links.append(link)

    def one_left(self) -> None:
        """It is taken out together with others: half of the list at a time, so that leaving costs the same in any order."""
        self._left += 1
        if self._left * 2 > len(self._links):
            self._links = [link for link in self._links if link.attached]
            self._left = 0

    def get(self) -> SenderLink | None:
        links = self._links
        while links and not links[-1].attached:
            links.pop()
        return links[-1] if links else None


class ReplyLinks(LinkHandler):
    """The links on which this connection wants its answers: by node, name, session and address."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], _Latest] = {}
        self._keys: dict[SenderLink, list[tuple[object, ...]]] = {}

    def add(self, node: str, link: SenderLink) -> None:
        """An attached link."""
        target = link.target
        address = getattr(target, "address", None)
        keys: list[tuple[object, ...]] = [
            (node, link.name),
            (node, link.session, address if isinstance(address, str) else None),
            (node, link.session),
            (node,),
        ]
        self._keys[link] = keys
        for key in keys:
            self._known.setdefault(key, _Latest()).add(link)

    def find(self, node: str, session: Session, reply_to: str | None) -> SenderLink | None:
        """Clients write the same reply-to for every link, or the link's name: what is closest wins."""
        keys: list[tuple[object, ...]] = [(node, session, reply_to), (node, session), (node,)]
        if reply_to is not None:
            keys.insert(0, (node, reply_to))
        for key in keys:
            latest = self._known.get(key)
            link = latest.get() if latest is not None else None
            if link is not None:
                return link
        return None

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        if not isinstance(link, SenderLink):
            return
        for key in self._keys.pop(link, ()):
            latest = self._known.get(key)
            if latest is not None:
                latest.one_left()
                if latest.get() is None:
                    del self._known[key]


class Requests(LinkHandler):
    """Takes requests on one link; subclasses answer them."""

    def __init__(self, client: PeerConnection) -> None:
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
            body = message.body
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
                body,
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
            self.client.context.log(f"no link to answer a request of {self.client.peer} to {self.node} on")
            return
        if len(link.session.waiting) > self.client.context.limits.management_requests_in_flight_max:
            # Its window stays shut while it goes on asking: what it does not take in is not kept without end.
            full = QuotaExceeded(f"{len(link.session.waiting)} answers wait for the session's incoming window to open.")
            link.detach(self.client.error_of(full, self.node))
            self.client.touch()
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
