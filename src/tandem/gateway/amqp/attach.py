"""Where a link leads: finds the entity an attach names, checks the claim, and gives the link its handler."""

from __future__ import annotations

from typing import Final

from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import ATTACH_RECEIVED, Link, ReceiverLink, SenderLink
from tandem.amqp.terminus import Coordinator, Terminus
from tandem.amqp.types import Described, Symbol
from tandem.broker.ports import SessionAcceptor
from tandem.broker.queue.entity import Entity
from tandem.broker.queue.sessions import MessageSession
from tandem.cluster.peers import PART_PROPERTY
from tandem.gateway.amqp.cbs import TokenNode
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.coordinator import CoordinatorLink
from tandem.gateway.amqp.jms import DELAYED_DELIVERY, SHARED_SUBSCRIPTIONS, node_of
from tandem.gateway.amqp.leases import LeaseOperations
from tandem.gateway.amqp.management import ManagementNode
from tandem.gateway.amqp.peer_requests import BYTES_MAX, PEER, PeerNode
from tandem.gateway.amqp.receiving import LinkConsumer, Receiving
from tandem.gateway.amqp.requests import Requests
from tandem.gateway.amqp.selectors import take_selector
from tandem.gateway.amqp.sending import Sending
from tandem.gateway.amqp.sending_once import ONCE, SendingOnce
from tandem.gateway.amqp.spread_receiving import PartReceiving, SpreadConsumer, SpreadReceiving
from tandem.model import address as addresses
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import (
    BusError,
    EntityDisabled,
    EntityNotFound,
    InvalidField,
    NotAllowed,
    NotImplementedByBroker,
    OperationTimeout,
    Unauthorized,
)
from tandem.model.limits import Limits

SESSION_FILTER: Final = "com.microsoft:session-filter"
_SESSION_DESCRIPTORS: Final = (0x0000_0013_7000_000C, SESSION_FILTER)
TIMEOUT_PROPERTY: Final = "com.microsoft:timeout"
_LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
_EPOCH_TICKS: Final = 621_355_968_000_000_000
_SETTLED_MODE: Final = 1
_COPY: Final = "copy"
"""The distribution mode of a receiver that only looks."""
_TOKEN_BYTES_MAX: Final = 262_144
"""A request to `$cbs`, which anybody may make: far more than a token, so that one that is too long hears so."""
_MESSAGES_PER_REQUEST: Final = 16
"""How many messages of full size one management request may carry, to be scheduled."""
_DESTINATION: Final = "com.microsoft:transfer-destination-address"
_COORDINATOR_BYTES_MAX: Final = 65_536


def attach(connection: PeerConnection, link: Link) -> None:
    """Answers an attach, now or when the session it asks for is free."""
    _attach(connection, link, connection.context.look_again is not None)


async def _attach_again(connection: PeerConnection, link: Link) -> None:
    """Another node may just have made what is asked for: it is looked for once, before anybody hears that it is not there."""
    look_again = connection.context.look_again
    assert look_again is not None
    try:
        await look_again()
    except BusError as error:
        connection.context.log(f"whether other nodes have changed the namespace is not known: {error.description}")
    if not connection.gone and link.state == ATTACH_RECEIVED:
        connection.turn.begin()
        _attach(connection, link, False)


def _attach(connection: PeerConnection, link: Link, look_again: bool) -> None:
    path = ""
    try:
        terminus = link.target if link.receiver else link.source
        if isinstance(terminus, Coordinator):
            _attach_coordinator(connection, link)
            connection.touch()
            return
        address = node_of(terminus or Terminus(), link.name, not link.receiver, connection.context.namespace)
        path = address.path
        _attach_to(connection, link, address)
    except BusError as error:
        if look_again and isinstance(error, EntityNotFound):
            connection.context.spawn(_attach_again(connection, link))
            return
        refusal = connection.error_of(error, path)
        if isinstance(error, Unauthorized):
            connection.context.warn(f"link of {connection.peer} refused: {refusal.description}")
        link.refuse(refusal)
    connection.touch()


