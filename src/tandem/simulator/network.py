"""A network in memory: connections between named hosts that take their time, break, or fall silent without a word."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from random import Random
from typing import Any, Final
from zlib import crc32

from tandem.simulator.agenda import MACHINE, Agenda, Machine

_EPHEMERAL = 40_000


class _Listener:
    """Looks enough like asyncio.Server."""

    def __init__(self, net: SimNet, address: tuple[str, int], factory: Callable[[], asyncio.Protocol]) -> None:
        self.net = net
        self.address = address
        self.factory = factory
        self.context = contextvars.copy_context()
        self.machine = MACHINE.get()
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        if self.net.listeners.get(self.address) is self:
            del self.net.listeners[self.address]


class SimConnection:
    """One direction's end of a connection: an asyncio transport whose bytes arrive at `peer` later."""

    def __init__(self, net: SimNet, name: bytes, machine: Machine, context: contextvars.Context, protocol: asyncio.Protocol) -> None:
        self.net = net
        self.name = name
        self.machine = machine
        self.context = context
        self.protocol = protocol
        self.peer: SimConnection | None = None
        self.closing = False
        self.ended = False
        self.silent = False
        """What is written here vanishes; nobody is told."""
        self.free_at = 0.0
        """Bytes written later arrive later."""

    # -- what asyncio protocols call ---------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.closing and data:
            self.net.send(self, bytes(data))

    def close(self) -> None:
        """What was written still arrives, then the end does."""
        if not self.closing:
            self.closing = True
            self.net.send(self, None)
            self.net.agenda.call_soon(self.end, context=self.context.copy())

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("simulated", _EPHEMERAL) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffers never fill: what waits is on the wire."""

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.Protocol:
        return self.protocol

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """Nobody is that slow here."""

    def resume_reading(self) -> None:
        """Nobody is that slow here."""

    # -- what the network does -----------------------------------------------------------------

    def arrive(self, data: bytes | None) -> None:
        if self.ended:
            return
        if data is None:
            self.end()
        elif not self.closing:
            self.net.trace(self.name, data)
            self.protocol.data_received(data)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.closing = True
            self.net.lines.pop(self, None)
            self.protocol.connection_lost(None)


_SHORTEST: Final = 0.000_2
_LONGEST: Final = 0.002
_SLOW_SHORTEST: Final = 0.05
_SLOW_LONGEST: Final = 0.8


class SimNet:
    """`delay` is drawn per write; `down` hosts refuse, `dark` hosts answer nothing, and there is no way between two hosts of `cuts`."""

    def __init__(self, agenda: Agenda, dice: Random, trace: Callable[[bytes, bytes], None]) -> None:
        self.agenda = agenda
        self.dice = dice
        self.trace = trace
        self.listeners: dict[tuple[str, int], _Listener] = {}
        self.lines: dict[SimConnection, None] = {}
        self.dark: set[str] = set()
        self.cuts: set[frozenset[str]] = set()
        self.made: dict[tuple[str, str], int] = {}
        """Connections that came about, by the hosts that made and took them."""
        self._shortest = _SHORTEST
        self._longest = _LONGEST
        self._number = 0

    def slow(self, slow: bool) -> None:
        """Everything takes as long as over a poor line."""
        self._shortest = _SLOW_SHORTEST if slow else _SHORTEST
        self._longest = _SLOW_LONGEST if slow else _LONGEST

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> _Listener:
        listener = _Listener(self, (host, port), factory)
        if listener.address in self.listeners:
            raise OSError(98, f"address in use: {listener.address}")
        self.listeners[listener.address] = listener
        return listener

    async def connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> tuple[SimConnection, asyncio.Protocol]:
        await asyncio.sleep(self._delay())
        if host in self.dark:
            await asyncio.sleep(60.0)
            raise TimeoutError(f"no answer from {host}")
        if frozenset((MACHINE.get().host, host)) in self.cuts:
            await asyncio.sleep(60.0)
            raise TimeoutError(f"no way to {host}")
        listener = self.listeners.get((host, port))
        if listener is None or not listener.machine.alive:
            raise ConnectionRefusedError(111, f"connection refused by {host}:{port}")
        self._number += 1
        way = (MACHINE.get().host, host)
        self.made[way] = self.made.get(way, 0) + 1
        client = SimConnection(self, b"%d<" % self._number, MACHINE.get(), contextvars.copy_context(), factory())
        server_context = listener.context.copy()
        protocol = server_context.run(listener.factory)
        server = SimConnection(self, b"%d>" % self._number, listener.machine, server_context, protocol)
        client.peer, server.peer = server, client
        self.lines[client] = self.lines[server] = None
        self.agenda.call_soon(protocol.connection_made, server, context=server_context.copy())
        client.protocol.connection_made(client)  # type: ignore[arg-type]
        return client, client.protocol

    def _delay(self) -> float:
        return self._shortest + (self._longest - self._shortest) * self.dice.random()

    def send(self, line: SimConnection, data: bytes | None) -> None:
        peer = line.peer
        assert peer is not None
        if line.silent or peer.ended or not line.machine.alive:
            return
        at = max(self.agenda.time() + self._delay(), line.free_at)
        line.free_at = at
        self.agenda.call_at(at, peer.arrive, data, context=peer.context.copy())

    # -- faults --------------------------------------------------------------------------------

    def connections(self, machine: Machine) -> list[SimConnection]:
        """The ends of this machine, oldest first."""
        return [line for line in self.lines if line.machine is machine and not line.ended]

    def reset(self, line: SimConnection) -> None:
        """Both ends hear that the connection is gone; what was on its way is lost."""
        for end in (line, line.peer):
            if end is not None and not end.ended:
                end.silent = True
                end.closing = True
                self.agenda.call_later(self._delay(), end.end, context=end.context.copy())

    def forget(self, line: SimConnection) -> None:
        """Half-open: neither end hears of the other again, and neither is told."""
        for end in (line, line.peer):
            if end is not None:
                end.silent = True

    def cut(self, one: str, other: str) -> None:
        """Neither reaches the other until it is mended; lines that were between them stay silent."""
        self.cuts.add(frozenset((one, other)))
        for line in list(self.lines):
            if line.peer is not None and {line.machine.host, line.peer.machine.host} == {one, other}:
                self.forget(line)

    def mend(self, one: str, other: str) -> None:
        self.cuts.discard(frozenset((one, other)))

    def machine_died(self, machine: Machine, told: bool) -> None:
        """`told`: the operating system says goodbye for the process; otherwise the power failed and nobody says anything."""
        for line in self.connections(machine):
            if told:
                self.reset(line)
            else:
                self.forget(line)
        self.stop_listening(machine)

    def stop_listening(self, machine: Machine) -> None:
        for listener in list(self.listeners.values()):
            if listener.machine is machine:
                listener.close()


class Trace:
    """A running hash over everything that matters, and the last things that happened."""

    def __init__(self, agenda: Agenda, keep: int = 60) -> None:
        self._agenda = agenda
        self._hash = 0
        self._keep = keep
        self.count = 0
        self.last: list[str] = []
        self.listener: Callable[[str], None] | None = None

    def bytes_arrived(self, name: bytes, data: bytes) -> None:
        self.count += 1
        self._hash = crc32(data, crc32(b"%s %.6f" % (name, self._agenda.time()), self._hash))

    def happened(self, text: str) -> None:
        if self._agenda.over:
            return  # last words of what never ended
        self.count += 1
        line = f"{self._agenda.time():12.6f} {text}"
        self._hash = crc32(line.encode(), self._hash)
        self.last.append(line)
        if len(self.last) > 2 * self._keep:
            del self.last[: -self._keep]
        if self.listener is not None:
            self.listener(line)

    def digest(self) -> str:
        return f"{self._hash:08x}"
