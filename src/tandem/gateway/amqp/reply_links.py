"""The links on which a connection wants its answers: a request on one link is answered on another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, SenderLink

if TYPE_CHECKING:
    from tandem.amqp.session import Session


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
    """By node, name, session and address."""

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

    def of_node(self, node: str) -> list[SenderLink]:
        return [link for link, keys in self._keys.items() if (node,) in keys]

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