def _attach_to(connection: PeerConnection, link: Link, address: Address) -> None:
    if address.entity.casefold() == addresses.CBS:
        _attach_requests(link, TokenNode(connection, addresses.CBS), _TOKEN_BYTES_MAX)
        return
    if address.entity == PEER and not connection.may_carry:
        _attach_requests(link, PeerNode(connection, connection.context.peer_operations), BYTES_MAX)
        return
    right = _claim(connection, link, address)
    if right is Right.SEND:
        address = _destination(connection, link, address)
    carrier = connection.context.carrier
    if carrier is None or not connection.may_carry or not carrier.takes(connection, link, address, right):
        attach_here(connection, link, address, right)


def _claim(connection: PeerConnection, link: Link, address: Address) -> Right:
    """What the link stands on; requests may stand on either."""
    right = Right.SEND if link.receiver and not address.management else Right.LISTEN
    try:
        connection.require(address, right)
    except BusError:
        if not address.management:
            raise
        connection.require(address, Right.SEND)
    return right


def _destination(connection: PeerConnection, link: Link, address: Address) -> Address:
    """Where messages go: the target, or, sent via a transaction that began there, what a property of the link says."""
    via = link.properties.get(_DESTINATION)
    if via is None:
        return address
    if not isinstance(via, str):
        raise InvalidField(f"The link property {_DESTINATION} must be a string, found {type(via).__name__}.")
    connection.context.namespace.must_exist(address)
    address = addresses.parse(via)
    connection.require(address, Right.SEND)
    return address


def attach_here(connection: PeerConnection, link: Link, address: Address, right: Right) -> None:
    """To an entity that this node has; the claim is checked already."""
    try:
        if address.management:
            _attach_management(connection, link, address)
        elif isinstance(link, ReceiverLink):
            _attach_sending(connection, link, address)
        elif isinstance(link, SenderLink):
            _attach_receiving(connection, link, address)
    except BusError as error:
        link.refuse(connection.error_of(error, address.path))
    connection.touch()


# -- request and response --------------------------------------------------------------------


def _attach_management(connection: PeerConnection, link: Link, address: Address) -> None:
    attach_management(link, _management(connection, address), address)


def attach_management(link: Link, node: ManagementNode, address: Address) -> None:
    context = node.connection.context
    largest = _MESSAGES_PER_REQUEST * context.namespace.resolve(address).terms.message_bytes_max
    _attach_requests(link, node, min(largest, context.limits.message_bytes_ceiling))


def _attach_requests(link: Link, requests: Requests, bytes_max: int) -> None:
    connection = requests.connection
    if isinstance(link, ReceiverLink):
        link.handle_with(requests)
        link.keep_credit(connection.context.limits.link_credit)
        link.accept(max_message_size=bytes_max)
    elif isinstance(link, SenderLink):
        link.handle_with(connection.replies)
        link.accept()
        connection.replies.add(requests.node, link)


def _attach_coordinator(connection: PeerConnection, link: Link) -> None:
    """Nobody needs a token to declare: what is sent and settled inside goes over links that needed one."""
    assert isinstance(link, ReceiverLink)
    link.handle_with(CoordinatorLink(connection))
    link.keep_credit(connection.context.limits.link_credit)
    link.accept(max_message_size=_COORDINATOR_BYTES_MAX)


# -- sending ---------------------------------------------------------------------------------


def sender_queue(connection: PeerConnection, address: Address) -> Entity:
    """What a sender to this address may send to now."""
    queue = connection.context.namespace.resolve_sender(address)
    if not queue.terms.may_send:
        raise EntityDisabled(f"Messaging entity '{queue.path}' is currently disabled for sending. Set its status to Active.")
    return queue


def _attach_sending(connection: PeerConnection, link: ReceiverLink, address: Address) -> None:
    queue = sender_queue(connection, address)
    once = link.properties.get(ONCE) is True
    serve_sender(link, address, queue, _sending(connection, queue, address, once), once)


