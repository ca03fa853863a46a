"""Receivers and senders of the official SDK for a path as operators write it: queue, topic/subscription, with or without a sub-queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceiver

Entity = Annotated[str, typer.Argument(help="A queue, or topic/Subscriptions/name.")]
DeadLetters = Annotated[bool, typer.Option("--dead-letters", "-d", help="Of its dead-letter queue.")]
Session = Annotated[str | None, typer.Option("--session", help="Id of a session; `next` takes the next that is free.")]

_DEAD_LETTER: Final = "$deadletterqueue"
_TRANSFER_DEAD_LETTER: Final = ("$transfer", _DEAD_LETTER)
NEXT_SESSION: Final = "next"


@dataclass(frozen=True, slots=True)
class Path:
    entity: str
    subscription: str | None
    sub_queue: str | None

    @classmethod
    def parse(cls, text: str, dead_letters: bool = False) -> Path:
        parts = text.strip("/").split("/")
        sub_queue = "deadletter" if dead_letters else None
        if len(parts) > 2 and tuple(part.casefold() for part in parts[-2:]) == _TRANSFER_DEAD_LETTER:
            parts, sub_queue = parts[:-2], "transferdeadletter"
        elif parts[-1].casefold() == _DEAD_LETTER:
            parts, sub_queue = parts[:-1], "deadletter"
        if not all(parts) or not parts:
            raise ConfigurationError(f"'{text}' is not the path of an entity")
        if len(parts) > 2 and parts[-2].casefold() == "subscriptions":
            return cls("/".join(parts[:-2]), parts[-1], sub_queue)
        return cls("/".join(parts), None, sub_queue)

    @property
    def address(self) -> str:
        """Without the sub-queue."""
        return self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"

    @property
    def whole(self) -> str:
        """With the sub-queue."""
        return (
            self.address
            + {None: "", "deadletter": "/$DeadLetterQueue", "transferdeadletter": "/$Transfer/$DeadLetterQueue"}[self.sub_queue]
        )

    @property
    def home(self) -> str:
        """Where messages for it are sent to."""
        return self.entity


def receiver(client: ServiceBusClient, path: Path, session: str | None = None, **options: Any) -> ServiceBusReceiver:
    from azure.servicebus import NEXT_AVAILABLE_SESSION

    if session is not None:
        options["session_id"] = NEXT_AVAILABLE_SESSION if session == NEXT_SESSION else session
    if path.sub_queue is not None:
        options["sub_queue"] = path.sub_queue
    if path.subscription is not None:
        return client.get_subscription_receiver(path.entity, path.subscription, **options)
    return client.get_queue_receiver(path.entity, **options)
