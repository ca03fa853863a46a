"""Receivers of a partitioned entity whose fragments several nodes have: the client's credit is lent to who has something.

What is here is delivered as ever. Of the client's credit a part is lent to other owners, never more in sum than the client gave: an owner
says when it has something and when it has nothing more (`available` in its flows), and gives back what is wanted elsewhere (drain).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.outcomes import RELEASED
from tandem.broker.ports import Watcher
from tandem.broker.queue.locks import Lock
from tandem.gateway.amqp.carrying import CarriedReceiving, send_ranges
from tandem.gateway.amqp.receiving import LinkConsumer, Receiving
from tandem.model.errors import MessageLockLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem.amqp.errors import AmqpError
    from tandem.amqp.link import Delivery, Link, ReceiverLink, SenderLink
    from tandem.amqp.outcomes import Outcome
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.amqp.carrying import CarriedConnection
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address
    from tandem.model.entity import Right

_SECOND: Final = 1


class FarDelivery:
    """What a delivery is that came from another owner: whose, and the id that it has there."""

    __slots__ = ("delivery_id", "source")

    def __init__(self, source: FarSource, delivery_id: int) -> None:
        self.source: FarSource = source
        self.delivery_id: int = delivery_id


class SpreadConsumer(LinkConsumer):
    """The client's link as the fragments here see it: what is lent to others is no room."""

    __slots__ = ("sources",)

    def __init__(self, connection: PeerConnection, link: SenderLink, peek_lock: bool) -> None:
        super().__init__(connection, link, peek_lock)
        self.sources: dict[str, FarSource] = {}
        """By node, those that are attached or about to be."""

    def lent(self) -> int:
        total = 0
        for source in self.sources.values():
            total += source.lent
        return total

    def room_of_all(self) -> int:
        return super().room()

    def room(self) -> int:
        room = super().room()
        return room - self.lent() if room > 0 else room


