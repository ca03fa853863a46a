"""Brokers for conformance tests: a process of its own, or one in a thread of the test on a clock that can jump."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tandem.cli.configuration import keyring
from tandem.cli.configuration.settings import Flags, load
from tandem.model.clock import Clock, SystemClock
from tandem.server.server import Server
from tandem.simulator.replayed import compare
from tandem.stores.engines import MemoryEngines
from tandem.stores.memory import MemoryStore
from tests.cli.broker_process import BrokerProcess

ROOT_NAME = "RootManageSharedAccessKey"
ROOT_KEY = "SAS_KEY_VALUE"

KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "short": {"lock_duration": "5s"},
    "sessions": {"requires_session": True},
    "short-sessions": {"requires_session": True, "lock_duration": "5s"},
    "dedup": {"requires_duplicate_detection": True, "duplicate_detection_history": "20s"},
    "twice": {"max_delivery_count": 2, "lock_duration": "5s"},
    "once": {"max_delivery_count": 1},
    "brief": {"default_message_time_to_live": "10s"},
    "last-words": {"default_message_time_to_live": "10s", "dead_lettering_on_message_expiration": True},
    "mebibyte": {"max_message_bytes": 1_048_576},
    "roomy": {"max_message_bytes": 4_194_304},
    "disabled": {"status": "Disabled"},
    "send-disabled": {"status": "SendDisabled"},
    "receive-disabled": {"status": "ReceiveDisabled"},
    "small": {"max_size_megabytes": 1024},
    "partitioned": {"enable_partitioning": True},
}

GUARDED = "guarded"
"""A queue with rules of its own: name -> rights. Their keys are `<name>-first` and `<name>-second`."""
RULES = {"sender": ("Send",), "listener": ("Listen",), "manager": ("Manage", "Send", "Listen")}

TOPIC = "events"
"""A topic whose subscription `ruled` wants the label s, and `by-id` the message id abc."""

T = TypeVar("T")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f'"{value}"'


def _rules(table: str) -> list[str]:
    lines: list[str] = []
    for name, rights in RULES.items():
        lines += [f"[[{table}]]", f'name = "{name}"', f"rights = [{', '.join(_toml(right) for right in rights)}]"]
        lines += [f'primary_key = "{name}-first"', f'secondary_key = "{name}-second"']
    return lines


def write_config(directory: Path, wanted: Mapping[str, int], *lines_before: str) -> Path:
    """A tandem.toml with so many queues of each kind, and the guarded one."""
    lines = list(lines_before)
    for kind, count in wanted.items():
        for number in range(count):
            lines += ["[[queue]]", f'name = "{kind}-{number}"']
            lines += [f"{key} = {_toml(value)}" for key, value in KINDS[kind].items()]
    lines += ["[[queue]]", f'name = "{GUARDED}"', *_rules("queue.authorization_rule")]
    lines += _rules("authorization_rule")
    lines += ["[[topic]]", f'name = "{TOPIC}"', "[[topic.subscription]]", 'name = "ruled"']
    lines += ["[[topic.subscription.rule]]", 'name = "seen"', "sql = \"sys.Label = 's'\""]
    lines += ["[[topic.subscription]]", 'name = "by-id"']
    lines += ["[[topic.subscription.rule]]", 'name = "id"', 'correlation = { message_id = "abc" }']
    directory.mkdir(exist_ok=True)
    file = directory / "tandem.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def connection_string(port: int, name: str = ROOT_NAME, key: str = ROOT_KEY) -> str:
    return f"Endpoint=sb://localhost:{port};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;"


class Broker(Protocol):
    """What a test needs to know of either."""

    @property
    def port(self) -> int: ...

    def queue(self, kind: str) -> str:
        """The name of a queue of this kind that nobody has used."""


class _Pool:
    def __init__(self, wanted: Mapping[str, int]) -> None:
        self._free = {kind: [f"{kind}-{number}" for number in reversed(range(count))] for kind, count in wanted.items()}

    def take(self, kind: str) -> str:
        free = self._free.get(kind)
        assert free, f"no queue of kind {kind} is left: raise QUEUES in the test's module"
        return free.pop()


class ProcessBroker:
    """`tandem serve` on a free port, with a data directory of its own."""

    def __init__(self, directory: Path, wanted: Mapping[str, int]) -> None:
        config = write_config(directory, wanted)
        self.process = BrokerProcess(directory, "--port", "0", "--data", "data", "--dev", "--config", str(config))
        self._pool = _Pool(wanted)
        self._port = 0

    def __enter__(self) -> ProcessBroker:
        self.process.__enter__()
        self._port = self.process.port
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.process.__exit__(kind, value, trace)

    @property
    def port(self) -> int:
        return self._port

    def queue(self, kind: str) -> str:
        return self._pool.take(kind)

    def resident_bytes(self) -> int:
        """Memory the broker's process holds right now."""
        pages = int(Path(f"/proc/{self.process.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


_SLOWER = 50
"""Than real time."""


class JumpingClock(Clock):
    """What the test has skipped, and next to nothing besides: however slow the machine, what is due in a second is not due yet."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._began_ms = self._real.now_ms()
        self._began_steady_ms = self._real.steady_ms()
        self.skipped_ms = 0

    def now_ms(self) -> int:
        return self._began_ms + self._passed_ms()

    def steady_ms(self) -> int:
        return self._began_steady_ms + self._passed_ms()

    def _passed_ms(self) -> int:
        return (self._real.steady_ms() - self._began_steady_ms) // _SLOWER + self.skipped_ms

    def jumped(self) -> int:
        return 0


class ClockedBroker:
    """The same server in a thread of this process, in memory. `jump` moves its clock, and only its clock: clients keep real time,
    so their own shortcuts ("this lock must have expired") do not hide what the broker says."""

    def __init__(self, directory: Path, wanted: Mapping[str, int], connections_too: bool = False, more: tuple[str, ...] = ()) -> None:
        """`connections_too`: tokens age with the clock as well; then silence is forgiven, or every jump would hang up. `more`: lines for
        its configuration."""
        self.clock = JumpingClock()
        patience = ("[limits]", "idle_timeout_ms = 1_000_000_000", "drop_silent_peer_after_ms = 2_000_000_000") if connections_too else ()
        flags = Flags(config=write_config(directory, wanted, *patience, *more), memory=True, dev=True, port=(0,))
        settings = load(flags, {}, directory).server
        ring = keyring.KeyRing(directory / keyring.FILE_NAME)
        settings = replace(settings, namespaces=keyring.fill(settings.namespaces, ring, None, True))
        self.notes: list[str] = []
        real = self.clock if connections_too else SystemClock()
        self.server = Server(settings, MemoryEngines(), clock=self.clock, connection_clock=real, log=self.notes.append)
        self._pool = _Pool(wanted)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ClockedBroker:
        self._thread.start()
        self._run(self.server.start())
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def port(self) -> int:
        return self.server.ports[0]

    def queue(self, kind: str) -> str:
        return self._pool.take(kind)

    def on_loop(self, look: Callable[[Server], T]) -> T:
        """Look at the broker from inside, between two turns."""

        async def work() -> T:
            return look(self.server)

        return self._run(work())

    def jump(self, seconds: float) -> None:
        """Now it is later: whatever is due by then has happened when this returns."""

        async def work() -> None:
            self.clock.skipped_ms += int(seconds * 1000)
            self.server.driver.run_housekeeping()
            for _ in range(20):  # what comes due may make more come due, with the store's answers in between
                self.server.driver.run_turn()
                await asyncio.sleep(0)

        self._run(work())

    def unlike_replay(self) -> list[str]:
        """Where the queues are not what a replay of their journals would make of them."""

        async def work() -> list[str]:
            found: list[str] = []
            for tenant in self.server.contexts[0].namespace.stores:
                journal = tenant.journal
                assert isinstance(journal, MemoryStore)
                while journal.pending_bytes:
                    self.server.driver.run_turn()
                    journal.flush()
                    await asyncio.sleep(0)
                twin = MemoryStore(lambda call: None, None, journal._shelf)
                found += compare(tenant, twin.replay, self.server.turn.begin())
            return found

        return self._run(work())