def serve_sender(link: ReceiverLink, address: Address, queue: Entity, sending: Sending, once: bool = False) -> None:
    connection = sending.connection
    link.handle_with(sending)
    connection.keep_link(link, address, Right.SEND)
    queue.access(connection.turn.now)
    link.keep_credit(connection.context.limits.link_credit)
    if DELAYED_DELIVERY in link.desired_capabilities:
        link.offer([DELAYED_DELIVERY])
    link.accept(max_message_size=queue.terms.message_bytes_max, properties={Symbol(ONCE): True} if once else None)


def _sending(connection: PeerConnection, queue: Entity, address: Address, once: bool) -> Sending:
    tracing = connection.context.tracing
    if tracing is None:
        return SendingOnce(connection, queue, address) if once else Sending(connection, queue, address)
    from tandem.gateway.amqp.traced import TracedSending, TracedSendingOnce

    return (TracedSendingOnce if once else TracedSending)(connection, queue, address, tracing)


def _management(connection: PeerConnection, address: Address) -> ManagementNode:
    tracing = connection.context.tracing
    if tracing is None:
        return ManagementNode(connection, address, LeaseOperations(connection, address))
    from tandem.gateway.amqp.traced_requests import TracedLeases, TracedManagementNode

    return TracedManagementNode(connection, address, TracedLeases(connection, address, tracing), tracing)


# -- receiving -------------------------------------------------------------------------------


def _consumer(connection: PeerConnection, link: SenderLink, queue: Entity) -> LinkConsumer:
    tracing = connection.context.tracing
    peek_lock = link.snd_settle_mode != _SETTLED_MODE
    if tracing is None:
        return LinkConsumer(connection, link, peek_lock)
    from tandem.gateway.amqp.traced import TracedConsumer

    return TracedConsumer(connection, link, peek_lock, queue.path, tracing)


def _receiving(connection: PeerConnection, queue: Entity, consumer: LinkConsumer) -> Receiving:
    if isinstance(consumer, SpreadConsumer):
        return SpreadReceiving(connection, queue, consumer)
    if not connection.may_carry and consumer.link.properties.get(PART_PROPERTY) is True:
        return PartReceiving(connection, queue, consumer)
    if connection.context.tracing is not None:
        from tandem.gateway.amqp.traced import TracedConsumer, TracedReceiving

        if isinstance(consumer, TracedConsumer):
            return TracedReceiving(connection, queue, consumer)
    return Receiving(connection, queue, consumer)


def receiver_queue(connection: PeerConnection, address: Address) -> Entity:
    """What a receiver at this address may receive from now."""
    queue = connection.context.namespace.resolve(address)
    if not queue.terms.may_receive:
        raise EntityDisabled(f"Messaging entity '{queue.path}' is currently disabled for receiving. Set its status to Active.")
    queue.terms.check_receiver()
    queue.access(connection.turn.now)
    return queue


def _attach_receiving(connection: PeerConnection, link: SenderLink, address: Address) -> None:
    source = link.source
    assert source is not None
    limits = connection.context.limits
    queue = receiver_queue(connection, address)
    consumer = _consumer(connection, link, queue)
    if SESSION_FILTER in source.filter:
        refuse_choosing(source, limits)
        _attach_session(link, address, source, queue, consumer)
        return
    serve_without_session(link, address, queue, consumer)


def refuse_choosing(source: Terminus, limits: Limits) -> None:
    """Of a receiver that wants a session."""
    if source.distribution_mode == _COPY or take_selector(Terminus(filter=dict(source.filter)), limits) is not None:
        raise NotImplementedByBroker("Selectors and browsing are for receivers without a session.")


def serve_without_session(link: SenderLink, address: Address, queue: Entity, consumer: LinkConsumer) -> None:
    source = link.source
    assert source is not None
    if queue.terms.has_sessions:
        raise NotAllowed("It is not possible for an entity that requires sessions to create a non-sessionful message receiver.")
    consumer.select(take_selector(source, consumer.connection.context.limits))
    if source.distribution_mode == _COPY and not source.durable:  # JMS writes it for durable subscriptions too
        consumer.only_look()
        link.presettle()
    serve_receiver(link, address, queue, consumer, None)


