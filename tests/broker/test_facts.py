"""Facts are written and read in one place, and what was written reads as it was meant."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.broker import facts
from tandem.broker.queue.index import DEFERRED, DELAYED, READY, SCHEDULED

TX = bytes(16)
BROKER = Path(__file__).resolve().parents[2] / "src" / "tandem" / "broker"


class Paper:
    """A journal that keeps the last fact."""

    def __init__(self) -> None:
        self.fact: tuple[Any, ...] = ()

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        self.fact = (kind, flags, entity, seq, at, aux, key, body)
        return 7


@pytest.mark.parametrize("state", [READY, DEFERRED, SCHEDULED])
@pytest.mark.parametrize("session", [None, "", "s1"])
def test_a_message_reads_as_it_was_written(state: int, session: str | None) -> None:
    paper: Any = Paper()
    assert facts.write_enqueued(paper, 4, 9, state, False, b"\xa1\x01x", session, 50, 1, 2, 3, b"body") == 7
    kind, flags, entity, seq, at, aux, key, body = paper.fact
    assert (kind, entity, seq, at, aux, body) == (facts.ENQUEUED, 4, 9, 1, 2, b"body")
    assert facts.read_enqueued(flags, key) == (b"\xa1\x01x", session, 3, 50)
    assert (facts.state_of(flags), flags & facts.RELOCATED) == (state, 0)


def test_a_published_message_names_its_rows() -> None:
    paper: Any = Paper()
    targets = [(8, 1, 0), (12, 5, 99)]
    facts.write_published(paper, 4, 3, True, b"id", "s", 1, targets, b"body")
    _, flags, _, _, _, _, key, _ = paper.fact
    assert facts.read_targets(key) == targets
    assert facts.read_enqueued(flags, key)[:2] == (b"id", "s")
    assert flags & facts.RELOCATED


def test_a_delay_has_its_end_and_no_other_state_has_one() -> None:
    paper: Any = Paper()
    facts.write_state(paper, 4, 1, DELAYED, 2, 777, 1)
    assert (paper.fact[1], paper.fact[5], facts.read_until(paper.fact[6])) == (DELAYED, 2, 777)
    facts.write_state(paper, 4, 1, READY, 2, 0, 1)
    assert facts.read_until(paper.fact[6]) == 0


@pytest.mark.parametrize("by_ms", [5, -5, 0])
def test_a_clock_is_set_both_ways(by_ms: int) -> None:
    paper: Any = Paper()
    facts.write_clock_set(paper, by_ms, 1)
    assert facts.read_clock_set(paper.fact[1], paper.fact[5]) == by_ms


@pytest.mark.parametrize("state", [None, b"", b"where we were"])
def test_no_session_state_is_not_an_empty_one(state: bytes | None) -> None:
    paper: Any = Paper()
    facts.write_session_state(paper, 4, "é", state, 1)
    assert facts.read_session_state(paper.fact[1], paper.fact[6]) == ("é", state)


def _lease(paper: Any) -> object:
    lease_id, packed = facts.read_lease(paper.fact[6])
    return lease_id, facts.read_seqs(packed)


@pytest.mark.parametrize(
    ("write", "read", "meant"),
    [
        (lambda p: facts.write_delivered(p, 4, [1, 2**60], 1), lambda p: facts.read_seqs(p.fact[6]), [1, 2**60]),
        (lambda p: facts.write_leased(p, 4, "l", [3, 0, 5], 9, 1), _lease, ("l", [3, 0, 5])),
        (lambda p: facts.write_lease_part(p, 4, "l", [3], 1), _lease, ("l", [3])),
        (lambda p: facts.write_lease_ended(p, 4, "l", True, [8, 9], 1), _lease, ("l", [8, 9])),
        (lambda p: facts.write_transferred(p, 4, 8, 3, -1, 1), lambda p: facts.read_transferred(p.fact[6]), -1),
        (lambda p: facts.write_transferred(p, 4, 8, 3, 0, 1), lambda p: facts.read_transferred(p.fact[6]), 0),
        (lambda p: facts.write_transfer_ended(p, [(8, 3)], 1), lambda p: facts.read_transfer_ended(p.fact[6]), [(8, 3)]),
        (
            lambda p: facts.write_prepared(p, bytes(16), 1, [(8, 3)], b"", 1),
            lambda p: facts.read_prepared(p.fact[6]),
            (bytes(16), [(8, 3)]),
        ),
        (lambda p: facts.write_metered(p, [(1, 2, 3)], 1), lambda p: facts.read_metered(p.fact[6]), [(1, 2, 3)]),
        (lambda p: facts.write_meters(p, [(1, 2, 3, 4)], 1, 0, 1), lambda p: facts.read_meters(p.fact[6]), [(1, 2, 3, 4)]),
        (lambda p: facts.write_rule(p, 1, "r", b"text", 1), lambda p: facts.read_rule(p.fact[1], p.fact[6]), ("r", b"text")),
        (lambda p: facts.write_rule_ended(p, 1, "r", 1), lambda p: facts.read_rule(p.fact[1], p.fact[6]), ("r", b"")),
    ],
)
def test_what_is_written_reads_as_it_was_meant(write: Callable[[Any], object], read: Callable[[Any], object], meant: object) -> None:
    paper = Paper()
    write(paper)
    assert read(paper) == meant


def test_nobody_else_in_the_broker_writes_facts() -> None:
    """A fact has eight fields; what some of them mean depends on its kind, and only `facts.py` knows."""
    wrong: list[str] = []
    for path in sorted(BROKER.rglob("*.py")):
        if path.name in ("facts.py", "ports.py"):  # the port itself takes a run one by one
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append" and len(node.args) > 1:
                wrong.append(f"{path.relative_to(BROKER)}:{node.lineno}")
    assert wrong == []
