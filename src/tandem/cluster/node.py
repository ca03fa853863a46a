"""One node of a cluster: beats, looks who lives, takes what is free, and gives up what it may no longer serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from tandem.cluster.beats import Beats, ThreadBeats
from tandem.cluster.engine_watch import EngineWatch, OtherEngine
from tandem.cluster.membership import BEATS_PER_LEASE, Membership, NodeRow, View
from tandem.model.clock import Clock, boot_ms
from tandem.model.errors import EngineAway
from tandem.model.follower_row import FollowerRow
from tandem.model.store_row import FIRST_ENGINE, StoreRow

_SKEW_MS_MAX: Final = 1_000
"""Clocks of node and engine further apart than this are worth a word."""
_CAUSES_MAX: Final = 8
"""So many reasons why the engine does not answer are told until it does."""


class Nodes(Protocol):
    """The engine, for beats. Calls block."""

    def beat(self, node: str, incarnation: int) -> bool: ...

    def look(self) -> tuple[list[tuple[str, int, int, str, str, bool]], list[StoreRow], dict[str, int], int, frozenset[str]]: ...

    def followers(self) -> list[FollowerRow]: ...

    def wait(self, seconds: float) -> bool:
        """True as soon as another node has changed a namespace; False after so long."""
        ...

    def give_up_after(self, milliseconds: int) -> None:
        """On any thread."""

    def close(self) -> None: ...


class HeldStore(Protocol):
    """A store as its node drives it."""

    epoch: int
    doubts: dict[str, int]
    """Blocks that the engine did not answer for, by what was found out: `landed`, or `sent again`."""

    def hold(self, why: str) -> None: ...

    def hand_back(self, why: str, engine_away: bool = False) -> None: ...

    def move_away(self, why: str) -> None: ...


class Node:
    """Methods are called on the loop, but for those that a beat is made of."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        nodes: Nodes,
        clock: Clock,
        lease_ms: int,
        log: Callable[[str], None],
        boot_ms: Callable[[], int] = boot_ms,
        others: Sequence[OtherEngine] = (),
        engine_of: Callable[[str, int], str] = lambda namespace, store: "",
        stall_ms: int = 15_000,
        new_beats: Callable[[Node], Beats] = ThreadBeats,
        must_stop: Callable[[str], None] | None = None,
    ) -> None:
        """`others`: engines beside the first; `engine_of`: the name of the one that a store lives in; `stall_ms`: stores in one that has
        not answered for so long are down; `new_beats`: who beats, and when; `must_stop`: called on the loop when this process
        must not go on, with the reason."""
        self.name = name
        self.incarnation = incarnation
        self.membership = Membership(name)
        self._nodes = nodes
        self._clock = clock
        self.lease_ms = lease_ms
        self.interval_ms = lease_ms // BEATS_PER_LEASE
        self._hold_after_ms = lease_ms - lease_ms // BEATS_PER_LEASE
        self._log = log
        self.boot_ms = boot_ms
        self._must_stop = must_stop or log
        self._loop_call: Callable[[Callable[[], None]], None] = lambda function: None
        self._beats = new_beats(self)
        self._started = False
        self._is_deposed = False
        self._engine_of = engine_of
        self._stall_ms = stall_ms
        self.watches = [EngineWatch(other, self.interval_ms, boot_ms, log) for other in others]
        self._late_engines: frozenset[str] = frozenset()
        self._given_up: set[str] = set()
        """Engines that have been away for so long that their stores are down."""
        self._late = False
        self._last_beat = 0
        """When the last beat that the engine has was begun, on a clock that goes on while the machine sleeps."""
        self._away = ""
        """Why the engine does not take our beats; empty: it does."""
        self._told_away: set[str] = set()
        self._told_skew = False
        self.stores: dict[tuple[str, int], HeldStore] = {}
        self._subscribers: dict[str, list[Callable[[int], None]]] = {}
        self._owners: dict[tuple[str, int], str | None] = {}
        self._served_by: dict[tuple[str, int], str] = {}
        """Which other node had a store when it was last somebody else's; empty: nobody did."""
        self.on_beat: list[Callable[[], None]] = []
        """Called on the loop after each beat."""
        self.on_notice: list[Callable[[], None]] = []
        """Called on the loop when another node says that it has changed a namespace."""
        self.on_takeover: Callable[[str, str, str, int, str], None] = lambda subject, state, cause, before_ms, namespace: None
        """Called on the loop when a store of a dead node was taken: the event that nobody else can tell, and how long ago it was."""
        self.takeovers = 0
        self.beat_ms = 0
        self.skew_ms = 0
        self.followers: list[FollowerRow] = []
        """In other regions."""

    # -- beats -------------------------------------------------------------------------------

    def first_look(self) -> None:
        """Before anything is opened: blocks, and raises EngineAway."""
        begun = self.boot_ms()
        if not self._nodes.beat(self.name, self.incarnation):
            raise EngineAway(f"another process runs as node {self.name}")
        for watch in self.watches:
            watch.start()
        for watch in self.watches:
            watch.first_look()
        self._take(self._view(), begun)

    def start(self, loop_call: Callable[[Callable[[], None]], None]) -> None:
        self._loop_call = loop_call
        self._started = True
        self._beats.start()

    def stop(self) -> None:
        for watch in self.watches:
            watch.stop()
        self._beats.stop()

    def ask(self, begun: int) -> Callable[[], None]:
        if not self._nodes.beat(self.name, self.incarnation):
            why = self._why_deposed()
            self._is_deposed = True
            return partial(self._deposed, *why)
        return partial(self._take, self._view(), begun)

    def heed(self, seconds: float) -> Callable[[], None] | None:
        return self._noticed if self._nodes.wait(seconds) else None

    def is_deposed(self) -> bool:
        return self._is_deposed

    def has_ended(self) -> None:
        self._nodes.close()

    def _noticed(self) -> None:
        for tell in self.on_notice:
            tell()

    def tell(self, what: Callable[[], None]) -> None:
        try:
            self._loop_call(what)
        except RuntimeError:
            return  # the loop is closed

    def _view(self) -> View:
        nodes, stores, revisions, engine_ms, spread = self._nodes.look()
        self.skew_ms = engine_ms - self._clock.now_ms() if engine_ms else 0
        self.followers = self._nodes.followers()
        return View(tuple(NodeRow(*row) for row in nodes), tuple(stores), revisions, engine_ms, spread)

    def clock_note(self) -> str:
        """Why somebody should look at this machine's clock, or at the engine's; empty: both are well."""
        if abs(self.skew_ms) <= _SKEW_MS_MAX:
            return ""
        way = "ahead of" if self.skew_ms < 0 else "behind"
        return f"the clock of this node is {abs(self.skew_ms)} ms {way} the engine's: set both by NTP"

    def is_away(self, cause: str) -> None:
        self._away = cause
        if cause not in self._told_away and len(self._told_away) < _CAUSES_MAX:
            self._told_away.add(cause)
            self._log(f"the engine does not take our beats: {cause}")
        self.check()

    def _why_deposed(self) -> tuple[str, str]:
        """And what to do. Blocks."""
        known = next((row[1] for row in self._nodes.look()[0] if row[0] == self.name), 0)
        if not known:
            return f"node {self.name} was struck from the cluster (tandem cluster forget)", "if it is still wanted, start it again"
        if known < self.incarnation:
            return "the engine was restored to an older state", "stop all nodes, then start them again"
        return f"another process runs as node {self.name}", "give each node a name of its own (--node), then start again"

    def _deposed(self, why: str, remedy: str) -> None:
        """Two processes under one name would both think that they are this node."""
        for store in self.stores.values():
            store.hand_back(why)
        self._must_stop(f"{why}: {remedy}")

    def _take(self, view: View, begun: int) -> None:
        self._last_beat = begun
        self.beat_ms = self.boot_ms() - begun
        if self._away:
            self._away = ""
            self._told_away.clear()
            self._log("the engine takes our beats again")
        skew = self.clock_note()
        if skew and not self._told_skew:
            self._log(skew)
        self._told_skew = bool(skew)
        view = self._with_others(view)
        self.membership.beat(view)
        for row in view.stores:
            if row.owner != self.name:  # a beat may show what we have just acquired before we heard that we have
                self._served_by[row.namespace, row.number] = row.owner
        for (namespace, number), store in self.stores.items():
            if store.epoch and self._is_ours(namespace, number, store):
                to = self.membership.should_leave(namespace, number)
                if to:
                    self.membership.leaves(namespace, number)
                    store.move_away(f"moving to node {to}")
        self.check()
        self._tell_changes()
        for tell in self.on_beat:
            tell()

    def _is_ours(self, namespace: str, number: int, store: HeldStore) -> bool:
        """By what the last beat has shown. One that is somebody else's is handed back."""
        if other := self.membership.doubled(namespace, number, store.epoch):
            store.hand_back(f"the engine was restored to an older state, and node {other} has the store under the same epoch")
        elif by := self.membership.lost(namespace, number, store.epoch):
            store.hand_back(f"node {by} has taken the store over" if by != "nobody" else "the store was taken away by an operator")
        else:
            return True
        return False

    def _with_others(self, view: View) -> View:
        """And what the engines beside the first have shown last."""
        if not self.watches:
            return view
        engines = {watch.name: watch.view for watch in self.watches}
        stores = [*view.stores, *(row for seen in engines.values() for row in seen.stores)]
        return replace(view, stores=tuple(sorted(stores, key=lambda row: (row.namespace, row.number))), engines=engines)

    def check(self) -> None:
        """At the start of a turn: a node that was stopped, or cut off, may have been declared dead. It hands out nothing until it knows."""
        late = self.boot_ms() - self._last_beat > self._hold_after_ms
        if late:
            self._nodes.give_up_after(self.lease_ms)
        engines = self._check_others() if self.watches else self._late_engines
        if late == self._late and engines == self._late_engines:
            return
        self._late, self._late_engines = late, engines
        for (namespace, number), store in self.stores.items():
            engine = self._engine_of(namespace, number)
            which = "the engine" if late else f"engine {engine}" if engine in engines else ""
            store.hold(
                f"node {self.name} could not reach {which} for {self._hold_after_ms} ms: others may have taken over" if which else ""
            )

    def _check_others(self) -> frozenset[str]:
        """Those of which the last beat that was looked at is old. Stores in one that stays away are down, so that partitioned entities go
        on without them."""
        now, seen = self.boot_ms(), self.membership.view.engines
        away = [watch for watch in self.watches if watch.is_late(self._hold_after_ms)]
        self._given_up &= {watch.name for watch in away}
        for watch in away:
            watch.hangs(self._hold_after_ms, self.lease_ms)
            if watch.name not in self._given_up and watch.is_late(self._stall_ms):
                self._given_up.add(watch.name)
                for (namespace, number), store in self.stores.items():
                    if self._engine_of(namespace, number) == watch.name:  # one that is being opened is given up too
                        store.hand_back(
                            f"engine {watch.name} has not answered for more than {self._stall_ms} ms: {watch.away}", engine_away=True
                        )
        return frozenset(name for name, view in seen.items() if now - view.at_ms > self._hold_after_ms)

    # -- stores ------------------------------------------------------------------------------

    def may_take(self, row: StoreRow) -> bool:
        """On the thread that opens a store."""
        return self._started and self.membership.may_take(row)

    def should_open(self, namespace: str, number: int) -> bool:
        return self.membership.should_open(namespace, number)

    def took(self, row: StoreRow) -> None:
        """A store was acquired here."""
        before = self._served_by.pop((row.namespace, row.number), "")
        if before:
            self.takeovers += 1
            lost = f"node {before} was not heard of for {self.lease_ms} ms"
            self.on_takeover(f"store-{row.number}", "lost", lost, self.lease_ms, row.namespace)
            self._log(f"{row.namespace} store-{row.number}: node {self.name} takes over from {before}, epoch {row.epoch}")
        self.membership.took(row)
        self._tell_changes()

    def opened(self, namespace: str, number: int) -> None:
        """What was acquired has been read. A beat that came while it was read may have shown that others have acquired it since."""
        store = self.stores[namespace, number]
        if store.epoch:
            self._is_ours(namespace, number, store)

    def state(self) -> dict[str, object]:
        """For operators."""
        living = self.membership.living()
        return {
            "node": self.name,
            "beats": not self._late,
            "beat_ms": self.beat_ms,
            "clock_ahead_ms": -self.skew_ms,
            "notes": self._notes(),
            "takeovers": self.takeovers,
            "followers": [row.as_dict() for row in self.followers],
            "nodes": [
                {"name": row.name, "lives": row.name in living, "draining": row.draining, "version": row.version}
                for row in self.membership.view.nodes
            ],
            **({"engines": engines} if (engines := self.engines()) else {}),
        }

    def _notes(self) -> list[str]:
        away = [f"engine {watch.name} does not answer: {watch.away}" for watch in self.watches if watch.away]
        return [note for note in (self.clock_note(), *away) if note]

    def why_away(self, engine: str) -> str:
        """On any thread; empty: it answers, or is the first."""
        return next((watch.away for watch in self.watches if watch.name == engine), "")

    def engines(self) -> list[dict[str, object]]:
        """Where there are several: which of them answer, and how long that took the last time."""
        if not self.watches:
            return []
        first = {"name": FIRST_ENGINE, "answers": not self._away, "cause": self._away, "beat_ms": self.beat_ms}
        others = [{"name": one.name, "answers": not one.away, "cause": one.away, "beat_ms": one.beat_ms} for one in self.watches]
        return [first, *others]

    def ownership(self, namespace: str) -> NamespaceOwnership:
        return NamespaceOwnership(self, namespace)

    def subscribe(self, namespace: str, changed: Callable[[int], None]) -> None:
        self._subscribers.setdefault(namespace, []).append(changed)

    def _tell_changes(self) -> None:
        for row in self.membership.view.stores:
            key = (row.namespace, row.number)
            owner = self.membership.owner(*key)
            if self._owners.get(key, "") != owner:
                self._owners[key] = owner
                for changed in self._subscribers.get(row.namespace, ()):
                    changed(row.number)


class NamespaceOwnership:
    """Who serves the stores of one namespace, by what the last beat has shown."""

    def __init__(self, node: Node, namespace: str) -> None:
        self._node = node
        self._namespace = namespace

    def owner(self, store: int) -> str | None:
        if self.here(store):
            return self._node.name
        owner = self._node.membership.owner(self._namespace, store)
        return None if owner == self._node.name else owner

    def here(self, store: int) -> bool:
        held = self._node.stores.get((self._namespace, store))
        return held is not None and held.epoch > 0

    def address(self, node: str) -> str | None:
        row = self._node.membership.node_row(node)
        return row.address or None if row is not None else None

    def subscribe(self, changed: Callable[[int], None]) -> None:
        self._node.subscribe(self._namespace, changed)

    def epoch(self, store: int) -> int:
        """The newest one that is known here."""
        held = self._node.stores.get((self._namespace, store))
        row = self._node.membership.store(self._namespace, store)
        return max(held.epoch if held is not None else 0, row.epoch if row is not None else 0)

    def others(self) -> tuple[str, ...]:
        """Nodes that can be asked."""
        return self._node.membership.others_to_ask()
