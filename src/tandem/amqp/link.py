"""Link endpoints: attach and detach, credit, one delivery at a time out and in."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from tandem.amqp.errors import ILLEGAL_STATE, INVALID_FIELD, TRANSFER_LIMIT_EXCEEDED, AmqpError, ProtocolError
from tandem.amqp.frames import encode_attach, encode_detach
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.performatives import ABSENT, Attach, Flow, Transfer
from tandem.amqp.serial import difference
from tandem.amqp.terminus import Coordinator, Terminus

if TYPE_CHECKING:
    from tandem.amqp.session import Session

ATTACH_RECEIVED: Final = 0
ATTACH_SENT: Final = 1
ATTACHED: Final = 2
DETACH_SENT: Final = 3
DETACHED: Final = 4

_MASK: Final = 0xFFFFFFFF
_NO_HANDLER: Final = LinkHandler()


class Delivery:
    """An outgoing delivery the receiver has not settled."""

    def __init__(self, delivery_id: int, link: SenderLink, context: object, tag: bytes) -> None:
        self.delivery_id = delivery_id
        self.link = link
        self.context = context
        self.tag = tag
        self.settled = False

    def settle(self) -> None:
        self.settled = True


class Link:
    """What both ends have in common. `handle` is ours, `remote_handle` the peer's."""

    def __init__(self, session: Session, name: str, handle: int, receiver: bool) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle = ABSENT
        self.receiver = receiver
        """True when we receive."""
        self.state = ATTACH_RECEIVED
        self.attached = False
        self.handler: LinkHandler = _NO_HANDLER
        self.context: object = None
        self.source: Terminus | None = None
        self.target: Terminus | Coordinator | None = None
        self.snd_settle_mode = 2
        self.rcv_settle_mode = 0
        self.properties: dict[object, object] = {}
        """The peer's."""
        self.offered_capabilities: list[str] = []
        self.desired_capabilities: list[str] = []
        self.offers: list[str] = []
        """What we offer when we accept; the two above are the peer's."""
        self.desires: list[str] = []
        """What we wish for when we attach."""
        self.remote_snd_settle_mode = 2
        """As the peer's attach says; an answer may say something else than we asked for."""
        self.max_message_size = 0
        """Ours; 0 = none named."""
        self.remote_max_message_size = 0
        self.initial_delivery_count = 0
        self.delivery_count = 0
        self.credit = 0
        self.drain = False
        self.echo = False
        """The peer's last flow wanted an answer (it was given)."""
        self.flow_waits = False
        """A flow came before the link was accepted."""
        self.told = False

    @property
    def role(self) -> str:
        return "receiver" if self.receiver else "sender"

    def accept(
        self,
        source: Terminus | None = None,
        target: Terminus | Coordinator | None = None,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
    ) -> None:
        """Answer the peer's attach. Termini are echoed unless given. May call `on_flow` if credit came ahead of this."""
        if self.state != ATTACH_RECEIVED:
            return
        if source is not None:
            self.source = source
        if target is not None:
            self.target = target
        # a missing end is written as one without address: null would say "refused"
        if self.source is None:
            self.source = Terminus()
        if self.target is None:
            self.target = Terminus()
        self.max_message_size = max_message_size
        self._send_attach(self.source, self.target, properties)
        self.state = ATTACHED
        self.attached = True
        self._ready()

    def ask(
        self,
        source: Terminus | None,
        target: Terminus | Coordinator | None,
        handler: LinkHandler,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        properties: dict[object, object] | None,
    ) -> None:
        """Ask the peer to attach."""
        self.state = ATTACH_SENT
        self.handler = handler
        self.snd_settle_mode = snd_settle_mode
        self.rcv_settle_mode = rcv_settle_mode
        self.source = source
        self.target = target
        self._send_attach(source, target, properties)

    def answered(self) -> None:
        """The peer has attached, as we asked."""
        self.state = ATTACHED
        self.attached = True
        self.handler.on_attached(self)
        self._ready()

    def take_flow(self, flow: Flow) -> None:
        """What the peer says about credit; it waits until the link is accepted."""
        self.flow_waits = self.state == ATTACH_RECEIVED

    def handle_with(self, handler: LinkHandler) -> None:
        """Who is told of what happens on it from now on."""
        self.handler = handler

    def desire(self, capabilities: list[str]) -> None:
        """To be said when we ask for it."""
        self.desires = capabilities

    def offer(self, capabilities: list[str]) -> None:
        """To be said when it is accepted."""
        self.offers = capabilities

    def refuse(self, error: AmqpError) -> None:
        """Attach with null source and target, then detach closed with the error: the only form every client understands."""
        if self.state != ATTACH_RECEIVED:
            return
        self._send_attach(None, None, None)
        self._send_detach(True, error)

    def detach(self, error: AmqpError | None = None, closed: bool = True) -> None:
        """`on_detach` follows when the peer has answered."""
        if self.state == ATTACH_RECEIVED:
            self.refuse(AmqpError(ILLEGAL_STATE, "the link was given up before it was accepted") if error is None else error)
        elif self.state < DETACH_SENT:
            self._send_detach(closed, error)

    def _send_attach(self, source: Terminus | None, target: Terminus | Coordinator | None, properties: dict[object, object] | None) -> None:
        session = self.session
        session.connection.emit(
            session.channel,
            encode_attach(
                self.name,
                self.handle,
                self.receiver,
                self.snd_settle_mode,
                self.rcv_settle_mode,
                source,
                target,
                ABSENT if self.receiver else self.initial_delivery_count,
                self.max_message_size,
                self.offers,
                self.desires,
                properties,
            ),
        )

    def _send_detach(self, closed: bool, error: AmqpError | None) -> None:
        self.answer_detach(closed, error)
        self.session.forget_deliveries(self)

    def answer_detach(self, closed: bool, error: AmqpError | None) -> None:
        """The frame; what the link has not settled is still known."""
        session = self.session
        session.connection.emit(session.channel, encode_detach(self.handle, closed, session.connection.fitting(error)))
        self.state = DETACH_SENT
        self.attached = False

    def _ready(self) -> None:
        """Just attached, from either side."""

    def opened(self, attach: Attach) -> None:
        """The peer's attach, first or in answer."""
        self.remote_handle = attach.handle
        self.remote_max_message_size = attach.max_message_size
        self.properties = attach.properties
        self.offered_capabilities = attach.offered_capabilities
        self.desired_capabilities = attach.desired_capabilities
        if not (self.state == ATTACH_SENT and (attach.source if self.receiver else attach.target) is None):  # else it is refused
            self.source = attach.source
            self.target = attach.target
        self.remote_snd_settle_mode = attach.snd_settle_mode
        if self.state == ATTACH_RECEIVED:
            self.snd_settle_mode = attach.snd_settle_mode
            self.rcv_settle_mode = attach.rcv_settle_mode
        if self.receiver and attach.initial_delivery_count != ABSENT:
            self.delivery_count = attach.initial_delivery_count

    def gone(self, error: AmqpError | None) -> None:
        """Tell the handler, once."""
        self.state = DETACHED
        self.attached = False
        if not self.told:
            self.told = True
            named = self.session.connection.named
            if named.get((self.receiver, self.name)) is self:
                del named[(self.receiver, self.name)]
            self.handler.on_detach(self, error)


