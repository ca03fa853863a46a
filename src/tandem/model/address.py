"""Entity paths: what a client may write to name a queue, a subscription, a sub-queue or its management node."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from urllib.parse import unquote

MANAGEMENT = "$management"
CBS = "$cbs"


class SubQueue(enum.Enum):
    """Which part of an entity an address names. The value is the number added to the entity's journal id."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


_SUFFIXES = (
    ("/$transfer/$deadletterqueue", SubQueue.TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", SubQueue.DEAD_LETTER),
)
_PATH_SUFFIX = {
    SubQueue.MAIN: "",
    SubQueue.DEAD_LETTER: "/$DeadLetterQueue",
    SubQueue.TRANSFER_DEAD_LETTER: "/$Transfer/$DeadLetterQueue",
}


@dataclass(frozen=True, slots=True)
class Address:
    """`entity` keeps the client's case; compare with `key`, which does not."""

    entity: str
    sub_queue: SubQueue = SubQueue.MAIN
    management: bool = False
    host: str = ""

    @property
    def key(self) -> str:
        return self.entity.casefold()

    @property
    def path(self) -> str:
        return self.entity + _PATH_SUFFIX[self.sub_queue] + ("/" + MANAGEMENT if self.management else "")

    @property
    def resource(self) -> str:
        """The path a token must cover: the management node of an entity belongs to the entity."""
        return self.entity + _PATH_SUFFIX[self.sub_queue]

    @property
    def topic_and_subscription(self) -> tuple[str, str] | None:
        """`topic/Subscriptions/name` taken apart, else None."""
        folded = self.entity.casefold()
        cut = folded.rfind("/subscriptions/")
        if cut <= 0 or cut + 15 >= len(folded):
            return None
        return self.entity[:cut], self.entity[cut + 15 :]


def parse(text: str) -> Address:
    """Read an address: a bare path, or a URI of any scheme (`sb`, `amqp`, `amqps`, `http`, `https`)."""
    host = ""
    scheme = text.find("://")
    if scheme > 0:
        rest = text[scheme + 3 :]
        host, _, text = rest.partition("/")
        text = unquote(text.partition("?")[0])
    path = text.strip("/")
    management = False
    if path.casefold() == MANAGEMENT:
        return Address("", management=True, host=host)
    if path.casefold().endswith("/" + MANAGEMENT):
        path = path[: -len(MANAGEMENT) - 1]
        management = True
    folded = path.casefold()
    for suffix, sub_queue in _SUFFIXES:
        if folded.endswith(suffix):
            return Address(path[: -len(suffix)], sub_queue, management, host)
    return Address(path, SubQueue.MAIN, management, host)
