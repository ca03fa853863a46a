"""One AMQP connection of a client: its engine, what it may do, what it has attached, what waits to be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from tandem.amqp.config import ConnectionConfig
from tandem.amqp.connection import Connection
from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import ConnectionHandler
from tandem.amqp.link import Link, SenderLink
from tandem.amqp.sasl import SaslServer
from tandem.amqp.session import Session
from tandem.amqp.types import Symbol
from tandem.broker.ports import Flushed, Lock
from tandem.broker.turn import Turn
from tandem.gateway.amqp.reply_links import ReplyLinks
from tandem.gateway.amqp.returning_locks import LocksWithoutDelivery
from tandem.gateway.amqp.transactions import Transactions
from tandem.gateway.translate import Translator, refusal
from tandem.gateway.waiting import Gate
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import BusError, QuotaExceeded, ServerBusy, Unauthorized, shutting_down
from tandem.model.limits import Limits
from tandem.server import sas
from tandem.server.audit import TOKEN
from tandem.server.context import NamespaceContext

if TYPE_CHECKING:
    from tandem.gateway.amqp.carrying import CarriedConnection

_LARGE_ANSWERS_MAX: Final = 16
_LOOK_EVERY_MS: Final = 1_000
_LINKS_SHOWN_MAX: Final = 100
_PRODUCT: Final = ("product", "version", "user-agent")
"""What SDKs say of themselves in their open."""
_FIRST_TRANSFER_ID: Final = 1
"""As in the service. Old JavaScript clients (rhea 1) count ours from 0 whatever `begin` says: far from that, their window would be shut."""
_FIRST_DELIVERY_ID: Final = 0
"""As in the service. Proton, once it has connected again, takes no other."""
_FAR_DELIVERY_ID: Final = 0x40000000
"""For the SDK for Python, away from its own ids: its sender links take a disposition for either."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionWriter:
    """Where the bytes of a connection go. The pump subclasses it per transport."""

    def write(self, data: bytes) -> None: ...

    def hang_up(self) -> None:
        """After what was written has left."""

    def cut(self) -> None:
        """At once, without a word."""

    def hold_reading(self, hold: bool) -> None:
        """What comes in could not go on now, or can again."""


