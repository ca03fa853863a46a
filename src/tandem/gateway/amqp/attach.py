"""Where a link leads: finds the entity an attach names, checks the claim, and gives the link its handler."""

from __future__ import annotations

from typing import Final

from tandem.amqp.errors import AmqpError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, ReceiverLink, SenderLink
from tandem.amqp.terminus import Coordinator, Terminus
from tandem.amqp.types import Described, Symbol
from tandem.broker.ports import Selector, SessionAcceptor
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.sessions import MessageSession
from tandem.gateway.amqp.cbs import TokenNode
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.jms import DELAYED_DELIVERY, check_wishes
from tandem.gateway.amqp.management import ManagementNode
from tandem.gateway.amqp.receiving import LinkConsumer, Receiving
from tandem.gateway.amqp.requests import ReplyLinks, Requests
from tandem.gateway.amqp.selectors import take_selector
from tandem.gateway.amqp.sending import Sending
from tandem.gateway.amqp.transactions import CoordinatorLink
from tandem.model import address as addresses
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import BusError, EntityDisabled, InvalidField, NotAllowed, NotImplementedByBroker, OperationTimeout, Unauthorized

SESSION_FILTER: Final = "com.microsoft:session-filter"
_SESSION_DESCRIPTORS: Final = (0x0000_0013_7000_000C, SESSION_FILTER)
_TIMEOUT: Final = "com.microsoft:timeout"
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


