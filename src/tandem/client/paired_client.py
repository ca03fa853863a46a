"""`pair` protects the senders of the application's own `ServiceBusClient`; `unpair` gives it back as it was."""

from __future__ import annotations

import weakref
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from tandem.client.pairing import PairedNamespaces

_PAIRS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Which pair a client's senders belong to."""


async def pair(client: ServiceBusClient, secondary: str | ServiceBusClient, **settings: Any) -> PairedNamespaces:
    """Pair, and let `get_queue_sender` and `get_topic_sender` of this very client return protected senders from now on.

    `settings` are those of `PairedNamespaces`. Senders made before stay as they were. `unpair`, `close` of the returned object, or
    closing the client ends it: senders given out are closed, and the client makes its own again.
    """
    check_unpaired(client)
    made = PairedNamespaces(client, secondary, **settings)
    await made.pair()
    made.ends_with_primary = True
    protect(client, made)
    made.when_closed(lambda: restore(client))
    return made


async def unpair(client: ServiceBusClient) -> None:
    """End what `pair` began. Nothing happens to a client that is not paired."""
    made = pair_of(client)
    if made is not None:
        await made.close()


def pair_of(client: Any) -> Any:
    """The pair this client's senders belong to, or None."""
    return _PAIRS.get(client)


def check_unpaired(client: Any) -> None:
    if client in _PAIRS:
        raise RuntimeError(f"the client of {client.fully_qualified_namespace} is paired already")


def protect(client: Any, made: Any) -> None:
    """`made` is a pair, or its stand-in without `await`."""

    def get_queue_sender(queue_name: str, **options: Any) -> Any:
        return made.get_queue_sender(queue_name, sdk_options=options)

    def get_topic_sender(topic_name: str, **options: Any) -> Any:
        return made.get_topic_sender(topic_name, sdk_options=options)

    client.get_queue_sender = get_queue_sender
    client.get_topic_sender = get_topic_sender
    _PAIRS[client] = made


def restore(client: Any) -> None:
    _PAIRS.pop(client, None)
    for name in ("get_queue_sender", "get_topic_sender"):
        vars(client).pop(name, None)
