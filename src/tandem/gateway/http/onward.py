"""Requests that another node has to answer: passed on as they came, token and all, and the answer passed back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp
from aiohttp import web
from yarl import URL

from tandem.broker.entities.partitioned import PARTITIONED
from tandem.cluster.ownership import Ownership
from tandem.model import address as addresses
from tandem.model.errors import BusError, StoreUnavailable
from tandem.server.context import NamespaceContext

HEADER: Final = "Tandem-Onward"
"""On a request that came from another node: it is answered here, whatever that means."""
_NOT_PASSED: Final = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length", "te", "trailer", "upgrade", "expect"})
_CONNECT_SECONDS: Final = 2.0
_ASK_SECONDS: Final = 5.0


class RefusedOnward(BusError):
    """What another node answered, passed on as it is."""

    def __init__(self, status: int, condition: str, description: str) -> None:
        super().__init__(description)
        self.status = status  # type: ignore[misc]
        self.condition = condition  # type: ignore[misc]


class Onward:
    """Of one node whose namespaces are shared with others."""

    def __init__(
        self,
        contexts: list[NamespaceContext],
        namespace_of: Callable[[str], int],
        ownership_of: Callable[[str], Ownership],
        others: Callable[[], Sequence[str]],
    ) -> None:
        self._contexts = contexts
        self._namespace_of = namespace_of
        self._ownership_of = ownership_of
        self._others = others
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    def owner_of(self, request: web.BaseRequest, path: str) -> str | None:
        """The node that has this entity; None: it is here, or nowhere, or it was asked for by another node."""
        if HEADER in request.headers:
            return None
        context = self._contexts[self._namespace_of(request.headers.get("Host", ""))]
        store = context.namespace.store_of(addresses.parse(path))
        if store is None or store == PARTITIONED:
            return None
        ownership = self._ownership_of(context.namespace.name)
        return None if ownership.here(store) else ownership.owner(store)

    def owner_elsewhere(self, number: int, path: str) -> str | None:
        """The node that has this entity of a namespace, or its first store; None: it is here, or nobody has it."""
        context = self._contexts[number]
        store = context.namespace.store_of(addresses.parse(path)) if path else None
        ownership = self._ownership_of(context.namespace.name)
        store = store if store is not None and store != PARTITIONED else 0
        return None if ownership.here(store) else ownership.owner(store)

    def owner_of_fragment(self, number: int, fragment: int) -> str:
        """The node that has this fragment of a partitioned entity; empty: this one."""
        namespace = self._contexts[number].namespace
        store = fragment % len(namespace.stores)
        ownership = self._ownership_of(namespace.name)
        owner = "" if ownership.here(store) else ownership.owner(store)
        if owner is None:
            raise StoreUnavailable(f"store-{store} of '{namespace.name}' is between two owners. Try again.")
        return owner

    async def answer(self, node: str, request: web.BaseRequest, body: bytes, what: str = "") -> web.Response:
        """What the node answers, however long that takes it. `what`: method and path, if they are not those of the request."""
        patience = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
        try:
            return await self._answer(self._asked(node, request, body, patience, what))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"Node '{node}', which has this entity, does not answer: {error}. Try again.") from error

    async def says(self, node: str, request: web.BaseRequest, body: bytes, what: str) -> dict[str, Any]:
        """What the node answers, as JSON. Raises what it refused it with."""
        answer = await self.answer(node, request, body, what)
        told: dict[str, Any] = json.loads(answer.body if isinstance(answer.body, bytes) else b"{}")
        if answer.status != 200:
            raise RefusedOnward(answer.status, str(told.get("error")), str(told.get("description")))
        return told

    async def _answer(self, asked: aiohttp.client._RequestContextManager) -> web.Response:
        async with asked as response:
            passed = web.Response(status=response.status, body=await response.read())
            for name, value in response.headers.items():
                if name.casefold() not in _NOT_PASSED and name.casefold() not in ("content-type", "date", "server"):
                    passed.headers.add(name, value)
            if "Content-Type" in response.headers:
                passed.headers["Content-Type"] = response.headers["Content-Type"]
            return passed

    @property
    def others(self) -> Sequence[str]:
        """Who is asked beside this node."""
        return self._others()

    async def others_say(
        self, request: web.BaseRequest, body: bytes = b"", what: str = "", seconds: float = _ASK_SECONDS
    ) -> dict[str, Any]:
        """By node what every other one answers to the same request, as JSON; those that refuse or do not answer are left out."""
        return {node: json.loads(text) for node, text in (await self.others_write(request, body, what, seconds)).items()}

    async def others_write(
        self, request: web.BaseRequest, body: bytes = b"", what: str = "", seconds: float = _ASK_SECONDS
    ) -> dict[str, bytes]:
        """The same, as it is written. `what`: method and path, if they are not those of the request."""

        async def ask(node: str) -> tuple[str, bytes]:
            async with self._asked(node, request, body, aiohttp.ClientTimeout(total=seconds), what) as response:
                response.raise_for_status()
                return node, await response.read()

        answers = await asyncio.gather(*(ask(node) for node in self._others()), return_exceptions=True)
        return dict(one for one in answers if not isinstance(one, BaseException))

    def _asked(
        self, node: str, request: web.BaseRequest, body: bytes, timeout: aiohttp.ClientTimeout, what: str = ""
    ) -> aiohttp.client._RequestContextManager:
        headers = [(name, value) for name, value in request.headers.items() if name.casefold() not in _NOT_PASSED]
        headers.append((HEADER, request.scheme))
        method, _, path = what.partition(" ") if what else (request.method, "", request.raw_path)
        return self._session(node).request(
            method, URL(path, encoded=True), headers=headers, data=body or None, timeout=timeout, allow_redirects=False
        )

    def _session(self, node: str) -> aiohttp.ClientSession:
        session = self._sessions.get(node)
        if session is None:
            where = self._ownership_of(self._contexts[0].namespace.name).address(node)
            if where is None:
                raise StoreUnavailable(f"Nobody knows the address of node '{node}', which has this entity. Try again.")
            unix = where.startswith("unix:")
            connector = aiohttp.UnixConnector(path=where.removeprefix("unix:"), limit=0) if unix else aiohttp.TCPConnector(limit=0)
            base = "http://node" if unix else f"http://{where}"
            session = self._sessions[node] = aiohttp.ClientSession(base, connector=connector, auto_decompress=False)
        return session