class PeerConnection(ConnectionHandler, Flushed):
    """State of one connection, and the engine's owner. Everything here happens on the loop."""

    def __init__(
        self,
        context_of: Callable[[str], NamespaceContext],
        attach: Callable[[PeerConnection, Link], None],
        writer: ConnectionWriter,
        peer: str,
        container_id: str,
    ) -> None:
        """Ready for the first byte. Which namespace the client means is known when it has said its open."""
        context = context_of("")
        self.dirty = False
        self.context: NamespaceContext = context
        self._context_of = context_of
        self._attach = attach
        """Gives an attached link its handler."""
        self.turn: Turn = context.turn
        self.translator: Translator = context.translator
        self.writer = writer
        self.peer = peer
        self.gone: bool = False
        self.writable: bool = True
        self.grants = sas.Grants()
        self.links: dict[Link, tuple[Address, Right]] = {}
        """Entity links and the claim each stands on."""
        self.replies = ReplyLinks()
        self.opened_at: int = context.connection_clock.steady_ms()
        self.authenticated: bool = False
        self.linkless_since: int = self.opened_at
        self._looked_at: int = 0
        self._look_at: int = 0
        self.transactions = Transactions(context)
        self.gate = Gate(_LARGE_ANSWERS_MAX)
        """Requests whose answers carry messages pass here."""
        self.locks_without_delivery = LocksWithoutDelivery()
        self.carried: dict[str, CarriedConnection] = {}
        """Continuations of this connection, by the node they lead to: empty unless there is a cluster."""
        self.may_carry: bool = True
        self.recording: object = None
        """What was said on it so far, while it may yet be moved to another process."""
        self.engine: Connection = Connection(self, self.engine_config(context.limits, container_id), True)
        context.connections[self] = None

    def is_of_a_client(self) -> bool:
        return True

    def engine_config(self, limits: Limits, container_id: str) -> ConnectionConfig:
        return ConnectionConfig(
            container_id=container_id,
            max_frame_size=limits.frame_bytes_max,
            channel_max=limits.channels_max,
            handle_max=limits.links_per_session_max,
            idle_timeout_ms=limits.idle_timeout_ms,
            drop_silent_after_ms=limits.drop_silent_peer_after_ms,
            sasl=SaslServer(),
            message_bytes_ceiling=limits.message_bytes_ceiling,
            next_outgoing_id=_FIRST_TRANSFER_ID,
            first_delivery_id=_FIRST_DELIVERY_ID,
            properties={Symbol("product"): "Tandem"},
        )

    # -- bytes -------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the peer; whatever they cause is written at the end of the turn."""
        if self.gone:
            return
        self.turn.begin()
        engine = self.engine
        engine.receive_bytes(data)
        if engine.has_output or engine.closed:
            self.touch()

    def touch(self) -> None:
        """There is something to write."""
        if not self.dirty:
            self.dirty = True
            self.turn.add_connection(self)

    def flush(self) -> None:
        self.dirty = False
        if self.gone:
            return
        engine = self.engine
        data = engine.bytes_to_send()
        if data:
            self.writer.write(data)
        if self.gate.unwritten:
            self.gate.written()
        if engine.closed:
            self.writer.hang_up()

    def send_disposition(self, session: Session, receiver_role: bool, first: int, last: int, state: bytes, entity: str) -> None:
        """Settle these deliveries. `entity`: whose message it is about; empty if it answers a request."""
        session.send_disposition(receiver_role, first, last, True, state)
        self.touch()

    def set_writable(self, writable: bool) -> None:
        """The peer reads slower than we write, or has caught up."""
        self.writable = writable
        self.gate.set_open(writable)
        for carried in self.carried.values():
            carried.hold_reading(not writable)
        if writable:
            self.turn.begin()
            for link in list(self.links):
                link.handler.on_flow(link)
            self.touch()

    def connection_lost(self) -> None:
        """The transport is gone: links and sessions are told."""
        if self.gone:
            return
        self.turn.begin()
        self.engine.lost()
        self.gone = True
        self.gate.abandon()
        self.context.forget(self)

    def cut(self) -> None:
        """At once, as if the network had failed."""
        self.connection_lost()
        self.writer.cut()

    def move_to(self, context: NamespaceContext) -> None:
        """The open named a host that belongs to another namespace; what was granted before was granted there."""
        if context is self.context:
            return
        self.context.forget(self)
        self.context = context
        self.translator = context.translator
        self.transactions = Transactions(context)
        self.grants.clear()
        self.authenticated = False
        context.connections[self] = None

    def close(self, error: BusError) -> None:
        engine = self.engine
        if not engine.closed:
            condition = error.condition if isinstance(error, QuotaExceeded) else "amqp:connection:forced"
            engine.close(AmqpError(condition, self.context.tracker.describe(error, "", self.turn.now)))
            self.touch()

    # -- claims ------------------------------------------------------------------------------

    def grant(self, grant: sas.Grant) -> None:
        """A verified token."""
        self.grants.add(grant)
        self.authenticated = True
        self._look_at = 0  # it may end before the next look

    def require(self, address: Address, right: Right) -> None:
        now = self.context.connection_clock.now_ms()
        covered = False
        for path in (address.resource, address.path) if address.management else (address.resource,):
            for grant in self.grants.covering(path):
                if grant.expires_at_ms > now:
                    if grant.allows(right):
                        return
                    covered = True
        found = "" if covered else " No valid token for it was put on this connection."
        raise Unauthorized(
            f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation. Resource: '{address.path}'.{found}"
        )

    def rights_on(self, address: Address) -> frozenset[Right]:
        """Everything that its tokens allow there now."""
        found: list[Right] = []
        for right in Right:
            try:
                self.require(address, right)
            except Unauthorized:
                continue
            found.append(right)
        return frozenset(found)

    def expire_tokens(self) -> None:
        self.grants.clear()
        self._detach_unauthorized()

    def drop_revoked(self) -> None:
        """Links whose token was taken back by its issuer are detached."""
        if self.grants.drop(self.context.authority.revoked):
            self._detach_unauthorized("The token was revoked by its issuer.")

    def _detach_unauthorized(self, why: str = "The token has expired and was not renewed.") -> None:
        """Links that no token allows any more."""
        for link, (address, right) in list(self.links.items()):
            try:
                self.require(address, right)
            except Unauthorized:
                link.detach(self.error_of(Unauthorized(f"{why} Resource: '{address.path}'."), address.path))
                self.touch()

    def look_after(self, now: int) -> None:
        """Heartbeats, silence, transactions that took too long, tokens that lapsed, connections nobody uses.

        Called a few times a second; looks once a second, and as often as the peer wants to hear from us. `now` is on the steady clock.
        """
        if self._looked_at <= now < self._look_at:
            return
        self._looked_at = now
        engine = self.engine
        tick_at = engine.tick(now)
        if engine.remote_open:
            self._look_at = min(tick_at or now + _LOOK_EVERY_MS, now + _LOOK_EVERY_MS)
        self.transactions.look_after()
        for carried in list(self.carried.values()):
            carried.look_after(now)
        if engine.has_output or engine.closed:
            self.touch()
        lapse = self.grants.next_expiry() if self.links else 0
        if lapse and now >= self.context.trusts_clock_from:
            instant = self.context.connection_clock.now_ms()
            if lapse <= instant:
                self.grants.drop_expired(instant)
                self._detach_unauthorized()
            else:
                self._look_at = min(self._look_at, now + lapse - instant)
        limits = self.context.limits
        if not self.authenticated and now - self.opened_at > limits.authentication_ms_max:
            self.close(Unauthorized("No valid token was put within the time allowed."))
        elif not self.links and self.linkless_since and now - self.linkless_since > limits.linkless_connection_ms_max:
            self.close(ServerBusy("The connection was inactive for more than the allowed time."))

    # -- links -------------------------------------------------------------------------------

    def keep_link(self, link: Link, address: Address, right: Right) -> None:
        self.links[link] = (address, right)
        self.linkless_since = 0

    def link_gone(self, link: Link) -> None:
        self.links.pop(link, None)
        if not self.links:
            self.linkless_since = self.context.connection_clock.steady_ms()

    def detach_links(self, entity: str, error: BusError) -> None:
        """Those of this entity, in lower case; of all entities if it is empty."""
        for link, (address, _) in list(self.links.items()):
            if not entity or address.key == entity:
                link.detach(self.error_of(error, ""))
                self.touch()

    # -- words -------------------------------------------------------------------------------

    def error_of(self, error: BaseException, entity: str) -> AmqpError:
        fault = refusal(error)
        return AmqpError(fault.condition, self.context.tracker.describe(fault, entity, self.turn.now))

    def carried_links(self) -> list[str]:
        from tandem.gateway.amqp.carrying import CarriedLink

        handlers = [link.handler for link in self.links] if self.carried else []
        return [handler.carried.node for handler in handlers if isinstance(handler, CarriedLink)]

    def unsettled_count(self) -> int:
        return sum([link.unsettled_count for link in self.links if isinstance(link, SenderLink)])

    def held_locks(self, entity: str) -> list[Lock]:
        found: list[Lock] = []
        for link, (address, _) in self.links.items():
            if isinstance(link, SenderLink) and address.path.casefold() == entity.casefold():
                for delivery in link.unsettled():
                    if isinstance(delivery.context, Lock):
                        found.append(delivery.context)
        return found

    def describe(self, now: int) -> dict[str, object]:
        engine = self.engine
        told = engine.remote_properties
        links: list[object] = []
        for link, (address, right) in list(self.links.items())[:_LINKS_SHOWN_MAX]:
            links.append({"entity": address.path, "role": "receives" if right is Right.LISTEN else "sends", "name": link.name})
        return {
            "peer": self.peer,
            "container_id": engine.remote_container_id,
            "client": " ".join([str(told[name]) for name in _PRODUCT if name in told]),
            "open_seconds": (now - self.opened_at) // 1000,
            "authenticated": self.authenticated,
            "reads_slowly": not self.writable,
            "links": links,
            "link_count": len(self.links),
        }

    def log_presettled_refusal(self, error: BusError) -> None:
        """Its sender chose not to hear, so the operator does."""
        self.context.warn(f"pre-settled message from {self.peer} refused: {error.condition} {error.description}")

    # -- the engine's events -----------------------------------------------------------------

    def on_sasl_plain(self, user: str, password: str) -> bool:
        try:
            self.grant(sas.verify_key(user, password, self.context.rule_lookup))
        except BusError as error:
            self.context.warn(f"PLAIN refused for {self.peer} on {self.context.namespace.name}: {error.description}")
            return False
        self.context.audited(TOKEN, user, self.peer, "", "SASL PLAIN")
        return True

    def holder(self, address: Address) -> str:
        """Whoever put the token that is good for this address."""
        return ", ".join(sorted({grant.key_name for grant in self.grants.covering(address.resource)}))

    def on_open(self, connection: Connection) -> None:
        self.move_to(self._context_of(connection.remote_hostname or ""))
        most = self.context.limits.connections_max
        if self.context.connection_count() > most:
            self.context.warn(f"connection of {self.peer} refused: {most} are open")
            self.close(QuotaExceeded(f"The broker has {most} connections, which is all it may have. Close some, or try again later."))

    def on_begin(self, session: Session) -> None:
        most = self.context.limits.sessions_before_token_max
        if not self.authenticated and len(session.connection.sessions) > most:
            self.close(QuotaExceeded(f"Before a token was put a connection may have {most} sessions."))
        if str(session.connection.remote_properties.get("framework")).startswith("Python"):
            session.number_deliveries_from(_FAR_DELIVERY_ID)

    def on_attach(self, link: Link) -> None:
        if not self.authenticated:
            most = self.context.limits.links_before_token_max
            if sum([len(session.links) for session in self.engine.sessions.values()]) > most:
                self.close(QuotaExceeded(f"Before a token was put a connection may have {most} links."))
                return
        if self.context.draining:
            link.refuse(self.error_of(shutting_down(), ""))
            self.touch()
            return
        self._attach(self, link)

    def on_end(self, session: Session) -> None:
        for carried in self.carried.values():
            carried.end_session(session)

    def on_close(self, connection: Connection, error: AmqpError | None) -> None:
        self.locks_without_delivery.drop(self.context, connection)
        for carried in list(self.carried.values()):
            carried.client_gone(connection.broken)
