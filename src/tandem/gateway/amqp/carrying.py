"""Carried links: what a client sends and receives here goes to, and comes from, the node that has the entity; nothing is decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.connection import Connection
from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import ConnectionHandler, LinkHandler
from tandem.amqp.link import ATTACH_RECEIVED
from tandem.amqp.outcomes import ACCEPTED, ACCEPTED_CODE, RELEASED, TRANSACTIONAL, Outcome, encode_outcome, encode_rejected
from tandem.broker.ports import Flushed
from tandem.gateway.amqp.carried_transactions import carry_send, carry_settlement, state_for_client
from tandem.gateway.amqp.settlements import transaction_of
from tandem.model.errors import BusError, MessageSizeExceeded, StoreUnavailable, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem.amqp.config import ConnectionConfig
    from tandem.amqp.link import Delivery, Link, ReceiverLink, SenderLink
    from tandem.amqp.session import Session
    from tandem.broker.turn import Turn
    from tandem.gateway.amqp.connection import ConnectionWriter, PeerConnection
    from tandem.model.address import Address
    from tandem.model.entity import Right

_MASK: Final = 0xFFFFFFFF
_TAG_BYTES_MAX: Final = 32
_SECOND: Final = 1
"""Receiver-settle-mode: the owner says what became of a settlement, whether or not the client asked to hear it."""


def send_ranges(session: Session, receiver_role: bool, numbers: list[int], settled: bool, state: bytes) -> None:
    """One disposition for each run of consecutive delivery ids."""
    first = -1
    last = -1
    for number in numbers:
        if first >= 0 and number == last + 1:
            last = number
            continue
        if first >= 0:
            session.send_disposition(receiver_role, first, last, settled, state)
        first = last = number
    if first >= 0:
        session.send_disposition(receiver_role, first, last, settled, state)


class CarriedConnection(ConnectionHandler, Flushed):
    """A client's connection, continued to one other node. One per client and node, so that clients share neither link names nor windows,
    and a client that vanishes vanishes there too."""

    def __init__(self, client: PeerConnection, node: str, config: ConnectionConfig) -> None:
        self.dirty = False
        self.client: PeerConnection = client
        self.node: str = node
        self.turn: Turn = client.turn
        self.writer: ConnectionWriter | None = None
        self.gone: bool = False
        self.error: AmqpError | None = None
        self.engine: Connection = Connection(self, config, False)
        self.on_ready: Callable[[], None] | None = None
        """Called once: the node has said its open, or the connection is over."""
        self.coordinator: object = None
        """The node's, once a transaction needs it."""
        self.transactions: dict[bytes, bytes] = {}
        """By the node's id of a transaction the client's."""
        self._sessions: dict[Session, Session] = {}
        """The client's and ours."""

    # -- bytes -------------------------------------------------------------------------------

    def opened(self, writer: ConnectionWriter) -> None:
        self.writer = writer
        self.engine.open()
        self.touch()

    def receive(self, data: bytes) -> None:
        if self.gone:
            return
        self.turn.begin()
        engine = self.engine
        engine.receive_bytes(data)
        if engine.has_output or engine.closed:
            self.touch()

    def touch(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.turn.add_connection(self)

    def flush(self) -> None:
        self.dirty = False
        writer = self.writer
        if self.gone or writer is None:
            return
        data = self.engine.bytes_to_send()
        if data:
            writer.write(data)
        if self.engine.closed:
            writer.hang_up()

    def lost(self) -> None:
        """The transport is gone."""
        if not self.gone:
            self.turn.begin()
            self.engine.lost()
            self.gone = True

    def set_writable(self, writable: bool) -> None:
        """While the node reads slowly the client is not read from: nothing piles up in between."""
        self.client.writer.hold_reading(not writable)

    def hold_reading(self, hold: bool) -> None:
        """While the client reads slowly nothing is read for it."""
        if self.writer is not None:
            self.writer.hold_reading(hold)

    def client_gone(self, broken: bool) -> None:
        """As the client left, so do we: what its connection held is given back there as it would be here."""
        if self.gone:
            return
        if broken:
            self.gone = True
            self.engine.lost()
            if self.writer is not None:
                self.writer.cut()
        else:
            self.engine.close()
            self.touch()

    def look_after(self, now: int) -> None:
        engine = self.engine
        engine.tick(now)
        if engine.has_output or engine.closed:
            self.touch()

    def state_for_client(self, outcome: Outcome) -> bytes:
        return state_for_client(self, outcome) if outcome.code == TRANSACTIONAL else encode_outcome(outcome)

    # -- sessions ----------------------------------------------------------------------------

    def session_for(self, session: Session) -> Session:
        ours = self._sessions.get(session)
        if ours is None:
            ours = self._sessions[session] = self.engine.begin()
        return ours

    def end_session(self, session: Session) -> None:
        """The client has ended its session."""
        ours = self._sessions.pop(session, None)
        if ours is not None:
            ours.end()
            self.touch()

    # -- the engine's events -----------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        self._ready()

    def on_end(self, session: Session) -> None:
        for theirs, ours in list(self._sessions.items()):
            if ours is session:
                del self._sessions[theirs]

    def on_close(self, connection: Connection, error: AmqpError | None) -> None:
        self.error = error
        if self.client.carried.get(self.node) is self:
            del self.client.carried[self.node]
        self._ready()

    def _ready(self) -> None:
        ready = self.on_ready
        self.on_ready = None
        if ready is not None:
            ready()


class CarriedLink(LinkHandler):
    """Both ends of one link: `near` is the client's, `far` the owner's."""

    def __init__(self, client: PeerConnection, carried: CarriedConnection, address: Address, right: Right) -> None:
        self.client: PeerConnection = client
        self.carried: CarriedConnection = carried
        self.address = address
        self.right = right

    def detach_near(self, near: Link, error: AmqpError | None) -> None:
        """The owner has let go of its end, or is gone."""
        client = self.client
        if client.gone:
            return
        if (error is None and near.state == ATTACH_RECEIVED) or self.carried.engine.broken:
            path = self.address.path
            error = client.error_of(StoreUnavailable(f"The node that serves '{path}' was lost on the way. Try again."), path)
        near.detach(error)
        client.touch()

    def detach_far(self, far: Link, error: AmqpError | None = None) -> None:
        """The client has let go of its end; with an error: its end was taken away."""
        if not self.carried.gone:
            far.detach(error)
            self.carried.touch()


class CarriedSending(CarriedLink):
    """A client sends to an entity of another node."""

    def __init__(self, client: PeerConnection, carried: CarriedConnection, address: Address, right: Right, near: ReceiverLink) -> None:
        super().__init__(client, carried, address, right)
        self.near: ReceiverLink = near
        self.far: SenderLink | None = None

    def attach(self, properties: dict[object, object] | None) -> None:
        near = self.near
        near.handle_with(self)
        session = self.carried.session_for(near.session)
        self.far = session.attach_sender(
            near.name,
            near.source,
            near.target,
            self,
            near.snd_settle_mode,
            near.rcv_settle_mode,
            properties,
            near.desired_capabilities,
        )
        self.carried.touch()

    def on_attached(self, link: Link) -> None:
        near = self.near
        if near.state != ATTACH_RECEIVED:
            return  # it was taken away meanwhile, or the client gave up
        near.offers = link.offered_capabilities
        self.client.keep_link(near, self.address, self.right)
        near.accept(link.source, link.target, link.properties or None, link.remote_max_message_size)
        self.client.touch()

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        far = self.far
        if far is None or not far.attached:
            return
        if len(tag) > _TAG_BYTES_MAX:
            tag = tag[:_TAG_BYTES_MAX]
        if state is not None and self._in_transaction(delivery_id, tag, payload, settled, message_format, state):
            return
        far.send(payload, tag, settled, delivery_id, message_format)
        carried = self.carried
        if not carried.dirty:
            carried.touch()

    def _in_transaction(self, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes) -> bool:
        """False: it is in none."""
        found: Outcome | None = None
        try:
            found = transaction_of(state)
            if found is None:
                return False
            carry_send(self, found.txn_id, delivery_id, tag, payload, settled, message_format)
        except BusError as error:
            if settled and found is not None:
                self.client.transactions.doom(found.txn_id, error)
            self.reject(delivery_id, settled, error)
        return True

    def on_oversize(self, link: ReceiverLink, delivery_id: int, tag: bytes, settled: bool) -> None:
        path = self.address.path
        self.reject(
            delivery_id, settled, MessageSizeExceeded(f"The message exceeds the limit of {link.max_message_size} bytes of '{path}'.")
        )

    def reject(self, delivery_id: int, settled: bool, error: BusError) -> None:
        """The owner never sees it, so the credit that it took is given again."""
        client = self.client
        if self.far is not None:
            self.near.grant(self.far.credit if self.far.credit > 0 else 0)
            client.touch()
        if settled:
            client.log_presettled_refusal(error)
            return
        state = encode_rejected(client.error_of(error, self.address.path))
        client.send_disposition(self.near.session, True, delivery_id, delivery_id, state, "")

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        state = ACCEPTED if outcome.code == ACCEPTED_CODE else self.carried.state_for_client(outcome)
        numbers: list[int] = []
        for delivery in deliveries:
            theirs = delivery.context
            assert isinstance(theirs, int)
            numbers.append(theirs)
        send_ranges(self.near.session, True, numbers, settled, state)
        client = self.client
        if not client.dirty:
            client.touch()

    def on_flow(self, link: Link) -> None:
        if link is self.far and self.near.attached:
            self.near.grant(link.credit if link.credit > 0 else 0)
            self.client.touch()

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        if link is self.near:
            self.client.link_gone(link)
            if self.far is not None:
                self.detach_far(self.far)
        else:
            self.detach_near(self.near, error)


class CarriedRequests(CarriedSending):
    """Requests to the management node of an entity elsewhere. The owner was told what the client may do when the link was attached."""

    def __init__(
        self,
        client: PeerConnection,
        carried: CarriedConnection,
        address: Address,
        right: Right,
        near: ReceiverLink,
        rights: frozenset[Right],
    ) -> None:
        super().__init__(client, carried, address, right, near)
        self._rights = rights

    def on_attached(self, link: Link) -> None:
        self.near.accept(link.source, link.target, link.properties or None, link.remote_max_message_size)
        self.client.touch()

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        if not self._rights <= self.client.rights_on(self.address):
            lapsed = Unauthorized(f"The token has expired and was not renewed. Resource: '{self.address.path}'. Attach the link again.")
            self.reject(delivery_id, settled, lapsed)
            return
        super().on_transfer(link, delivery_id, tag, payload, settled, message_format, state)


class CarriedReceiving(CarriedLink):
    """A client receives from an entity of another node, or answers to its requests there."""

    def __init__(self, client: PeerConnection, carried: CarriedConnection, address: Address, right: Right, near: SenderLink) -> None:
        super().__init__(client, carried, address, right)
        self.near: SenderLink = near
        self.far: ReceiverLink | None = None
        self._asks: int = 0
        self._ours: dict[int, int] = {}
        """By the owner's delivery id the one that the client knows."""
        self._shut: bool = False
        """The client's window is shut: no more is taken in for its session."""

    def attach(self, properties: dict[object, object] | None) -> None:
        near = self.near
        near.handle_with(self)
        session = self.carried.session_for(near.session)
        self.far = session.attach_receiver(
            near.name,
            near.source,
            near.target,
            self,
            near.snd_settle_mode,
            _SECOND,
            properties,
            0,  # what the client would take at most: the owner does not ask, and neither do we
            near.desired_capabilities,
        )
        self.carried.touch()

    def take_away(self, error: AmqpError) -> None:
        """Its entity is elsewhere now, or not there alone: what the client had is given back."""
        if self.far is not None:
            self.detach_far(self.far, error)
        self.near.detach(error)

    def on_attached(self, link: Link) -> None:
        near = self.near
        if near.state != ATTACH_RECEIVED:
            return  # it was taken away meanwhile, or the client gave up
        near.offers = link.offered_capabilities
        near.snd_settle_mode = link.remote_snd_settle_mode
        if not self.address.management:
            self.client.keep_link(near, self.address, self.right)
        near.accept(link.source, link.target, link.properties or None)
        self.client.touch()

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        near = self.near
        if not near.attached:
            return
        ours = near.send(payload, tag, settled, delivery_id, message_format)
        if not settled:
            self._ours[delivery_id] = ours
        if near.session.window <= 0 and not self._shut:
            self._shut = True
            near.session.hold_back(near)
            link.session.keep_window_shut()
        client = self.client
        if not client.dirty:
            client.touch()

    def on_flow(self, link: Link) -> None:
        far = self.far
        near = self.near
        if far is None:
            return
        if link is far:
            if near.drain and not far.drain and near.attached:
                near.drained()
                self.client.touch()
            return
        if self._shut and near.session.window > 0:
            self._shut = False
            far.session.let_window_open()
            self.carried.touch()
        if near.asks != self._asks and far.attached:
            self._asks = near.asks
            far.ask_for(near.credit if near.credit > 0 else 0, near.drain)
            self.carried.touch()

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        if outcome.code == TRANSACTIONAL:
            try:
                carry_settlement(self, deliveries, outcome, settled)
            except BusError as error:
                if settled:
                    self.client.transactions.doom(outcome.txn_id, error)
                self.refuse(deliveries, settled, error)
            return
        self.settle(deliveries, settled, ACCEPTED if outcome.code == ACCEPTED_CODE else encode_outcome(outcome))

    def refuse(self, deliveries: list[Delivery], settled: bool, error: BusError) -> None:
        """What the client said of these cannot be told to the owner; what it settled for good is given back there."""
        if settled:
            self.settle(deliveries, True, RELEASED)
            return
        state = encode_rejected(self.client.error_of(error, self.address.path))
        for delivery in deliveries:
            self.client.send_disposition(self.near.session, False, delivery.delivery_id, delivery.delivery_id, state, "")

    def settle(self, deliveries: list[Delivery], settled: bool, state: bytes) -> None:
        """Tell the owner, range by range."""
        far = self.far
        if far is None or not far.attached:
            return
        ours = self._ours
        numbers: list[int] = []
        for delivery in deliveries:
            theirs = delivery.context
            assert isinstance(theirs, int)
            if settled:
                ours.pop(theirs, None)
            numbers.append(theirs)
        send_ranges(far.session, True, numbers, settled, state)
        carried = self.carried
        if not carried.dirty:
            carried.touch()

    def on_settled_incoming(self, link: ReceiverLink, first: int, last: int, outcome: Outcome, settled: bool) -> None:
        state = ACCEPTED if outcome.code == ACCEPTED_CODE else self.carried.state_for_client(outcome)
        numbers: list[int] = []
        for number in range(((last - first) & _MASK) + 1):
            theirs = (first + number) & _MASK
            ours = self._ours.pop(theirs, -1) if settled else self._ours.get(theirs, -1)
            if ours >= 0:
                numbers.append(ours)
        send_ranges(self.near.session, False, numbers, settled, state)
        client = self.client
        if not client.dirty:
            client.touch()

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        if link is self.near:
            self.client.link_gone(link)
            if self.far is not None:
                if self._shut:
                    self.far.session.let_window_open()
                self.detach_far(self.far)
        else:
            self.detach_near(self.near, error)