def serve_receiver(link: SenderLink, address: Address, queue: Entity, consumer: LinkConsumer, session: MessageSession | None) -> None:
    connection = consumer.connection
    link.handle_with(_receiving(connection, queue, consumer))
    queue.add_consumer(consumer)
    connection.keep_link(link, address, Right.LISTEN)
    if SHARED_SUBSCRIPTIONS in link.desired_capabilities:
        link.offer([SHARED_SUBSCRIPTIONS])
    if session is None:
        link.accept()
        return
    source = link.source
    assert source is not None
    asked = source.filter[SESSION_FILTER]
    answer = Described(asked.descriptor, session.id) if isinstance(asked, Described) else session.id
    source.answer_filter({Symbol(SESSION_FILTER): answer})
    link.accept(source=source, properties={_LOCKED_UNTIL: session.locked_until * 10_000 + _EPOCH_TICKS})


def wanted_session(asked: object) -> object:
    """Filters should be described (3.5.1), and half of the clients do so; each reads the answer only in its own form."""
    return asked.value if isinstance(asked, Described) and asked.descriptor in _SESSION_DESCRIPTORS else asked


def session_patience_ms(link: Link, limits: Limits) -> int:
    """How long its client waits for the next session."""
    patience = link.properties.get(TIMEOUT_PROPERTY)
    return patience if isinstance(patience, int) and patience >= 0 else limits.next_session_wait_ms


def _attach_session(link: SenderLink, address: Address, source: Terminus, queue: Entity, consumer: LinkConsumer) -> None:
    turn, limits = consumer.connection.turn, consumer.connection.context.limits
    asked = source.filter[SESSION_FILTER]
    wanted = wanted_session(asked)
    if not queue.terms.has_sessions:
        raise NotAllowed(f"A sessionful message receiver cannot be created on '{queue.path}', which does not require sessions.")
    if wanted is None:
        acceptor = NextSession(link, address, queue, consumer, turn.now + session_patience_ms(link, limits))
        link.handle_with(AwaitingSession(queue, acceptor))
        queue.sessions.await_next(acceptor)
    elif isinstance(wanted, str):
        if len(wanted) > limits.session_id_chars_max:
            raise InvalidField(f"The session id has {len(wanted)} characters; {limits.session_id_chars_max} are allowed.")
        serve_receiver(link, address, queue, consumer, queue.sessions.accept(wanted, consumer, turn.now))
    else:
        raise InvalidField(f"The filter {SESSION_FILTER} must be a string or null, found {type(wanted).__name__}.")


class NextSession(SessionAcceptor):
    """An attach that waits for the next free session."""

    __slots__ = ("_address", "_link", "_queue")

    def __init__(self, link: SenderLink, address: Address, queue: Entity, consumer: LinkConsumer, deadline: int) -> None:
        super().__init__(consumer, deadline)
        self._link = link
        self._address = address
        self._queue = queue

    def accepted(self, session: MessageSession) -> None:
        consumer = self.consumer
        assert isinstance(consumer, LinkConsumer)
        serve_receiver(self._link, self._address, self._queue, consumer, session)
        consumer.connection.touch()

    def timed_out(self) -> None:
        consumer = self.consumer
        assert isinstance(consumer, LinkConsumer)
        waited = OperationTimeout(f"There was no session with messages in '{self._queue.path}' in the time given.")
        self._link.refuse(consumer.connection.error_of(waited, self._queue.path))
        consumer.connection.touch()


class AwaitingSession(LinkHandler):
    """The client gave up while it waited for a session."""

    def __init__(self, queue: Entity, acceptor: SessionAcceptor) -> None:
        self._queue = queue
        self.acceptor = acceptor

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._queue.sessions.forget(self.acceptor)