class SenderLink(Link):
    """We send, the peer receives. `credit` may go below zero: the engine sends what it is told to send."""

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle, False)
        self.asks: int = 0
        """How often the peer has spoken about credit on this link."""
        self.unsettled_count: int = 0
        self._sent: list[Delivery] = []
        """What is unsettled of it, and about as many that are settled: a link that goes takes its own with it without a look at all
        of the session's."""
        self._tag_bytes = -1
        self._pack_head: Callable[..., bytes] = _ANY_HEAD.pack
        self._prefix = b""
        self._middle = b""
        self._overhead = 0

    def take_flow(self, flow: Flow) -> None:
        if flow.link_credit != ABSENT:
            # the receiver may not have seen our attach yet, then it counts from where we began (2.6.7)
            counted = self.initial_delivery_count if flow.delivery_count == ABSENT else flow.delivery_count
            credit = flow.link_credit + difference(counted, self.delivery_count)
            self.credit = credit if credit > 0 else 0
        self.drain = flow.drain
        self.echo = flow.echo
        self.asks += 1
        super().take_flow(flow)

    def send(self, payload: bytes, tag: bytes, settled: bool, context: object, message_format: int = 0, state: bytes = b"") -> int:
        """Returns the delivery id. Buffered while the session window is shut. `state` is encoded: the transaction it belongs to."""
        if not self.attached:
            raise RuntimeError(f"link {self.name} is not attached")
        session = self.session
        delivery_id = session.next_delivery()
        self.credit -= 1
        self.delivery_count += 1
        if not settled:
            delivery = Delivery(delivery_id, self, context, tag)
            session.unsettled[delivery_id] = delivery
            self._sent.append(delivery)
            self.unsettled_count += 1
        if len(tag) != self._tag_bytes:
            self._make_template(len(tag))
        size = self._overhead + len(payload)
        if message_format != 0 or session.window <= 0 or size > session.frame_bytes_max or state:
            session.send_slowly(self, delivery_id, payload, tag, settled, message_format, state)
            return delivery_id
        session.sent_frame()
        out = session.out
        out.append(self._pack_head(size, self._prefix, delivery_id, self._middle, tag, _SETTLED if settled else _UNSETTLED))
        out.append(payload)
        return delivery_id

    def _make_template(self, tag_bytes: int) -> None:
        """Everything but size, id, tag and settled is the same for every transfer of this link."""
        if tag_bytes > 32:
            raise ValueError(f"delivery tag of {tag_bytes} bytes; 32 is the most")
        handle = b"\x70" + self.handle.to_bytes(4, "big") if self.handle > 255 else bytes((0x52, self.handle))
        list_bytes = 1 + len(handle) + 5 + 2 + tag_bytes + len(_SETTLED)
        self._prefix = (
            b"\x02\x00" + self.session.channel.to_bytes(2, "big") + b"\x00\x53\x14\xc0" + bytes((list_bytes, 11)) + handle + b"\x70"
        )
        self._middle = bytes((0xA0, tag_bytes))
        head = Struct(f">I{len(self._prefix)}sI2s{tag_bytes}s{len(_SETTLED)}s")
        self._pack_head = head.pack
        self._overhead = head.size
        self._tag_bytes = tag_bytes

    def drained(self) -> None:
        """All there was is sent: use up the credit and say so."""
        if self.credit > 0:
            self.delivery_count += self.credit
        self.credit = 0
        self.session.send_link_flow(self, True, False)
        self.drain = False

    def presettle(self) -> None:
        """The peer hears when it is accepted that everything comes settled."""
        self.snd_settle_mode = 1

    def unsettled(self) -> list[Delivery]:
        """In the order in which they were sent."""
        return [delivery for delivery in self._sent if not delivery.settled]

    def forget(self, delivery: Delivery) -> None:
        """The session has: it is settled."""
        delivery.settle()
        self.unsettled_count -= 1
        if len(self._sent) > _SETTLED_KEPT_MAX + 2 * self.unsettled_count:
            self._sent = self.unsettled()

    def settle_locally(self, delivery_id: int) -> None:
        self.session.take_unsettled(delivery_id)

    def _ready(self) -> None:
        if self.flow_waits:
            self.flow_waits = False
            self.handler.on_flow(self)


