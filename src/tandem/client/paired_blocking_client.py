"""`pair` for clients without `await`: their senders work on the background loop, through a client of the other kind made like it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, overload

from azure.servicebus import ServiceBusClient as BlockingServiceBusClient
from azure.servicebus._base_handler import ServiceBusSASTokenCredential as BlockingTokenCredential
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential as BlockingKeyCredential
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio._base_handler_async import ServiceBusSASTokenCredential, ServiceBusSharedKeyCredential
from azure.servicebus.management import ServiceBusAdministrationClient as BlockingAdministrationClient

from tandem.client import paired_client
from tandem.client import sync as _sync
from tandem.client.backlog import SdkAdministration
from tandem.client.pairing import PairedNamespaces
from tandem.client.sdk import SdkNamespace

_SAME = (
    "retry_total",
    "retry_mode",
    "retry_backoff_factor",
    "retry_backoff_max",
    "try_timeout",
    "logging_enable",
    "http_proxy",
    "transport_type",
    "user_agent",
    "auth_timeout",
    "use_tls",
)
"""What a client was made with, as its configuration keeps it; an older SDK may not know all of it."""


@overload
def pair(client: ServiceBusClient, secondary: str | ServiceBusClient, **settings: Any) -> Awaitable[PairedNamespaces]: ...
@overload
def pair(  # type: ignore[overload-cannot-match]  # the SDK's classes are alike to a checker that does not read them
    client: BlockingServiceBusClient, secondary: str | BlockingServiceBusClient, **settings: Any
) -> _sync.PairedNamespaces: ...
def pair(client: Any, secondary: Any, **settings: Any) -> Any:
    """Pair, and let `get_queue_sender` and `get_topic_sender` of this very client return protected senders from now on.

    `settings` are those of `PairedNamespaces`, which is what comes back; to be awaited for a client of `azure.servicebus.aio`. Senders
    made before stay as they were. `unpair`, `close` of the returned object, or closing the client ends it: senders given out are
    closed, and the client makes its own again.
    """
    if isinstance(client, ServiceBusClient):
        return paired_client.pair(client, secondary, **settings)
    if not isinstance(client, BlockingServiceBusClient):
        raise TypeError(f"a ServiceBusClient of azure.servicebus or azure.servicebus.aio is needed, not {type(client)!r}")
    paired_client.check_unpaired(client)
    given = settings.get("secondary_administration")
    if isinstance(given, BlockingAdministrationClient):
        in_threads: Any = _InThreads(given)
        settings["secondary_administration"] = SdkAdministration(in_threads)
    other = _twin(secondary) if isinstance(secondary, BlockingServiceBusClient) else secondary
    made = _sync.PairedNamespaces(_twin(client), other, **settings)
    made.pair()
    paired_client.protect(client, made)

    def restore() -> None:
        paired_client.restore(client)
        vars(client).pop("close", None)

    def close() -> None:
        made.close()
        client.close()

    made.aio.when_closed(restore)
    client.close = close
    return made


@overload
def unpair(client: ServiceBusClient) -> Awaitable[None]: ...
@overload
def unpair(client: BlockingServiceBusClient) -> None: ...  # type: ignore[overload-cannot-match]
def unpair(client: Any) -> Any:
    """End what `pair` began; to be awaited for a client of `azure.servicebus.aio`. Nothing happens to a client that is not paired."""
    if isinstance(client, ServiceBusClient):
        return paired_client.unpair(client)
    made = paired_client.pair_of(client)
    if made is not None:
        made.close()
    return None


class _InThreads:
    """An object without `await`, each call of it in a thread; what is no method is as it is there (`token_type` of a credential)."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._blocking, name)
        if not callable(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call


def _twin(client: BlockingServiceBusClient) -> SdkNamespace:
    """The namespace of a client without `await`, by one of the other kind with the same address, credential and settings."""
    credential: Any = client._credential
    if isinstance(credential, BlockingKeyCredential):
        credential = ServiceBusSharedKeyCredential(credential.policy, credential.key)
    elif isinstance(credential, BlockingTokenCredential):
        credential = ServiceBusSASTokenCredential(credential.token, credential.expiry)
    elif hasattr(credential, "get_token"):
        credential = _InThreads(credential)
    config = client._config
    options: dict[str, Any] = {name: getattr(config, name) for name in _SAME if getattr(config, name, None) is not None}
    for name in ("custom_endpoint_address", "connection_verify", "ssl_context", "entity_name"):
        value = getattr(client, f"_{name}", None)
        if value is not None:
            options[name] = value
    namespace = SdkNamespace(ServiceBusClient(client.fully_qualified_namespace, credential, **options))
    namespace.owned = True
    return namespace
