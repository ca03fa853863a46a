"""What the engine tells its owner: base classes whose methods do nothing, called synchronously from `receive_bytes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from tandem.amqp.errors import AmqpError
from tandem.amqp.outcomes import Outcome

if TYPE_CHECKING:
    from tandem.amqp.connection import Connection
    from tandem.amqp.link import Delivery, Link, ReceiverLink, SenderLink
    from tandem.amqp.session import Session


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionHandler:
    def on_sasl_plain(self, user: str, password: str) -> bool:
        """Server: may this user in?"""
        return False

    def on_sasl(self, mechanism: str, hostname: str) -> bool:
        """Server: may a client of this mechanism (any but PLAIN) in?"""
        return True

    def on_open(self, connection: Connection) -> None:
        """The peer's open is here. A server's own open follows when this returns, unless it was closed."""

    def on_begin(self, session: Session) -> None:
        """A session is mapped: begun by the peer (and answered), or ours and now answered."""

    def on_attach(self, link: Link) -> None:
        """The peer attached a link: answer now or later with `link.accept()` or `link.refuse()`."""

    def on_end(self, session: Session) -> None:
        """The session is gone; its links were told first."""

    def on_close(self, connection: Connection, error: AmqpError | None) -> None:
        """The connection is gone, once; sessions and links were told first. `error` is whoever's ended it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LinkHandler:
    def on_attached(self, link: Link) -> None:
        """A link we attached was accepted. A refused one goes straight to `on_detach`."""

    def on_transfer(
        self,
        link: ReceiverLink,
        delivery_id: int,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: bytes | None,
    ) -> None:
        """A whole delivery."""

    def on_oversize(self, link: ReceiverLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        """A delivery larger than the link allows ended; its bytes were not kept."""

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        """The receiver's word on consecutive deliveries of this link. Settled ones are forgotten already."""

    def on_settled_incoming(self, link: ReceiverLink, first: int, last: int, outcome: Outcome, settled: bool) -> None:
        """The sender's word on deliveries this link received (receiver-settle-mode second)."""

    def on_flow(self, link: Link) -> None:
        """Credit, drain or the session window changed for the better."""

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        """The link is gone: once per link, also when its session or connection went, also in answer to our own detach."""