class SpreadReceiving(Receiving):
    """A client receives from an entity of which some fragments are here, or none."""

    def __init__(self, connection: PeerConnection, queue: Entity, consumer: SpreadConsumer) -> None:
        super().__init__(connection, queue, consumer)
        self.own: SpreadConsumer = consumer
        self._watch: _Local = _Local(self)
        self._turns: int = 0
        self._unasked: list[FarSource] | None = None
        """While the client drains: who has not been asked yet."""
        self.nodes: set[str] = set()
        """That are drawn from, or are to be as soon as they are reached."""
        self.opening: set[str] = set()
        """Nodes that were not reached yet, nor found to be away: a drain waits for them."""
        queue.receivers.watch(self._watch)

    def add(self, source: FarSource) -> None:
        self.own.sources[source.node] = source

    def opened(self, node: str) -> None:
        """It is attached, or away."""
        if node in self.opening:
            self.opening.discard(node)
            if self.own.link.drain:
                self.balance()

    # -- credit ------------------------------------------------------------------------------

    def on_flow(self, link: Link) -> None:
        near = self.own.link
        if near.asks != self._asks:
            self._peer_asked(near)
        for source in self.own.sources.values():
            source.window_opened()
        self.balance()

    def balance(self) -> None:
        """Whoever has something gets a share of the credit; what lies idle with one while another could use it is asked back."""
        own = self.own
        near = own.link
        if not near.attached:
            return
        if near.drain:
            self._drain()
            return
        self._unasked = None
        total = own.room_of_all()
        lent = own.lent()
        if lent > near.credit:
            for source in own.sources.values():
                source.recall()
            return
        wanting = [source for source in own.sources.values() if source.wants()]
        spare = total - lent - own.reserved
        here = self.queue.receivers.ready_for(own) > 0
        if wanting and spare > 0:
            spare -= self._lend(wanting, total, spare, here)
        if spare <= 0 and near.credit > 0:
            self._recall_idle(here)
        if spare > 0:
            self.queue.consumer_ready(own)

    def somebody_waits(self) -> bool:
        """Has another owner said that it has something, and no credit for it?"""
        return any(source.has and source.lent == 0 and source.wants() for source in self.own.sources.values())

    def _recall_idle(self, here: bool) -> None:
        if here or self.somebody_waits():
            for source in self.own.sources.values():
                if source.lent > 0 and not source.has and not source.active:
                    source.recall()

    def _lend(self, wanting: list[FarSource], total: int, spare: int, here: bool) -> int:
        """Returns how much. One share stays here; of credit that does not suffice for all, each has its turn."""
        self._turns += 1
        scarce = spare <= len(wanting)
        if scarce and here and self._turns % (len(wanting) + 1) == 0:
            return 0
        share = max(total // (len(wanting) + 1), 1)
        given = 0
        for step in range(len(wanting)):
            source = wanting[(self._turns + step) % len(wanting)]
            more = min(share - source.lent, spare - given)
            if more > 0 and (source.lent == 0 or source.lent * 2 <= share):
                source.lend(more, False)
                given += more
        return given

    def _drain(self) -> None:
        """Everybody is asked, one after the other: each may use all that is left."""
        own = self.own
        near = own.link
        if own.room_left() > 0:
            self.queue.consumer_ready(own)
            self.queue.pump(self.connection.turn.now)
            while self.queue.receivers.has_more:
                self.queue.pump(self.connection.turn.now)
        if not near.drain or own.reserved or own.searching or self.opening or self.queue.receivers.paging:
            return  # answered meanwhile, or will be when what is on its way has come, or everything was looked at
        if self._unasked is None:
            self._unasked = list(own.sources.values())
        for source in own.sources.values():
            if source.lent > 0:
                source.recall()
        if own.lent() > 0:
            return
        while self._unasked and near.credit > 0:
            source = self._unasked.pop()
            if source.attached:
                source.lend(near.credit, True)
                return
        self._unasked = None
        self._receive_ended()
        near.drained()
        self.connection.touch()

    # -- settling ----------------------------------------------------------------------------

    def on_disposition(self, link: SenderLink, deliveries: list[Delivery], outcome: Outcome, settled: bool) -> None:
        own: list[Delivery] = []
        others: dict[FarSource, list[Delivery]] = {}
        for delivery in deliveries:
            context = delivery.context
            if isinstance(context, Lock):
                own.append(delivery)
            elif isinstance(context, FarDelivery):
                others.setdefault(context.source, []).append(delivery)
        for source, some in others.items():
            if source.attached:
                source.on_disposition(link, some, outcome, settled)
            else:
                lost = MessageLockLost(f"The node that had this message of '{self.queue.path}' was lost: the message will come again.")
                for delivery in some:
                    self._refuse(link, delivery, settled, lost)
        if own:
            super().on_disposition(link, own, outcome, settled)
        for source in self.own.sources.values():
            if source.has:  # the unsettled limit may have held credit back
                self.balance()
                return

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self.queue.receivers.unwatch(self._watch)
        super().on_detach(link, error)
        for source in list(self.own.sources.values()):
            source.let_go()


class _Local(Watcher):
    """Watches the fragments here for a receiver: its credit may be elsewhere, or be wanted there when it is of no use here."""

    __slots__ = ("_receiving",)

    def __init__(self, receiving: SpreadReceiving) -> None:
        super().__init__(receiving.own)
        self._receiving: SpreadReceiving = receiving

    def looked(self, ready: int) -> None:
        receiving = self._receiving
        own = receiving.own
        if ready and own.link.credit > 0:
            elsewhere = own.lent() > 0 and own.room_left() <= 0
        else:
            elsewhere = receiving.somebody_waits() and own.room_left() > 0 and not own.link.drain
        if elsewhere:
            receiving.balance()


class FarSource(CarriedReceiving):
    """The fragments that one other node has, as one receiver here gets them."""

    def __init__(
        self, receiving: SpreadReceiving, client: PeerConnection, carried: CarriedConnection, address: Address, right: Right
    ) -> None:
        super().__init__(client, carried, address, right, receiving.own.link)
        self.node: str = carried.node
        self.has: bool = False
        """It said that it has something, and was lent nothing since."""
        self.active: bool = False
        """It has delivered, and has not said that there is nothing more."""
        self.on_over: Callable[[], None] | None = None
        self._receiving: SpreadReceiving = receiving

    @property
    def attached(self) -> bool:
        return self.far is not None and self.far.attached

    @property
    def lent(self) -> int:
        far = self.far
        return far.credit if far is not None and far.attached and far.credit > 0 else 0

    def wants(self) -> bool:
        """What it was asked to give back and has used up since is as good as given back: it may not say so."""
        far = self.far
        return (self.has or self.active) and far is not None and far.attached and (not far.drain or far.credit <= 0)

    def attach(self, properties: dict[object, object] | None) -> None:
        near = self.near
        self.far = self.carried.session_for(near.session).attach_receiver(
            near.name, near.source, near.target, self, near.snd_settle_mode, _SECOND, properties, 0, near.desired_capabilities
        )
        self.carried.touch()

    def on_attached(self, link: Link) -> None:
        if not self.near.attached:
            self.let_go()
        self._receiving.opened(self.node)

    def lend(self, credit: int, drain: bool) -> None:
        far = self.far
        assert far is not None
        self.has = False
        far.credit = self.lent + credit
        if drain:
            far.ask_drain()
        else:
            far.drain = False
            far.session.send_link_flow(far, False, False)
        self.carried.touch()

    def recall(self) -> None:
        far = self.far
        if far is not None and far.attached and far.credit > 0 and not far.drain:
            far.ask_drain()
            self.carried.touch()

    def window_opened(self) -> None:
        if self._shut and self.near.session.window > 0:
            self._shut = False
            if self.far is not None:
                self.far.session.let_window_open()
                self.carried.touch()

    def let_go(self) -> None:
        if self.far is not None:
            if self._shut:
                self._shut = False
                self.far.session.let_window_open()
            self.detach_far(self.far)

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        near = self.near
        self.active = True
        if not near.attached:
            return
        if near.credit <= 0 and not settled:  # the client has taken its credit back meanwhile
            link.session.send_disposition(True, delivery_id, delivery_id, True, RELEASED)
            self.carried.touch()
            return
        ours = near.send(payload, tag, settled, FarDelivery(self, delivery_id), message_format)
        if not settled:
            self._ours[delivery_id] = ours
        if near.session.window <= 0 and not self._shut:
            self._shut = True
            near.session.hold_back(near)
            link.session.keep_window_shut()
        client = self.client
        if not client.dirty:
            client.touch()
        if self.has and link.credit <= 0:  # it said so before it had used up what it was lent
            self._receiving.balance()

    def on_flow(self, link: Link) -> None:
        far = self.far
        if far is None or not far.attached:
            return
        if not far.answers_drain:  # that says what became of the credit; what is there was said before, or will be
            self.has = far.available > 0
        if not self.has:
            self.active = False
        self._receiving.balance()

    def settle(self, deliveries: list[Delivery], settled: bool, state: bytes) -> None:
        far = self.far
        if far is None or not far.attached:
            return
        numbers: list[int] = []
        for delivery in deliveries:
            context = delivery.context
            assert isinstance(context, FarDelivery)
            if settled:
                self._ours.pop(context.delivery_id, None)
            numbers.append(context.delivery_id)
        send_ranges(far.session, True, numbers, settled, state)
        carried = self.carried
        if not carried.dirty:
            carried.touch()

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        if self._receiving.own.sources.get(self.node) is self:
            del self._receiving.own.sources[self.node]
        self._receiving.opened(self.node)
        over = self.on_over
        self.on_over = None
        if over is not None:
            over()
        if not self.client.gone:
            self._receiving.balance()


class PartReceiving(Receiving):
    """The other side, where the fragments are: a receiver that another node has its credit from."""

    def __init__(self, connection: PeerConnection, queue: Entity, consumer: LinkConsumer) -> None:
        super().__init__(connection, queue, consumer)
        self._watch: _Asked = _Asked(consumer)
        queue.receivers.watch(self._watch)

    def on_flow(self, link: Link) -> None:
        self._watch.asked()
        super().on_flow(link)
        self.queue.slot.touch()

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self.queue.receivers.unwatch(self._watch)
        super().on_detach(link, error)


class _Asked(Watcher):
    """Says what is there: something while there is no credit for it, nothing while there is."""

    __slots__ = ("_consumer", "_count", "_told")

    def __init__(self, consumer: LinkConsumer) -> None:
        super().__init__(consumer)
        self._consumer: LinkConsumer = consumer
        self._told: bool = False
        self._count: int = -1
        """Deliveries when it was last said that there is nothing more; -1: it was not, since credit was given."""

    def asked(self) -> None:
        self._told = False
        self._count = -1

    def looked(self, ready: int) -> None:
        link = self._consumer.link
        if not link.attached or link.session.waiting:
            return
        if link.credit <= self._consumer.reserved:
            if (ready > 0) is self._told:
                return
            self._told = ready > 0
        elif ready > 0 or link.delivery_count == self._count:
            return
        self._count = link.delivery_count
        link.session.send_available(link, ready)
        self._consumer.connection.touch()
