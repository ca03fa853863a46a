"""Senders to a partitioned entity whose fragments several nodes have: what has a key goes to the owner of its fragment.

What has none stays here, where it costs least, as long as a fragment here takes messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tandem.amqp.outcomes import ACCEPTED, ACCEPTED_CODE, Outcome, encode_rejected, encode_transactional
from tandem.broker.entities.joined import AllOf
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.ports import Effect
from tandem.gateway import verbs
from tandem.gateway.amqp.carried_transactions import carry_send
from tandem.gateway.amqp.carrying import CarriedSending, send_ranges
from tandem.gateway.amqp.sending import BATCH_FORMAT, Sending, split_batch
from tandem.gateway.amqp.settlements import transaction_of
from tandem.model.errors import BusError, StoreUnavailable, TransactionRolledBack, shutting_down

if TYPE_CHECKING:
    from tandem.amqp.errors import AmqpError
    from tandem.amqp.link import Delivery, Link, ReceiverLink, SenderLink
    from tandem.gateway.amqp.carried_transactions import CarriedTransaction
    from tandem.gateway.amqp.carrying import CarriedConnection
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address
    from tandem.model.entity import Right
    from tandem.model.message import Message

_TAG_BYTES_MAX: Final = 32

OwnerOf = Callable[[PartitionedQueue, int], str]
"""Who has this fragment; empty: it is here."""


class SpreadSending(Sending):
    """A client sends to an entity of which some fragments are here, or none."""

    def __init__(
        self,
        connection: PeerConnection,
        queue: PartitionedQueue,
        address: Address,
        right: Right,
        link: ReceiverLink,
        owner_of: OwnerOf,
        open_to: Callable[[FarSending], None],
    ) -> None:
        super().__init__(connection, queue, address)
        self._front: PartitionedQueue = queue
        self._right = right
        self._link: ReceiverLink = link
        self._owner_of = owner_of
        self._open_to = open_to
        """Attaches it to its node, or says that it could not be."""
        self._far: dict[str, FarSending] = {}
        self._next: int = 0

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        connection = self.connection
        try:
            if connection.context.draining:
                raise shutting_down()
            if state is not None:
                found = transaction_of(state)
                if found is not None:
                    self._transact(link, found, delivery_id, tag, payload, settled, message_format, state)
                    return
            if message_format == BATCH_FORMAT:
                self._batch(link, delivery_id, tag, payload, settled)
                return
            message = connection.translator.message(payload)
            owner = self._owner(message)
            if not owner:
                placed = verbs.send(self._front, message, connection.turn.now)
                if settled:
                    self._front.when_durable(verbs.NOTHING)
                else:
                    self._answer_for_fragment(link, delivery_id, placed)
                return
            far = self._far_to(owner)
            far.send(payload, tag, settled, delivery_id, message_format)
        except BusError as error:
            self._reject(link, delivery_id, settled, error)

    def _owner(self, message: Message) -> str:
        front = self._front
        fragment = front.fragment_of(message)
        if fragment >= 0:
            return self._owner_of(front, fragment)
        return "" if front.takes_here() else self._any_other()

    def _any_other(self) -> str:
        """One of those that have fragments, another one each time; here, if nobody else has any."""
        front = self._front
        count = len(front.fragments.queues)
        for _ in range(count):
            self._next = (self._next + 1) % count
            owner = self._owner_of(front, self._next)
            if owner:
                return owner
        return ""

    def _far_to(self, owner: str) -> FarSending:
        far = self._far.get(owner)
        if far is None or far.over:
            far = self._far[owner] = FarSending(self.connection, owner, self.address, self._right, self._link)
            self._open_to(far)
        return far

    # -- batches -----------------------------------------------------------------------------

    def _batch(self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool) -> None:
        connection = self.connection
        front = self._front
        parts = split_batch(payload)
        messages = [connection.translator.message(part) for part in parts]
        shares: dict[str, list[int]] = {}
        for number, message in enumerate(messages):
            shares.setdefault(self._owner(message), []).append(number)
        if len(shares) == 1:
            for owner in shares:
                if owner:
                    self._far_to(owner).send(payload, tag, settled, delivery_id, BATCH_FORMAT)
                else:
                    self._send_messages(link, delivery_id, front, messages, settled, connection.turn.now)
            return
        for message in messages:  # what may refuse one is asked before anybody takes any
            front.check_send(message, message.size_bytes)
        own = [messages[number] for number in shares.get("", ())]
        if own:
            front.check_sends(own)
        answer = _Joint(connection, link, delivery_id, settled, len(shares), front.path)
        if own:
            placed = verbs.send_all(front, own, connection.turn.now)
            touched = {one.part: None for one in placed}
            joint = AllOf(answer, len(touched))
            for part in touched:
                part.when_durable(joint)
        for owner, numbers in shares.items():
            if owner:
                share = b"".join([_data_section(parts[number]) for number in numbers])
                self._far_to(owner).send(share, tag, False, answer, BATCH_FORMAT)

    # -- transactions ------------------------------------------------------------------------

    def _transact(
        self,
        link: ReceiverLink,
        found: Outcome,
        delivery_id: int,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: bytes,
    ) -> None:
        """To the owner of its key; what has none goes where the transaction is already."""
        connection = self.connection
        try:
            parts = split_batch(payload) if message_format == BATCH_FORMAT else [payload]
            messages = [connection.translator.message(part) for part in parts]
            shares: dict[str, list[int]] = {}
            keyless: list[int] = []
            for number, message in enumerate(messages):
                fragment = self._front.fragment_of(message)
                (shares.setdefault(self._owner_of(self._front, fragment), []) if fragment >= 0 else keyless).append(number)
            owner = next(iter(shares)) if shares else connection.transactions.node_of(found.txn_id)
            if len(shares) > 1:
                shares[owner] = sorted(shares[owner] + keyless)
                self._share_out(
                    _TransactionalJoint(self, link, delivery_id, settled, len(shares), found.txn_id), shares, parts, messages, tag
                )
                return
            if owner:
                self._far_to(owner).send_in_transaction(found.txn_id, payload, tag, settled, delivery_id, message_format)
                return
        except BusError as error:
            if settled:
                connection.transactions.doom(found.txn_id, error)
            raise
        super().on_transfer(link, delivery_id, tag, payload, settled, message_format, state)

    def _share_out(
        self, answer: _TransactionalJoint, shares: dict[str, list[int]], parts: list[bytes], messages: list[Message], tag: bytes
    ) -> None:
        """A batch in a transaction whose keys lead to several nodes. Raises what refuses it before anybody has any of it."""
        transactions = self.connection.transactions
        for message in messages:
            self._front.check_send(message, message.size_bytes)
        if "" in shares:
            queue = self.connection.context.namespace.resolve_sender(self.address)
            transactions.send(answer.transaction.id, queue, [messages[number] for number in shares[""]])
        answer.begin()
        for owner, numbers in shares.items():
            try:
                if owner:
                    share = b"".join([_data_section(parts[number]) for number in numbers])
                    self._far_to(owner).send_share(answer, share, tag[:_TAG_BYTES_MAX])
                else:
                    answer.done(None)
            except BusError as error:
                answer.done(error)

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        super().on_detach(link, error)
        for far in self._far.values():
            far.let_go()


def _data_section(part: bytes) -> bytes:
    if len(part) < 256:
        return b"\x00\x53\x75\xa0" + bytes((len(part),)) + part
    return b"\x00\x53\x75\xb0" + len(part).to_bytes(4, "big") + part


class _Joint(Effect):
    """The answer to a batch of which several nodes take a share: when all have, with the first refusal if there is one."""

    __slots__ = ("_accepted", "_connection", "_delivery_id", "_left", "_link", "_path", "_settled", "_state")

    def __init__(
        self,
        connection: PeerConnection,
        link: ReceiverLink,
        delivery_id: int,
        settled: bool,
        left: int,
        path: str,
        accepted: bytes = ACCEPTED,
    ) -> None:
        """`accepted`: what each of them says if it takes its share."""
        self._connection: PeerConnection = connection
        self._link: ReceiverLink = link
        self._delivery_id: int = delivery_id
        self._settled: bool = settled
        self._left: int = left
        self._path: str = path
        self._accepted: bytes = accepted
        self._state: bytes = accepted

    def done(self, error: BaseException | None) -> None:
        self.answered(self._accepted if error is None else encode_rejected(self._connection.error_of(error, self._path)))

    def answered(self, state: bytes) -> None:
        self._left -= 1
        if state != self._accepted and self._state == self._accepted:
            self._state = state
        if self._left == 0 and not self._settled and not self._connection.gone:
            self._connection.send_disposition(self._link.session, True, self._delivery_id, self._delivery_id, self._state, "")


class _TransactionalJoint(_Joint):
    """The same in a transaction, which is not discharged before all have answered, and not at all if one has refused: no part of a batch
    happens without the rest."""

    __slots__ = ("_transactions", "transaction")

    def __init__(
        self, sending: SpreadSending, link: ReceiverLink, delivery_id: int, settled: bool, left: int, transaction: bytes | None
    ) -> None:
        connection = sending.connection
        self._transactions = connection.transactions
        self.transaction = connection.transactions.find(transaction)
        accepted = encode_transactional(self.transaction.id, ACCEPTED)
        super().__init__(connection, link, delivery_id, settled, left, sending.address.path, accepted)

    def begin(self) -> None:
        self.transaction.load_one()

    def answered(self, state: bytes) -> None:
        if state != self._accepted:
            self.transaction.doom(TransactionRolledBack("a node has refused its share of a batch."))
        super().answered(state)
        if self._left == 0:
            self._transactions.loaded(self.transaction)


class FarSending:
    """What one sender here sends to the fragments of one other node: kept back until it is attached there, while the client is not read."""

    def __init__(self, client: PeerConnection, node: str, address: Address, right: Right, near: ReceiverLink) -> None:
        self.client: PeerConnection = client
        self.node: str = node
        self.address = address
        self.right = right
        self.near: ReceiverLink = near
        self.over: bool = False
        self._link: _FarLink | None = None
        self._waiting: list[tuple[Callable[[_FarLink], None], Callable[[BusError], None]]] = []

    def attach(self, carried: CarriedConnection, properties: dict[object, object] | None) -> None:
        link = _FarLink(self, carried)
        link.attach(properties)

    def attached(self, link: _FarLink) -> None:
        self._link = link
        waiting = self._waiting
        self._waiting = []
        if waiting:
            self.client.writer.hold_reading(False)
        if self.over or not self.near.attached:
            link.let_go()
            for _, refuse in waiting:
                refuse(self._away("its sender was closed"))
            return
        for work, _ in waiting:
            work(link)

    def send(self, payload: bytes, tag: bytes, settled: bool, context: object, message_format: int) -> None:
        link = self._link
        if link is not None:
            link.carry(payload, tag, settled, context, message_format)
            return

        def carry(link: _FarLink) -> None:
            link.carry(payload, tag, settled, context, message_format)

        def refuse(error: BusError) -> None:
            self._refuse(context, settled, error)

        self._wait(carry, refuse)

    def send_in_transaction(
        self, id_: bytes | None, payload: bytes, tag: bytes, settled: bool, delivery_id: int, message_format: int
    ) -> None:
        def send(link: _FarLink) -> None:
            try:
                carry_send(link, id_, delivery_id, tag[:_TAG_BYTES_MAX], payload, settled, message_format)
            except BusError as error:
                refuse(error)

        def refuse(error: BusError) -> None:
            if settled:
                self.client.transactions.doom(id_, error)
            self._refuse(delivery_id, settled, error)

        if self._link is not None:
            send(self._link)
            return
        transactions = self.client.transactions
        transaction = transactions.find(id_)
        transaction.load_one()  # a discharge may be right behind it

        def send_late(link: _FarLink) -> None:
            send(link)
            transactions.loaded(transaction)

        def refuse_late(error: BusError) -> None:
            refuse(error)
            transactions.loaded(transaction)

        self._wait(send_late, refuse_late)

    def send_share(self, answer: _TransactionalJoint, share: bytes, tag: bytes) -> None:
        """Of a batch in a transaction."""

        def send(link: _FarLink) -> None:
            try:
                part = self.client.transactions.carry(answer.transaction.id, link.carried)
            except BusError as error:
                answer.done(error)
                return
            part.when_declared(lambda theirs: transfer(link, part, theirs))

        def transfer(link: _FarLink, part: CarriedTransaction, theirs: bytes | None) -> None:
            far = link.far
            if theirs is None:
                answer.done(part.refusal())
            elif far is None or not far.attached:
                answer.done(self._away(None))
            else:
                far.send(share, tag, False, answer, BATCH_FORMAT, encode_transactional(theirs))
                link.carried.touch()

        if self._link is not None:
            send(self._link)
        else:
            self._wait(send, answer.done)

    def _away(self, why: str | None) -> StoreUnavailable:
        path = self.address.path
        return StoreUnavailable(f"The node that has the fragment of '{path}' for this message is away ({why or 'it hung up'}). Try again.")

    def _wait(self, work: Callable[[_FarLink], None], refuse: Callable[[BusError], None]) -> None:
        if not self._waiting:
            self.client.writer.hold_reading(True)
        self._waiting.append((work, refuse))

    def _refuse(self, context: object, settled: bool, error: BusError) -> None:
        if isinstance(context, _Joint):
            context.done(error)
            return
        assert isinstance(context, int)
        client = self.client
        if client.gone or not self.near.attached:
            return
        if settled:
            client.log_presettled_refusal(error)
            return
        state = encode_rejected(client.error_of(error, self.address.path))
        client.send_disposition(self.near.session, True, context, context, state, "")

    def let_go(self) -> None:
        """The client has."""
        if self._link is not None:
            self._link.let_go()

    def lost(self, why: str | None, unanswered: list[Delivery]) -> None:
        """What waits for its answer may or may not have been taken: its sender tries again, or has its duplicates detected."""
        if self.over:
            return
        self.over = True
        waiting = self._waiting
        self._waiting = []
        if waiting:
            self.client.writer.hold_reading(False)
        away = self._away(why)
        for _, refuse in waiting:
            refuse(away)
        for delivery in unanswered:
            self._refuse(delivery.context, False, away)
        if not self.client.gone:
            self.client.touch()


class _FarLink(CarriedSending):
    """Its link to that node."""

    def __init__(self, sending: FarSending, carried: CarriedConnection) -> None:
        super().__init__(sending.client, carried, sending.address, sending.right, sending.near)
        self._sending: FarSending = sending

    def attach(self, properties: dict[object, object] | None) -> None:
        near = self.near
        self.far = self.carried.session_for(near.session).attach_sender(
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

    def carry(self, payload: bytes, tag: bytes, settled: bool, context: object, message_format: int) -> None:
        far = self.far
        assert far is not None
        if len(tag) > _TAG_BYTES_MAX:
            tag = tag[:_TAG_BYTES_MAX]
        far.send(payload, tag, settled, context, message_format)
        carried = self.carried
        if not carried.dirty:
            carried.touch()

    def let_go(self) -> None:
        if self.far is not None:
            self.detach_far(self.far)

    def on_attached(self, link: Link) -> None:
        self._sending.attached(self)

    def on_flow(self, link: Link) -> None:
        """The client has its credit from here."""

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        state = ACCEPTED if outcome.code == ACCEPTED_CODE else self.carried.state_for_client(outcome)
        numbers: list[int] = []
        for delivery in deliveries:
            context = delivery.context
            if isinstance(context, int):
                numbers.append(context)
            elif isinstance(context, _Joint):
                context.answered(state)
        if numbers:
            send_ranges(self.near.session, True, numbers, settled, state)
        client = self.client
        if not client.dirty:
            client.touch()

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        unanswered = self.far.unsettled() if self.far is not None else []
        self._sending.lost(error.description if error is not None else None, unanswered)
