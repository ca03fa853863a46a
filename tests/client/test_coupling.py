from __future__ import annotations

import asyncio

import pytest

from tandem.client.coupling import Coupling, PairSide, SideState
from tandem.client.errors import NamespaceClosedError, PairedNamespaceFaultedError
from tests.client.scripted import ScriptedNamespace
from tests.waiting import until


class Pumps:
    stopped = 0

    async def stop(self) -> None:
        self.stopped += 1


def coupled(grace: float = 0.02) -> tuple[PairSide, PairSide, Pumps, list]:
    primary, secondary, pumps, told = (
        PairSide("primary", ScriptedNamespace("a")),
        PairSide("secondary", ScriptedNamespace("b")),
        Pumps(),
        [],
    )
    Coupling(primary, secondary, pumps.stop, lambda *event: told.append(event[0]), grace)
    return primary, secondary, pumps, told


async def reached(side: PairSide, state: SideState) -> None:
    await until(lambda: side.state is state, 5)


async def test_a_closed_primary_takes_the_secondary_with_it_after_the_pumps_stopped():
    primary, secondary, pumps, _ = coupled()
    await primary.close()
    await reached(secondary, SideState.CLOSED)
    assert pumps.stopped >= 1
    with pytest.raises(NamespaceClosedError):
        secondary.check()


async def test_a_partner_that_closes_within_the_grace_is_not_faulted():
    primary, secondary, _, told = coupled(grace=0.05)
    await secondary.close()
    await primary.close()
    await asyncio.sleep(0.1)
    assert primary.state is SideState.CLOSED and told == []


async def test_a_partner_still_open_after_the_grace_is_faulted_and_says_why():
    primary, secondary, _, told = coupled()
    await secondary.close()
    await reached(primary, SideState.FAULTED)
    with pytest.raises(PairedNamespaceFaultedError, match="b is closed"):
        primary.check()
    assert told == ["namespace-faulted"]


async def test_a_fault_is_passed_on_at_once():
    primary, secondary, _, _ = coupled(grace=60)
    primary.fault(RuntimeError("broken"))
    assert secondary.state is SideState.FAULTED


async def test_a_side_that_is_down_stays_as_it_is():
    primary, _, _, _ = coupled(grace=60)
    await primary.close()
    primary.fault(RuntimeError("late"))
    assert primary.state is SideState.CLOSED
