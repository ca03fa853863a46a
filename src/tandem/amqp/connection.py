"""The AMQP connection without I/O: bytes in, callbacks and bytes out, the same engine for either side."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tandem.amqp import dispositions, transfers
from tandem.amqp.answers import Answers
from tandem.amqp.config import ConnectionConfig
from tandem.amqp.errors import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    DecodeError,
    ProtocolError,
)
from tandem.amqp.fields import NAMES, Fields, read_descriptor
from tandem.amqp.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    MIN_MAX_FRAME_SIZE,
    SASL_HEADER,
    encode_close,
    encode_end,
    encode_open,
    frame,
    wrong_head,
    wrong_size,
)
from tandem.amqp.handlers import ConnectionHandler
from tandem.amqp.idle import Idle
from tandem.amqp.link import Link
from tandem.amqp.numbers import Numbers
from tandem.amqp.performatives import (
    ABSENT,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    Attach,
    Begin,
    Detach,
    Ending,
    Open,
    read_flow,
)
from tandem.amqp.sasl import SaslClient, SaslExchange, SaslServer
from tandem.amqp.session import Session

_AWAIT_HEADER: Final = 0
_AWAIT_SASL: Final = 1
_AWAIT_FRAMES: Final = 2

_OUTGOING_FRAME_BYTES_MAX: Final = 1_048_576
"""We send no frame larger than this, whatever the peer would take."""
_CLOSE_WAIT_MS: Final = 5_000
"""How long a peer may take to answer our close."""


class Connection:
    """`server` decides who speaks first, nothing else."""

    def __init__(self, handler: ConnectionHandler, config: ConnectionConfig, server: bool) -> None:
        self.handler = handler
        self.config = config
        self.server = server
        self.out: list[bytes] = []
        self.closed = False
        self.broken = False
        """It ended without a close from either side's own will: the transport went, the peer fell silent or broke the protocol."""
        self.context: object = None
        self.remote_container_id = ""
        self.remote_hostname: str | None = None
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self.remote_channel_max = 65535
        self.remote_idle_timeout_ms = 0
        self.remote_properties: dict[object, object] = {}
        self.remote_open = False
        self.open_sent = False
        self.close_sent = False
        self.outgoing_frame_bytes_max = MIN_MAX_FRAME_SIZE
        self.sessions: dict[int, Session] = {}
        self.by_remote_channel: dict[int, Session] = {}
        self._channels = Numbers()
        self.ended_channels: set[int] = set()
        """Remote channels whose session is over: what still comes on them is ignored."""
        self.named: dict[tuple[bool, str], Link] = {}
        """Links the peer attached, in any session, by (do we receive, name)."""
        self.unfinished_bytes = 0
        self.answers = Answers(self)
        self.sasl = SaslExchange(handler, config.sasl, config.hostname)
        self._phase = _AWAIT_HEADER
        self._frame_bytes_max: i64 = config.max_frame_size
        self._partial = bytearray()
        self._told = False
        self._idle = Idle()
        self._heard = True
        self._spoke = True
        """Since the last tick."""
        self._close_by = 0

    # -- the driver's side ---------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        return len(self.out) > 0 or self.answers.session is not None or len(self.sasl.out) > 0

    def bytes_to_send(self) -> bytes:
        """Everything queued since last time."""
        if self.answers.session is not None:
            self.answers.flush()
        out = self.out
        sasl = self.sasl
        if sasl.out or not sasl.done:
            data = b"".join(sasl.out)
            sasl.out.clear()
            # a client queues its AMQP frames while SASL is still talking
            if not sasl.done:
                self._spoke = True
                return data
            out.insert(0, data)
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        self._spoke = True
        return data

    def receive_bytes(self, data: bytes) -> None:
        """Never raises for what a peer sent: it is answered, if need be with a close."""
        if self.closed:
            return
        self._heard = True
        try:
            if self._partial:
                self._complete_partial(data)
            else:
                self._take_frames(data, 0)
        except ProtocolError as broken:
            self._fail(broken.error)
        except DecodeError as unreadable:
            # a name of its own: compiled, one name cannot hold exceptions of two types
            self._fail(AmqpError(DECODE_ERROR, unreadable.description))

    def tick(self, now: int) -> int:
        """Heartbeats and idle expiry. Returns when to be called next, 0 = never."""
        if self.closed:
            return 0
        if self.close_sent:
            if self._close_by == 0:
                self._close_by = now + _CLOSE_WAIT_MS
            elif now >= self._close_by:
                self.closed = True
                return 0
            return self._close_by
        idle_ms = self.config.idle_timeout_ms
        drop_ms = max(self.config.drop_silent_after_ms or 2 * idle_ms, idle_ms) if idle_ms > 0 else 0
        idle, beat_ms = self._idle, self.remote_idle_timeout_ms
        heard, spoke = self._heard, self._spoke
        self._heard = self._spoke = False
        if idle.expired(now, heard, drop_ms):
            self._fail(AmqpError(CONNECTION_FORCED, f"nothing received for {idle.silent_ms(now)} ms; the idle timeout is {idle_ms} ms"))
            return 0
        if idle.must_speak(now, spoke, beat_ms) and not self.has_output:
            self.out.append(EMPTY_FRAME)
            idle.must_speak(now, True, beat_ms)  # whether or not it is taken at once: one is enough until then
        return idle.next_at(now, drop_ms, beat_ms)

    def lost(self, error: AmqpError | None = None) -> None:
        """The transport is gone, be it after a close or without one."""
        self.closed = True
        if not self._told:
            self.broken = True
        self._gone(error)

    # -- the owner's side ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """A client calls this first. A server's open is sent when the client's has come."""
        if self.open_sent:
            return
        self.open_sent = True
        if not self.server:
            if isinstance(self.config.sasl, SaslClient):
                self.sasl.begin()
            self.out.append(AMQP_HEADER)
        config = self.config
        self.emit(
            0,
            encode_open(
                config.container_id,
                config.hostname,
                config.max_frame_size,
                config.channel_max,
                config.idle_timeout_ms,
                config.properties,
            ),
        )

    def begin(self) -> Session:
        """Start a session of our own; links may be attached to it at once."""
        channel = self._channels.take(ABSENT, self.remote_channel_max)
        if channel > self.remote_channel_max:
            self._channels.give_back(channel)
            raise RuntimeError(f"the peer allows {self.remote_channel_max + 1} sessions")
        session = Session(self, channel)
        self.sessions[channel] = session
        session.send_begin()
        return session

    def close(self, error: AmqpError | None = None) -> None:
        """Say goodbye. Sessions and links are told now; `closed` follows when the peer has answered."""
        if self.closed or self.close_sent:
            return
        if self._phase != _AWAIT_FRAMES and self.server:
            self.closed = True
        else:
            self._send_close(error)
        self._gone(error)

    # -- out -----------------------------------------------------------------------------------------------------------

    def emit(self, channel: int, performative: bytes) -> None:
        if self.answers.session is not None:
            self.answers.flush()
        self.out.append(frame(channel, performative))

    def count_unfinished(self, change: int) -> None:
        """Bytes of deliveries that have begun and not ended."""
        self.unfinished_bytes += change
        if change > 0 and self.unfinished_bytes > self.config.unfinished_bytes_max:
            raise ProtocolError(
                AmqpError(RESOURCE_LIMIT_EXCEEDED, f"more than {self.config.unfinished_bytes_max} bytes of unfinished deliveries")
            )

    def fitting(self, error: AmqpError | None) -> AmqpError | None:
        """The error, cut short if the peer takes only small frames: the condition must arrive."""
        room = self.outgoing_frame_bytes_max - 128
        if error is None or len(error.encode()) <= room:
            return error
        return AmqpError(error.condition, None if error.description is None else error.description[: room // 4])

    def _send_close(self, error: AmqpError | None) -> None:
        if not self.open_sent:
            self.open()
        self.close_sent = True
        self.emit(0, encode_close(self.fitting(error)))

    def _fail(self, error: AmqpError) -> None:
        """The peer broke the protocol: a last word, and no more."""
        if self.closed:
            return
        self._partial.clear()
        if self._phase == _AWAIT_FRAMES and not self.close_sent:
            self._send_close(error)
        elif self._phase == _AWAIT_SASL:
            self.sasl.give_up()
        self.closed = True
        if not self._told:
            self.broken = True
        self._gone(error)

    def _gone(self, error: AmqpError | None) -> None:
        """Tell everybody, once, from the inside out."""
        if self._told:
            return
        self._told = True
        sessions = list(self.sessions.values())
        self.sessions.clear()
        self.by_remote_channel.clear()
        for session in sessions:
            session.lose(error)
        self.handler.on_close(self, error)

    # -- in ------------------------------------------------------------------------------------------------------------

    def _complete_partial(self, data: bytes) -> None:
        """Only the frame that was cut is copied together; the rest of `data` is read in place."""
        partial = self._partial
        at = 0
        want = 8
        while True:
            if len(partial) >= 8 and self._phase != _AWAIT_HEADER:
                want = int.from_bytes(partial[:4], "big")
                if want < 8 or want > self._frame_bytes_max:
                    break
            missing = want - len(partial)
            if missing > 0:
                partial += data[at : at + missing]
                at += missing
            if len(partial) < want:
                return
            if want > 8 or self._phase == _AWAIT_HEADER or partial[:4] == b"\x00\x00\x00\x08":
                break
        whole = bytes(partial)
        partial.clear()
        self._take_frames(whole, 0)
        if at < len(data) and not self.closed:
            self._take_frames(data, at)

    def _take_frames(self, data: bytes, at: i64) -> None:
        n: i64 = len(data)
        frame_bytes_max: i64 = self._frame_bytes_max
        while n - at >= 8 and not self.closed:
            if self._phase != _AWAIT_FRAMES:
                next_at = self._take_preamble(data, at, n)
                if next_at == at:
                    break
                at = next_at
                continue
            size: i64 = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]
            kind: i64 = (data[at + 4] << 8) | data[at + 5]
            channel: i64 = (data[at + 6] << 8) | data[at + 7]
            if size > n - at or size < 8 or size > frame_bytes_max:
                if size < 8 or size > frame_bytes_max:
                    raise wrong_size(size, self._frame_bytes_max)
                break
            end: i64 = at + size
            body: i64 = at + 8
            if kind != 0x0200:
                body = at + ((kind >> 8) << 2)
                if body < at + 8 or body > end or kind & 0xFF != 0:
                    raise wrong_head(kind)
            if body < end:
                if end - body > 3 and data[body] == 0 and data[body + 1] == 0x53:
                    code: i64 = data[body + 2]
                    body += 3
                else:
                    code, body = read_descriptor(data, body, end)
                session = self.by_remote_channel.get(channel)
                if session is None or session.end_sent or self.close_sent:
                    self._dispatch(code, channel, data, body, end)
                elif code == TRANSFER:
                    transfers.take_transfer(session, data, body, end)
                elif code == DISPOSITION:
                    dispositions.take_disposition(session, data, body, end)
                else:
                    self._dispatch(code, channel, data, body, end)
            at = end
        if at < n and not self.closed:
            self._partial += data[at:]

    def _stray(self, code: i64, channel: i64) -> None:
        """A frame for a session that does not exist: an error unless it did a moment ago."""
        if channel in self.ended_channels or channel in self.by_remote_channel:
            return
        if not self.remote_open:
            raise ProtocolError(AmqpError(ILLEGAL_STATE, f"{NAMES.get(int(code), 'frame')} before open"))
        if channel > self.config.channel_max:
            raise ProtocolError(AmqpError(FRAMING_ERROR, f"channel {channel} is above channel-max {self.config.channel_max}"))
        raise ProtocolError(AmqpError(NOT_ALLOWED, f"{NAMES.get(int(code), 'frame')} on channel {channel}, where no session has begun"))

    def _dispatch(self, code: i64, channel: i64, data: bytes, at: i64, end: i64) -> None:
        if code < OPEN or code > CLOSE:
            raise DecodeError(f"descriptor 0x{int(code):02x} is no performative")
        if code == CLOSE:
            self._on_close(Ending(Fields("close", data, at, end)))
            return
        if self.close_sent:
            return
        if code == OPEN:
            self._on_open(Open(Fields("open", data, at, end)))
            return
        if code == BEGIN:
            self._on_begin(Begin(Fields("begin", data, at, end)), channel)
            return
        session = self.by_remote_channel.get(channel)
        if session is None:
            self._stray(code, channel)
        elif code == END:
            self._on_end(session, Ending(Fields("end", data, at, end)))
        elif session.end_sent:
            return
        elif code == FLOW:
            session.on_flow(read_flow(data, at, end))
        elif code == ATTACH:
            session.on_attach(Attach(Fields("attach", data, at, end)))
        elif code == DETACH:
            session.on_detach(Detach(Fields("detach", data, at, end)))

    def _take_preamble(self, data: bytes, at: i64, n: i64) -> i64:
        """A protocol header or a SASL frame; returns `at` when more bytes are needed."""
        if self._phase == _AWAIT_HEADER:
            self._on_header(data[at : at + 8])
            return at + 8
        size: i64 = int.from_bytes(data[at : at + 4], "big")
        if size < 8 or size > self._frame_bytes_max:
            raise wrong_size(size, self._frame_bytes_max)
        if size > n - at:
            return at
        self.sasl.take_frame(data, at, at + size)
        if self.sasl.failed:
            self._fail(AmqpError("amqp:unauthorized-access", "SASL: authentication failed"))
        elif self.sasl.done:
            self._phase = _AWAIT_HEADER
        return at + size

    def _on_header(self, header: bytes) -> None:
        config = self.config
        sasl = config.sasl
        if header == SASL_HEADER and not self.sasl.spoken:
            if self.server and isinstance(sasl, SaslServer):
                self._phase = _AWAIT_SASL
                self.sasl.offer()
                return
            if not self.server and isinstance(sasl, SaslClient):
                self._phase = _AWAIT_SASL
                self.sasl.meet()
                return
        if header == AMQP_HEADER and self.sasl.done and (self.sasl.spoken or not self.server or not config.sasl_required):
            self._phase = _AWAIT_FRAMES
            if self.server:
                self.out.append(AMQP_HEADER)
            return
        if self.server:
            self.out.append(SASL_HEADER if config.sasl_required and not self.sasl.spoken else AMQP_HEADER)
        self.closed = True
        self._gone(AmqpError(FRAMING_ERROR, f"protocol header {header.hex()} is not understood"))

    def _on_open(self, opened: Open) -> None:
        if self.remote_open:
            raise ProtocolError(AmqpError(ILLEGAL_STATE, "open was sent twice"))
        if opened.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ProtocolError(AmqpError(INVALID_FIELD, f"open.max-frame-size: {opened.max_frame_size}; 512 is the least"))
        self.remote_open = True
        self.remote_container_id = opened.container_id
        self.remote_hostname = opened.hostname
        self.remote_max_frame_size = opened.max_frame_size
        self.outgoing_frame_bytes_max = min(opened.max_frame_size, _OUTGOING_FRAME_BYTES_MAX)
        self.remote_channel_max = opened.channel_max
        self.remote_idle_timeout_ms = opened.idle_timeout_ms
        self.remote_properties = {} if opened.properties is None else opened.properties
        self.handler.on_open(self)
        if not self.close_sent:
            self.open()

    def _on_begin(self, begin: Begin, channel: int) -> None:
        if not self.remote_open:
            raise ProtocolError(AmqpError(ILLEGAL_STATE, "begin before open"))
        if channel > self.config.channel_max:
            raise ProtocolError(AmqpError(FRAMING_ERROR, f"begin: channel {channel} is above channel-max {self.config.channel_max}"))
        if channel in self.by_remote_channel:
            raise ProtocolError(AmqpError(NOT_ALLOWED, f"begin: channel {channel} has a session already"))
        answers = begin.remote_channel != ABSENT
        if answers:
            session = self.sessions.get(begin.remote_channel)
            if session is None or session.mapped:
                raise ProtocolError(AmqpError(INVALID_FIELD, f"begin.remote-channel: {begin.remote_channel} is no session of ours"))
        else:
            local = self._channels.take(channel, self.remote_channel_max)
            if local > self.remote_channel_max:
                raise ProtocolError(AmqpError(RESOURCE_LIMIT_EXCEEDED, f"begin: no channel free up to {self.remote_channel_max}"))
            session = Session(self, local)
            self.sessions[local] = session
        self.by_remote_channel[channel] = session
        self.ended_channels.discard(channel)
        session.begun(begin, channel)
        if not answers:
            session.send_begin()
        if not session.end_sent:
            self.handler.on_begin(session)

    def _on_end(self, session: Session, ending: Ending) -> None:
        if not session.end_sent:
            self.emit(session.channel, encode_end(None))
            session.lose(ending.error)
        del self.by_remote_channel[session.remote_channel]
        self.sessions.pop(session.channel, None)
        self._channels.give_back(session.channel)
        self.ended_channels.add(session.remote_channel)

    def _on_close(self, ending: Ending) -> None:
        if not self.close_sent:
            self._send_close(None)
        self.closed = True
        self._gone(ending.error)
