"""What all connections to one namespace share: its entities, limits and authorization rules, its clocks, its log, its running requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from tandem.broker.entities.namespace import Namespace
from tandem.broker.turn import Turn
from tandem.gateway.translate import Translator
from tandem.model.address import Address
from tandem.model.clock import Clock
from tandem.model.entity import AuthorizationRule, Right
from tandem.model.limits import Limits
from tandem.relay.entity import Relays
from tandem.server.administration_port import AdminPort
from tandem.server.audit import Audit, AuditEntry, no_audit
from tandem.server.authority import Authority
from tandem.server.fault_points import FaultPoints
from tandem.server.lease_claims import ClaimedLeases
from tandem.server.sent_once import SentOnce
from tandem.server.served_connection import ServedConnection
from tandem.server.tracking import Tracker
from tandem.tokens.verifier import TokenVerifier
from tandem.tracing import MessageSpans


class CarriesLinks(Protocol):
    """What continues links to other nodes."""

    def takes(self, connection: Any, link: Any, address: Address, right: Right) -> bool:
        """Is the entity elsewhere? Then the link will be answered when its owner has."""
        ...


class NamespaceContext:
    """One namespace as its clients meet it."""

    def __init__(
        self,
        namespace: Namespace,
        turn: Turn,
        translator: Translator,
        tracker: Tracker,
        limits: Limits,
        log: Callable[[str], None],
        connection_clock: Clock | None = None,
        warn: Callable[[str], None] | None = None,
        audit: Audit = no_audit,
        tracing: MessageSpans | None = None,
        tokens: TokenVerifier | None = None,
        connection_count: Callable[[], int] | None = None,
    ) -> None:
        self.namespace = namespace
        self.turn = turn
        self.translator = translator
        self.tracker = tracker
        self.limits = limits
        self.log = log
        """Tells the operator, in one line."""
        self.warn: Callable[[str], None] = warn or log
        """The same for what should not be: refusals, and things that did not work."""
        self.audit: Audit = audit
        self.tracing: MessageSpans | None = tracing
        """None: nothing is traced."""
        self.trusts_clock_from: int = 0
        """On the steady clock: until then no connection is cut off because a token seems to have lapsed."""
        self.connection_clock: Clock = connection_clock or turn.clock
        """Tokens, heartbeats and silent peers follow this one: a test that moves the turn's clock moves messages, not its own clients."""
        self.authority = Authority(namespace.name, self.rule_lookup, self.connection_clock, tokens)
        self.admin: AdminPort | None = None
        """Set once the namespace is open."""
        self.new_transaction_id: Callable[[], bytes] = lambda: uuid.uuid4().bytes
        self.connections: dict[ServedConnection, None] = {}
        """In the order in which they came."""
        self.connection_count: Callable[[], int] = connection_count or (lambda: len(self.connections))
        """AMQP connections of the whole broker."""
        self.draining: bool = False
        """On the way out: new links and sends are refused, nothing more is delivered."""
        self.peer_operations: dict[str, Callable[[dict[object, object]], Awaitable[dict[object, object]]]] = {}
        """What other nodes may ask of this one, by name."""
        self.ask_others: Callable[[str, dict[object, object]], Awaitable[list[dict[object, object]]]] | None = None
        """Asks every other node the same; whoever is away answers nothing. None: another node does that, or there is none."""
        self.carrier: CarriesLinks | None = None
        """None: every entity is here."""
        self.look_again: Callable[[], Awaitable[None]] | None = None
        """Sees what other nodes have changed in the namespace. None: nobody else does."""
        self.fault_points: FaultPoints | None = None
        """None: no faults may be injected."""
        self.metadata_trouble: str = ""
        """Why entities cannot be changed, for the operator."""
        self.claims = ClaimedLeases()
        self.sent_once = SentOnce()
        self.relays = Relays()
        self._tasks: set[asyncio.Task[None]] = set()

    def use_limits(self, limits: Limits) -> None:
        """The configuration was read again."""
        self.limits = limits
        self.namespace.builder.use_limits(limits)

    def distrust_clock_until(self, steady_ms: int) -> None:
        """It was set."""
        self.trusts_clock_from = steady_ms

    def metadata_is(self, trouble: str) -> None:
        """Empty: it can be changed."""
        was, self.metadata_trouble = self.metadata_trouble, trouble
        if trouble and trouble != was:
            self.warn(trouble)
        elif was and not trouble:
            self.log(f"the metadata of {self.namespace.name} is the file that was opened again")

    def begin_draining(self) -> None:
        self.draining = True

    def rule_lookup(self, path: str, key_name: str) -> AuthorizationRule | None:
        """The authorization rule of this name on exactly this path; `""` is the namespace."""
        if not path:
            return self.namespace.authorization_rules.get(key_name)
        relay = self.relays.find(path)
        return self.namespace.entity_rule(path, key_name) if relay is None else relay.authorization_rule(key_name)

    def audited(self, action: str, who: str, peer: str, what: str, detail: str = "") -> None:
        self.audit(AuditEntry(action, self.namespace.name, who, peer, what, detail))

    def client_count(self) -> int:
        """Connections of clients: what other nodes, or workers, continue here is counted there."""
        return sum([connection.is_of_a_client() for connection in self.connections])

    def forget(self, connection: ServedConnection) -> None:
        self.connections.pop(connection, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that waits (for the disk, for a session) beside the loop's turns."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), MemoryError):
            task.get_loop().call_exception_handler({"message": "out of memory in a request", "exception": task.exception()})
        elif not task.cancelled() and task.exception() is not None:
            self.warn(f"a request failed inside the broker: {task.exception()!r}")

    async def finish_requests(self, seconds: float) -> None:
        """Those under way now have so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def drain(self) -> None:
        """Wait for what is still running; used on the way out."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