class Node:
    """All attaches of one connection arrive here."""

    def __init__(self, client: PeerConnection) -> None:
        self._client = client
        self._replies = ReplyLinks()

    def attach(self, link: Link) -> None:
        path = ""
        try:
            terminus = link.target if link.receiver else link.source
            if isinstance(terminus, Coordinator):
                self._attach_coordinator(link)
                self._client.touch()
                return
            if terminus is not None:
                check_wishes(terminus, not link.receiver, self._client.context.namespace)
            if terminus is None or terminus.address is None:
                raise InvalidField(f"The attach names no address in its {'target' if link.receiver else 'source'}.")
            path = terminus.address
            self._attach(link, addresses.parse(path), terminus)
        except BusError as error:
            refusal = self._client.error_of(error, addresses.parse(path).path)
            if isinstance(error, Unauthorized):
                self._client.context.log(f"link of {self._client.peer} refused: {refusal.description}")
            link.refuse(refusal)
        self._client.touch()

    def _attach(self, link: Link, address: Address, terminus: Terminus) -> None:
        if address.entity.casefold() == addresses.CBS:
            self._attach_requests(link, addresses.CBS, TokenNode(self._client), _TOKEN_BYTES_MAX)
        elif self._left_alone(address):
            return
        elif address.management:
            self._attach_management(link, address)
        elif isinstance(link, ReceiverLink):
            self._attach_sending(link, address)
        elif isinstance(link, SenderLink):
            self._attach_receiving(link, address, terminus)

    def _left_alone(self, address: Address) -> bool:
        """An injected fault leaves the attach unanswered, or refuses it."""
        context = self._client.context
        return context.faults_active and context.fault_points is not None and context.fault_points.at_attach(address)

    # -- request and response ----------------------------------------------------------------

    def _attach_management(self, link: Link, address: Address) -> None:
        client = self._client
        try:
            client.require(address, Right.LISTEN)
        except BusError:
            client.require(address, Right.SEND)
        limits = client.context.limits
        largest = _MESSAGES_PER_REQUEST * client.context.namespace.resolve(address).message_bytes_max
        node = ManagementNode(client, address)
        self._attach_requests(link, address.path.casefold(), node, min(largest, limits.message_bytes_ceiling))

    def _attach_requests(self, link: Link, node: str, requests: Requests, bytes_max: int) -> None:
        if isinstance(link, ReceiverLink):
            link.handler = requests
            requests.replies = self._replies
            requests.node = node
            link.auto_credit = self._client.context.limits.link_credit
            link.accept(max_message_size=bytes_max)
        elif isinstance(link, SenderLink):
            link.handler = self._replies
            link.accept()
            self._replies.add(node, link)

    def _attach_coordinator(self, link: Link) -> None:
        """Nobody needs a token to declare: what is sent and settled inside goes over links that needed one."""
        client = self._client
        assert isinstance(link, ReceiverLink)
        link.handler = CoordinatorLink(client, client.transactions)
        link.auto_credit = client.context.limits.link_credit
        link.accept(max_message_size=_COORDINATOR_BYTES_MAX)

    # -- sending -----------------------------------------------------------------------------

    def _attach_sending(self, link: ReceiverLink, address: Address) -> None:
        client = self._client
        client.require(address, Right.SEND)
        via = link.properties.get(_DESTINATION)
        if via is not None:
            # Send-via: the message goes where the property says; the target is where the transaction began.
            if not isinstance(via, str):
                raise InvalidField(f"The link property {_DESTINATION} must be a string, found {type(via).__name__}.")
            client.context.namespace.must_exist(address)
            address = addresses.parse(via)
            client.require(address, Right.SEND)
        if address.sub_queue is not addresses.SubQueue.MAIN:
            raise NotAllowed(f"'{address.path}' is a sub-queue: messages are moved there, not sent.")
        queue = client.context.namespace.resolve_sender(address)
        if not queue.may_send:
            raise EntityDisabled(f"Messaging entity '{queue.path}' is currently disabled for sending. Set its status to Active.")
        link.handler = Sending(client, queue, address)
        client.keep_link(link, address, Right.SEND)
        queue.accessed_at = client.turn.now
        link.auto_credit = client.context.limits.link_credit
        if DELAYED_DELIVERY in link.desired_capabilities:
            link.offers = [DELAYED_DELIVERY]
        link.accept(max_message_size=queue.message_bytes_max)

    # -- receiving ---------------------------------------------------------------------------

    def _attach_receiving(self, link: SenderLink, address: Address, source: Terminus) -> None:
        client = self._client
        client.require(address, Right.LISTEN)
        queue = client.context.namespace.resolve(address)
        if not queue.may_receive:
            raise EntityDisabled(f"Messaging entity '{queue.path}' is currently disabled for receiving. Set its status to Active.")
        queue.check_receiver()
        queue.accessed_at = client.turn.now
        peek_lock = link.snd_settle_mode != _SETTLED_MODE
        consumer = LinkConsumer(client, link, peek_lock)
        if SESSION_FILTER in source.filter:
            if source.distribution_mode == _COPY or take_selector(Terminus(filter=dict(source.filter)), client.context.limits) is not None:
                raise NotImplementedByBroker("Selectors and browsing are for receivers without a session.")
            self._attach_session(link, address, source, queue, consumer)
            return
        if queue.has_sessions:
            raise NotAllowed("It is not possible for an entity that requires sessions to create a non-sessionful message receiver.")
        consumer.selector = take_selector(source, client.context.limits)
        if source.distribution_mode == _COPY and not source.durable:  # JMS writes it for durable subscriptions too
            consumer.copies, consumer.peek_lock = True, False
            consumer.selector = consumer.selector or Selector()
            link.snd_settle_mode = _SETTLED_MODE
        self._serve(link, address, queue, consumer, None)

    def _serve(self, link: SenderLink, address: Address, queue: Queue, consumer: LinkConsumer, session: MessageSession | None) -> None:
        client = self._client
        link.handler = Receiving(client, queue, consumer)
        queue.add_consumer(consumer)
        client.keep_link(link, address, Right.LISTEN)
        if session is None:
            link.accept()
            return
        source = link.source
        assert source is not None
        asked = source.filter[SESSION_FILTER]
        answer = Described(asked.descriptor, session.id) if isinstance(asked, Described) else session.id
        source.filter = {Symbol(SESSION_FILTER): answer}
        link.accept(source=source, properties={_LOCKED_UNTIL: session.locked_until * 10_000 + _EPOCH_TICKS})

    def _attach_session(self, link: SenderLink, address: Address, source: Terminus, queue: Queue, consumer: LinkConsumer) -> None:
        client = self._client
        asked = source.filter[SESSION_FILTER]
        # Filters should be described (3.5.1), and half of the clients do so; each reads the answer only in its own form.
        wanted = asked.value if isinstance(asked, Described) and asked.descriptor in _SESSION_DESCRIPTORS else asked
        if not queue.has_sessions:
            raise NotAllowed(f"A sessionful message receiver cannot be created on '{queue.path}', which does not require sessions.")
        if wanted is None:
            patience = link.properties.get(_TIMEOUT)
            wait_ms = patience if isinstance(patience, int) and patience >= 0 else client.context.limits.next_session_wait_ms
            acceptor = _NextSession(self, link, address, queue, consumer, client.turn.now + wait_ms)
            link.handler = _Waiting(queue, acceptor)
            queue.await_session(acceptor)
        elif isinstance(wanted, str):
            if len(wanted) > client.context.limits.session_id_chars_max:
                raise InvalidField(
                    f"The session id has {len(wanted)} characters; {client.context.limits.session_id_chars_max} are allowed."
                )
            session = queue.accept_session(wanted, consumer, client.turn.now)
            self._serve(link, address, queue, consumer, session)
        else:
            raise InvalidField(f"The filter {SESSION_FILTER} must be a string or null, found {type(wanted).__name__}.")


class _NextSession(SessionAcceptor):
    """An attach that waits for the next free session."""

    __slots__ = ("_address", "_link", "_node", "_queue")

    def __init__(self, node: Node, link: SenderLink, address: Address, queue: Queue, consumer: LinkConsumer, deadline: int) -> None:
        super().__init__(consumer, deadline)
        self._node = node
        self._link = link
        self._address = address
        self._queue = queue

    def accepted(self, session: MessageSession) -> None:
        consumer = self.consumer
        assert isinstance(consumer, LinkConsumer)
        self._node._serve(self._link, self._address, self._queue, consumer, session)
        consumer.client.touch()

    def timed_out(self) -> None:
        consumer = self.consumer
        assert isinstance(consumer, LinkConsumer)
        waited = OperationTimeout(f"There was no session with messages in '{self._queue.path}' in the time given.")
        self._link.refuse(consumer.client.error_of(waited, self._queue.path))
        consumer.client.touch()


class _Waiting(LinkHandler):
    """The client gave up while it waited for a session."""

    def __init__(self, queue: Queue, acceptor: SessionAcceptor) -> None:
        self._queue = queue
        self._acceptor = acceptor

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._queue.forget_acceptor(self._acceptor)