_SETTLED_KEPT_MAX: Final = 64
_ANY_HEAD: Final = Struct(">I")
_SETTLED: Final = b"\x43\x41\x40\x40\x40\x40\x40\x40"
_UNSETTLED: Final = b"\x43\x42\x40\x40\x40\x40\x40\x40"
"""From the message format to the last field."""


class ReceiverLink(Link):
    """The peer sends, we receive."""

    def __init__(self, session: Session, name: str, handle: int, max_message_size: int = 0) -> None:
        super().__init__(session, name, handle, True)
        self.max_message_size = max_message_size
        self._auto_credit = 0
        self._overrun_max = -2 * session.connection.config.incoming_window
        self.credit_low = self._overrun_max
        """At or below this the link needs attention: a top-up, or the end of patience."""
        self.size_limit: i64 = session.connection.config.message_bytes_ceiling
        self.tracks = False
        """Client side, receiver-settle-mode second: remember deliveries until the sender settles."""
        self.busy = False
        """A delivery has begun and not ended."""
        self.unfinished = bytearray()
        self.delivery_id = 0
        self.tag = b""
        self.message_format = 0
        self.settled = False
        self.delivery_state: bytes | None = None
        self.oversize = False
        self.available = 0
        """Deliveries the sender says it has waiting."""
        self.answers_drain = False
        """The last flow was the sender's answer to a drain."""

    def keep_credit(self, credit: int) -> None:
        """As `auto_credit`."""
        self.auto_credit = credit

    @property
    def auto_credit(self) -> int:
        return self._auto_credit

    @auto_credit.setter
    def auto_credit(self, credit: int) -> None:
        """If > 0 the link is given this much when accepted, and again whenever half is used."""
        self._auto_credit = credit
        self.credit_low = credit // 2 if credit > 0 else self._overrun_max

    def grant(self, credit: int) -> None:
        """Set link-credit to this and tell the peer."""
        self.credit = credit
        if self.state == ATTACHED or self.state == ATTACH_SENT:
            self.session.send_link_flow(self, self.drain, False)

    def ask_for(self, credit: int, drain: bool) -> None:
        """Set link-credit and drain to these and tell the peer."""
        self.credit = credit
        self.drain = drain
        self.session.send_link_flow(self, drain, False)

    def ask_drain(self) -> None:
        """Ask the sender to use up its credit or give it back; `on_flow` follows with credit 0."""
        self.drain = True
        self.session.send_link_flow(self, True, False)

    def take_flow(self, flow: Flow) -> None:
        if flow.delivery_count != ABSENT:
            skipped = difference(flow.delivery_count, self.delivery_count)
            if skipped > 0:
                self.delivery_count = flow.delivery_count
                self.credit = self.credit - skipped if self.credit > skipped else 0
        self.available = 0 if flow.available == ABSENT else flow.available
        self.answers_drain = flow.drain
        if flow.drain and self.credit == 0:
            self.drain = False
        super().take_flow(flow)

    def took_delivery(self) -> None:
        """One more has come, whole."""
        self.delivery_count += 1
        self.credit -= 1
        if self.credit <= self.credit_low:
            self.attention()

    def attention(self) -> None:
        """Credit fell to `credit_low`."""
        if self._auto_credit > 0:
            self.grant(self._auto_credit)
        elif self.credit <= self._overrun_max:
            # the SDK's sender does not count credit, so a first overrun is no offence; without end it is
            self.detach(AmqpError(TRANSFER_LIMIT_EXCEEDED, f"{-self.credit} deliveries beyond the credit given to link {self.name}"))

    def _ready(self) -> None:
        if self.max_message_size > 0:
            self.size_limit = min(self.max_message_size, self.session.connection.config.message_bytes_ceiling)
        self.tracks = not self.session.connection.server and self.rcv_settle_mode == 1
        if self._auto_credit > 0 and self.credit == 0:
            self.credit = self._auto_credit
        if self.credit > 0:
            self.session.send_link_flow(self, self.drain, False)

    # -- a delivery in several frames ----------------------------------------------------------------------------------

    def take_head(self, transfer: Transfer) -> None:
        """What a frame says of the delivery it belongs to: the first one most of it."""
        if not self.busy:
            if transfer.delivery_id == ABSENT:
                raise ProtocolError(AmqpError(INVALID_FIELD, "transfer.delivery-id: mandatory on the first frame of a delivery"))
            self.busy = True
            self.delivery_id = transfer.delivery_id
            self.tag = b"" if transfer.tag is None else transfer.tag
            self.message_format = 0 if transfer.message_format == ABSENT else transfer.message_format
            self.settled = False
            self.delivery_state = None
        elif transfer.delivery_id != ABSENT and transfer.delivery_id != self.delivery_id:
            raise ProtocolError(
                AmqpError(INVALID_FIELD, f"transfer.delivery-id: {transfer.delivery_id} while {self.delivery_id} is not finished")
            )
        if transfer.settled:
            self.settled = True
        if transfer.state:
            self.delivery_state = transfer.state

    def take_part(self, payload: bytes, more: bool) -> None:
        """The last part is not kept: with it the delivery is whole."""
        if not self.oversize and len(self.unfinished) + len(payload) > self.size_limit:
            self._drop_parts()
            self.oversize = True
        if more and not self.oversize:
            self.unfinished += payload
            self.session.connection.count_unfinished(len(payload))

    def whole(self, payload: bytes) -> bytes:
        """The delivery that ends with this part."""
        return bytes(self.unfinished + payload) if self.unfinished else payload

    def _drop_parts(self) -> None:
        if self.unfinished:
            self.session.connection.count_unfinished(-len(self.unfinished))
            self.unfinished = bytearray()

    def forget_unfinished(self) -> None:
        self._drop_parts()
        self.busy = False
        self.oversize = False
