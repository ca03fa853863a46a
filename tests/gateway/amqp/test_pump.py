"""Bytes between a transport and a connection: what is written, what is left unread, and for how long."""

from __future__ import annotations

import asyncio

from tandem.gateway.amqp.pump import AmqpPump, TransportWriter
from tandem.server.backpressure import Backpressure
from tests.gateway.amqp.connected import Connected


class Line(asyncio.Transport):
    """A transport that only notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.7", 5671)})
        self.written: list[bytes] = []
        self.reading = True
        self.closed = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def opened(bytes_max: int = 1 << 20) -> tuple[AmqpPump, Line, Connected]:
    both = Connected()
    pump = AmqpPump(lambda host: both.context, "broker", Backpressure(bytes_max, lambda: None))
    line = Line()
    pump.connection_made(line)
    return pump, line, both


def test_what_comes_in_is_answered_on_the_same_line() -> None:
    pump, line, both = opened()
    pump.data_received(b"AMQP\x03\x01\x00\x00")
    both.desk.turn.run()
    assert b"".join(line.written).startswith(b"AMQP\x03\x01\x00\x00")


def test_who_does_not_read_its_answers_is_not_read_from() -> None:
    pump, line, _ = opened()
    pump.pause_writing()
    assert not line.reading
    pump.resume_writing()
    assert line.reading


def test_a_line_stays_unread_while_anybody_wants_it_so() -> None:
    line = Line()
    writer = TransportWriter(line)
    writer.pause_reading()
    writer.set_deaf(True)
    writer.hold_reading(True)
    writer.resume_reading()
    assert not line.reading
    writer.set_deaf(False)
    assert not line.reading
    writer.hold_reading(False)
    assert line.reading


def test_nothing_is_written_to_a_line_that_closes() -> None:
    line = Line()
    writer = TransportWriter(line)
    writer.hang_up()
    writer.write(b"too late")
    writer.pause_reading()
    assert line.written == [] and line.reading


def test_a_connection_whose_line_is_cut_is_gone() -> None:
    pump, _, both = opened()
    assert len(both.context.connections) == 2
    pump.connection_lost(None)
    both.desk.turn.run()
    assert len(both.context.connections) == 1
