"""Sessions: windows and flow, and the handles that links are known by."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from tandem.amqp import dispositions, transfers
from tandem.amqp.dispositions import DispositionTail
from tandem.amqp.encoder import FALSE, NULL, TRUE, described_list, encode_uint
from tandem.amqp.errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    INVALID_FIELD,
    RESOURCE_LIMIT_EXCEEDED,
    STOLEN,
    UNATTACHED_HANDLE,
    AmqpError,
    ProtocolError,
)
from tandem.amqp.frames import encode_begin, encode_end, link_flow_frame, session_flow_frame
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import ATTACH_RECEIVED, DETACH_SENT, Delivery, Link, ReceiverLink, SenderLink
from tandem.amqp.numbers import Numbers
from tandem.amqp.performatives import ABSENT, FLOW, UINT_MAX, Attach, Begin, Detach, Flow
from tandem.amqp.serial import difference
from tandem.amqp.terminus import Coordinator, Terminus
from tandem.amqp.transfers import TransferTail, Waiting, WaitingFlow

if TYPE_CHECKING:
    from tandem.amqp.connection import Connection

_MASK: Final = 0xFFFFFFFF


class Session:
    """`channel` is ours, `remote_channel` the peer's. `links` is keyed by our handle."""

    def __init__(self, connection: Connection, channel: int) -> None:
        config = connection.config
        self.connection = connection
        self.out = connection.out
        self.channel = channel
        self.remote_channel = ABSENT
        self.context: object = None
        self.mapped = False
        """Both begins have been seen."""
        self.end_sent = False
        self.next_outgoing_id = config.next_outgoing_id
        self.next_delivery_id = config.next_outgoing_id if config.first_delivery_id is None else config.first_delivery_id
        self.initial_outgoing_id = config.next_outgoing_id
        self.outgoing_window = config.outgoing_window
        self.next_incoming_id = 0
        self.incoming_window = config.incoming_window
        self.incoming_left: i64 = config.incoming_window
        self.incoming_low: i64 = config.incoming_window // 2
        self.window = 0
        """The peer's incoming window: transfer frames we may still send."""
        self.handle_max = config.handle_max
        self.remote_handle_max = UINT_MAX
        self.frame_bytes_max = 512
        self.links: dict[int, Link] = {}
        self._handles = Numbers()
        self.awaited: dict[tuple[bool, str], Link] = {}
        """Links we attached and the peer has not answered, by (do we receive, name)."""
        self.by_remote_handle: dict[int, Link] = {}
        self.receivers: dict[int, ReceiverLink] = {}
        """Attached receivers by the peer's handle: the way in for transfers."""
        self.unsettled: dict[int, Delivery] = {}
        self.tracked: dict[int, ReceiverLink] = {}
        self.waiting: deque[Waiting] = deque()
        self.held_back: dict[SenderLink, None] = {}
        """Links whose owner found the peer's window shut (`hold_back`): they hear when it opens again."""
        self.tails: dict[bytes, TransferTail] = {}
        self.disposition_tails: dict[bytes, DispositionTail] = {}

    @property
    def window_open(self) -> bool:
        return self.window > 0

    @property
    def remote_incoming_window(self) -> int:
        return self.window

    # -- begin, end ----------------------------------------------------------------------------------------------------

    def send_begin(self) -> None:
        self.connection.emit(
            self.channel,
            encode_begin(self.remote_channel, self.next_outgoing_id, self.incoming_window, self.outgoing_window, self.handle_max),
        )

    def begun(self, begin: Begin, remote_channel: int) -> None:
        self.remote_channel = remote_channel
        self.mapped = True
        self.next_incoming_id = begin.next_outgoing_id
        self.window = begin.incoming_window
        self.remote_handle_max = begin.handle_max
        self.frame_bytes_max = self.connection.outgoing_frame_bytes_max

    def end(self, error: AmqpError | None = None) -> None:
        """Frames of this session that are still under way are ignored."""
        if self.end_sent:
            return
        self.end_sent = True
        self.connection.emit(self.channel, encode_end(self.connection.fitting(error)))
        self.gone(error)

    def lose(self, error: AmqpError | None) -> None:
        """It is over, unless it was before: no end of ours follows."""
        if not self.end_sent:
            self.end_sent = True
            self.gone(error)

    def gone(self, error: AmqpError | None) -> None:
        """Tell every link, then the connection's handler."""
        links = list(self.links.values())
        self.links.clear()
        self.awaited.clear()
        self.by_remote_handle.clear()
        self.receivers.clear()
        self.tracked.clear()
        self.waiting.clear()
        self.held_back.clear()
        for link in links:
            if isinstance(link, ReceiverLink):
                link.forget_unfinished()
            link.gone(error)
        self.unsettled.clear()  # last: a handler may want to know what its link leaves behind
        self.connection.handler.on_end(self)

    # -- attach, detach ------------------------------------------------------------------------------------------------

    def attach_sender(
        self,
        name: str,
        source: Terminus | None,
        target: Terminus | Coordinator | None,
        handler: LinkHandler,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        properties: dict[object, object] | None = None,
        desires: list[str] | None = None,
    ) -> SenderLink:
        """Open a link we send on. `handler.on_attached` or `on_detach` follows."""
        link = SenderLink(self, name, self._own_handle())
        link.desire(desires or [])
        self._send_attach(link, source, target, handler, snd_settle_mode, rcv_settle_mode, properties)
        return link

    def attach_receiver(
        self,
        name: str,
        source: Terminus | None,
        target: Terminus | Coordinator | None,
        handler: LinkHandler,
        snd_settle_mode: int = 2,
        rcv_settle_mode: int = 0,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
        desires: list[str] | None = None,
    ) -> ReceiverLink:
        """Open a link we receive on. Credit may be granted at once."""
        link = ReceiverLink(self, name, self._own_handle(), max_message_size)
        link.desire(desires or [])
        self._send_attach(link, source, target, handler, snd_settle_mode, rcv_settle_mode, properties)
        return link

    def _send_attach(
        self,
        link: Link,
        source: Terminus | None,
        target: Terminus | Coordinator | None,
        handler: LinkHandler,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        properties: dict[object, object] | None,
    ) -> None:
        self.links[link.handle] = link
        self.awaited[(link.receiver, link.name)] = link
        link.ask(source, target, handler, snd_settle_mode, rcv_settle_mode, properties)

    def _own_handle(self) -> int:
        handle = self._handles.take(ABSENT, self.remote_handle_max)
        if handle > self.remote_handle_max:
            self._handles.give_back(handle)
            raise RuntimeError(f"the peer allows {self.remote_handle_max + 1} links per session")
        return handle

    def on_attach(self, attach: Attach) -> None:
        if attach.handle > self.handle_max:
            raise ProtocolError(AmqpError(FRAMING_ERROR, f"attach: handle {attach.handle} is above handle-max {self.handle_max}"))
        old = self.by_remote_handle.get(attach.handle)
        if old is not None and not self._give_way(old, attach):
            self.end(AmqpError(HANDLE_IN_USE, f"attach: handle {attach.handle} is in use by link {old.name}"))
            return
        if self.awaited:
            ours = self.awaited.pop((not attach.receiver_role, attach.name), None)
            if ours is not None:
                self._answered(ours, attach)
                return
        self._steal(attach)
        # the peer's own number when free, so that both sides call a link the same
        handle = self._handles.take(attach.handle, self.remote_handle_max)
        if handle > self.remote_handle_max:
            self.end(AmqpError(RESOURCE_LIMIT_EXCEEDED, f"attach: no handle free up to {self.remote_handle_max}"))
            return
        link = SenderLink(self, attach.name, handle) if attach.receiver_role else ReceiverLink(self, attach.name, handle)
        link.opened(attach)
        self.connection.named[(link.receiver, link.name)] = link
        self.links[handle] = link
        self.by_remote_handle[attach.handle] = link
        if isinstance(link, ReceiverLink):
            self.receivers[attach.handle] = link
        self.connection.handler.on_attach(link)

    def _steal(self, attach: Attach) -> None:
        """A name is one link per direction, in whichever session: the newcomer has it, the older end is told (2.6.1).

        What the older link held is free before the newcomer asks for it; the peer's answer to the detach still finds its handle.
        """
        old = self.connection.named.get((not attach.receiver_role, attach.name))
        if old is None or old.state >= DETACH_SENT:
            return
        stolen = AmqpError(STOLEN, f"link {old.name} was attached again")
        old.detach(stolen)
        old.gone(stolen)

    def _give_way(self, old: Link, attach: Attach) -> bool:
        """May the newcomer have the handle? Yes if the old link is leaving, or is the same one: a peer that forgot it is attached."""
        if old.state < DETACH_SENT:
            if old.name != attach.name or old.receiver == attach.receiver_role:
                return False
            old.detach(AmqpError(STOLEN, f"link {old.name} was attached again under the same handle"))
        self._remove(old)
        old.gone(AmqpError(STOLEN, f"link {old.name} was attached again under the same handle"))
        return True

    def _answered(self, link: Link, attach: Attach) -> None:
        link.opened(attach)
        self.by_remote_handle[attach.handle] = link
        if link.state >= DETACH_SENT:
            # we gave it up meanwhile, and wait for the peer's detach
            return
        refused = attach.source is None if link.receiver else attach.target is None
        if refused:
            return  # the peer's detach with the reason is on its way
        if isinstance(link, ReceiverLink):
            self.receivers[attach.handle] = link
        link.answered()

    def on_detach(self, detach: Detach) -> None:
        link = self.by_remote_handle.get(detach.handle)
        if link is None:
            self.end(AmqpError(UNATTACHED_HANDLE, f"detach: no link has handle {detach.handle}"))
            return
        if link.state == ATTACH_RECEIVED:
            # never accepted, so it must be answered with both frames
            link._send_attach(None, None, None)
        if link.state < DETACH_SENT:
            link.answer_detach(detach.closed, None)
        self._remove(link)
        link.gone(detach.error)  # its handler may want to know what was unsettled
        self.forget_deliveries(link)

    def hold_back(self, link: SenderLink) -> None:
        """`on_flow` of this link is called when the window has opened."""
        self.held_back[link] = None

    def _remove(self, link: Link) -> None:
        if isinstance(link, SenderLink):
            self.held_back.pop(link, None)
        self.by_remote_handle.pop(link.remote_handle, None)
        self.receivers.pop(link.remote_handle, None)
        if self.links.get(link.handle) is link:
            del self.links[link.handle]
            self._handles.give_back(link.handle)

    def forget_deliveries(self, link: Link) -> None:
        """A link that is detaching settles nothing any more."""
        if isinstance(link, ReceiverLink):
            link.forget_unfinished()
            if self.tracked:
                self.tracked = {k: v for k, v in self.tracked.items() if v is not link}
            return
        if isinstance(link, SenderLink):
            for delivery in link.unsettled():
                self.take_unsettled(delivery.delivery_id)

    def take_unsettled(self, delivery_id: int) -> Delivery | None:
        """Nothing more will be said about this delivery."""
        delivery = self.unsettled.get(delivery_id)
        if delivery is not None:
            self.forget_unsettled(delivery)
        return delivery

    def forget_unsettled(self, delivery: Delivery) -> None:
        """As `take_unsettled`, for who has found it already."""
        try:
            del self.unsettled[delivery.delivery_id]
        except KeyError:
            return  # its session has ended meanwhile
        delivery.link.forget(delivery)

    # -- flow ----------------------------------------------------------------------------------------------------------

    def replenish(self) -> None:
        """Half of the incoming window is used: open it again."""
        self.incoming_left = self.incoming_window
        self.send_flow()

    def keep_window_shut(self) -> None:
        """Whatever comes in from now on cannot go on: the peer may use up what it has of our window, and no more."""
        self.incoming_low = -1

    def let_window_open(self) -> None:
        self.incoming_low = self.incoming_window // 2
        if self.incoming_left <= self.incoming_low:
            self.replenish()

    def send_flow(self) -> None:
        self.out.append(
            session_flow_frame(
                self.channel,
                self.next_incoming_id & _MASK,
                self.incoming_left,
                self.next_outgoing_id & _MASK,
                self.outgoing_window,
            )
        )

    def send_link_flow(self, link: Link, drain: bool, echo: bool) -> None:
        if self.waiting and isinstance(link, SenderLink):
            self.waiting.append(WaitingFlow(link, drain))
        else:
            self.write_link_flow(link, link.delivery_count, link.credit, drain, echo)

    def write_link_flow(self, link: Link, delivery_count: int, credit: int, drain: bool, echo: bool) -> None:
        credit = credit if credit > 0 else 0
        if not self.mapped:
            # next-incoming-id must be left out until the peer's begin is here
            items = [
                NULL,
                encode_uint(self.incoming_left),
                encode_uint(self.next_outgoing_id & _MASK),
                encode_uint(self.outgoing_window),
                encode_uint(link.handle),
                NULL,
                encode_uint(credit),
                NULL,
                TRUE if drain else FALSE,
                TRUE if echo else FALSE,
            ]
            self.connection.emit(self.channel, described_list(FLOW, items))
            return
        self.out.append(
            link_flow_frame(
                self.channel,
                self.next_incoming_id & _MASK,
                self.incoming_left,
                self.next_outgoing_id & _MASK,
                self.outgoing_window,
                link.handle,
                delivery_count & _MASK,
                credit,
                drain,
                echo,
            )
        )

    def send_available(self, link: SenderLink, available: int) -> None:
        """Tell the receiver how many messages wait for its credit."""
        items = [
            encode_uint(self.next_incoming_id & _MASK),
            encode_uint(self.incoming_left),
            encode_uint(self.next_outgoing_id & _MASK),
            encode_uint(self.outgoing_window),
            encode_uint(link.handle),
            encode_uint(link.delivery_count & _MASK),
            encode_uint(link.credit if link.credit > 0 else 0),
            encode_uint(available),
        ]
        self.connection.emit(self.channel, described_list(FLOW, items))

    def on_flow(self, flow: Flow) -> None:
        acknowledged = self.initial_outgoing_id if flow.next_incoming_id == ABSENT else flow.next_incoming_id
        in_flight = difference(self.next_outgoing_id, acknowledged)
        if in_flight < 0:
            raise ProtocolError(
                AmqpError(INVALID_FIELD, f"flow.next-incoming-id: {acknowledged} is ahead of {self.next_outgoing_id & _MASK}")
            )
        was_shut = self.window <= 0
        self.window = flow.incoming_window - in_flight
        if self.waiting and self.window > 0:
            transfers.flush_waiting(self)
        if flow.handle != ABSENT:
            self._on_link_flow(flow)
        elif flow.echo:
            self.send_flow()
        if was_shut and self.window > 0 and self.held_back:
            held_back = self.held_back
            self.held_back = {}
            for link in held_back:
                if link.attached and link.remote_handle != flow.handle:
                    link.handler.on_flow(link)

    def _on_link_flow(self, flow: Flow) -> None:
        link = self.by_remote_handle.get(flow.handle)
        if link is None:
            self.end(AmqpError(UNATTACHED_HANDLE, f"flow: no link has handle {flow.handle}"))
            return
        if link.state >= DETACH_SENT:
            return
        link.take_flow(flow)
        if link.flow_waits:
            return
        if flow.echo:
            self.send_link_flow(link, link.drain, False)
        link.handler.on_flow(link)

    def took_frame(self) -> None:
        """A transfer has come in."""
        self.next_incoming_id += 1
        self.incoming_left -= 1
        if self.incoming_left <= self.incoming_low:
            self.replenish()

    # -- deliveries out ---------------------------------------------------------------------------------------------

    def number_deliveries_from(self, first: int) -> None:
        """For a session that has sent none."""
        self.next_delivery_id = first

    def next_delivery(self) -> int:
        """The id of the next one."""
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & _MASK
        return delivery_id

    def sent_frame(self) -> None:
        """A transfer goes out."""
        self.window -= 1
        self.next_outgoing_id += 1

    def send_disposition(self, receiver_role: bool, first: int, last: int, settled: bool, state: bytes) -> None:
        """`state` is encoded, empty for none. Equal answers to consecutive deliveries leave as one range; what is settled is forgotten."""
        if self.end_sent:
            return
        if settled:
            if not receiver_role:
                dispositions.forget_unsettled(self, first, last)
            elif self.tracked:
                dispositions.forget_tracked(self, first, last)
        self.connection.answers.give(self, receiver_role, first, last, settled, state)

    def send_slowly(
        self, link: SenderLink, delivery_id: int, payload: bytes, tag: bytes, settled: bool, message_format: int, state: bytes
    ) -> None:
        """What `SenderLink.send` cannot put in one ordinary frame right now."""
        transfers.send_slowly(self, Waiting(link, delivery_id, payload, tag, settled, message_format, state))
