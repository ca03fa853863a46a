from __future__ import annotations

import asyncio

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from tandem.client.errors import BothNamespacesUnavailableError, SendAvailabilityBacklogError
from tandem.client.pairing import PairedNamespaces
from tandem.client.provisioning import Provisioner, Provisioning
from tandem.simulator.loop import SimLoop
from tests.client.scripted import ScriptedAdministration, ScriptedNamespace, raising

NAMES = [f"contoso/x-servicebus-transfer/{i}" for i in range(3)]


class Asked:
    """A provisioner, what it found, and what it told."""

    def __init__(self, secondary: ScriptedNamespace, administration: ScriptedAdministration | None = None, **settings) -> None:
        self.usable: list[str] = []
        self.message_bytes_max = 0
        self.told: list[str] = []
        self.provisioner = Provisioner(
            secondary, NAMES, administration, Provisioning(**settings), lambda *event: self.told.append(event[0]), self.confirmed
        )

    def confirmed(self, names: list[str], message_bytes_max: int) -> None:
        self.usable, self.message_bytes_max = names, message_bytes_max


async def test_missing_queues_are_created_and_existing_ones_used_as_they_are():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.entity(NAMES[1]).message_bytes_max = 77
    secondary.entity("contoso/x-servicebus-transfer/7")
    admin = ScriptedAdministration(secondary)
    asked = Asked(secondary, admin)
    await asked.provisioner.first()
    assert (asked.usable, asked.message_bytes_max) == (NAMES, 104_857_600)
    assert admin.created == [NAMES[0], NAMES[2]]
    assert secondary.entity(NAMES[1]).message_bytes_max == 77


@pytest.mark.parametrize("manage", [True, False])
async def test_without_the_manage_claim_existing_queues_are_found_by_opening_them(manage: bool):
    secondary = ScriptedNamespace("b", strict=True)
    secondary.entity(NAMES[0])
    secondary.entity(NAMES[2])
    admin = ScriptedAdministration(secondary)
    admin.error = lambda: ClientAuthenticationError("Manage")
    asked = Asked(secondary, admin if manage else None)
    await asked.provisioner.first()
    assert asked.usable == [NAMES[0], NAMES[2]] and not asked.provisioner.asking


@pytest.mark.parametrize("hanging", [False, True])
def test_queues_that_are_there_are_used_although_administration_does_not_answer_and_the_others_are_made_when_it_does(hanging: bool):
    """It often has a port of its own, which a firewall may not let through."""
    loop = SimLoop()

    async def main() -> None:
        secondary = ScriptedNamespace("b", strict=True)
        secondary.entity(NAMES[0])
        secondary.entity(NAMES[2])
        admin = ScriptedAdministration(secondary)
        if hanging:
            admin.wait = lambda: asyncio.sleep(3_600)
        else:
            admin.error = lambda: ServiceRequestError("Cannot connect to host b:443")
        asked = Asked(secondary, admin)
        await asked.provisioner.first()
        assert loop.time() <= 10
        assert asked.usable == [NAMES[0], NAMES[2]] and asked.provisioner.asking and asked.told == []
        admin.wait = admin.error = None
        await asyncio.sleep(31)
        assert asked.usable == NAMES and admin.created == [NAMES[1]]

    loop.run(main())


def test_what_a_slow_secondary_has_said_in_time_counts():
    loop = SimLoop()

    async def main() -> None:
        secondary = ScriptedNamespace("b", strict=True)
        admin = ScriptedAdministration(secondary)
        admin.wait = lambda: asyncio.sleep(3.5)
        asked = Asked(secondary, admin)
        await asked.provisioner.first()
        assert loop.time() <= 10 and asked.usable == NAMES[:2]
        await asyncio.sleep(31)
        assert asked.usable == NAMES and admin.created == NAMES

    loop.run(main())


@pytest.mark.parametrize(("creating", "opening"), [(0, 4), (2, 7)])
def test_a_secondary_whose_links_open_slowly_is_confirmed(creating: float, opening: float):
    """A link takes a dozen round trips. Where creating the queues leaves too little time, the next attempt has all of it."""

    async def main() -> None:
        secondary = ScriptedNamespace("b", strict=True)
        admin = ScriptedAdministration(secondary)
        admin.wait = lambda: asyncio.sleep(creating)

        async def slowly(operation: str) -> None:
            if operation == "open":
                await asyncio.sleep(opening)

        secondary.everywhere = slowly
        asked = Asked(secondary, admin)
        await asked.provisioner.first()
        await asyncio.sleep(20)
        assert asked.usable == NAMES and not asked.provisioner.asking

    SimLoop().run(main())


async def test_no_usable_queue_at_all_is_an_error_that_says_why():
    with pytest.raises(SendAvailabilityBacklogError, match="no entity"):
        await Asked(ScriptedNamespace("b", strict=True)).provisioner.first()


async def test_wrong_credentials_fail_at_once():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.entity(NAMES[0])
    secondary.behave(NAMES[0], raising(lambda: ServiceBusAuthenticationError(message="bad key")))
    with pytest.raises(ServiceBusAuthenticationError):
        await Asked(secondary).provisioner.first()


@pytest.mark.parametrize("hanging", [False, True])
def test_an_unreachable_secondary_is_asked_for_as_long_as_it_takes(hanging: bool):
    loop = SimLoop()

    async def main() -> None:
        secondary = ScriptedNamespace("b", strict=True)
        admin = ScriptedAdministration(secondary)
        secondary.hang() if hanging else secondary.down()
        asked = Asked(secondary, admin)
        await asked.provisioner.first()
        assert loop.time() <= 10 and asked.told == ["backlog-assumed"] and not asked.provisioner.confirmed
        await asyncio.sleep(3_600)
        assert not asked.provisioner.confirmed and 60 <= asked.told.count("backlog-unavailable") <= 150
        secondary.up()
        await asyncio.sleep(51)
        assert asked.usable == NAMES and asked.provisioner.confirmed and not asked.provisioner.asking

    loop.run(main())


def test_a_key_that_is_found_wrong_in_the_background_is_told_and_asked_again():
    loop = SimLoop()

    async def main() -> None:
        secondary = ScriptedNamespace("b", strict=True)
        for name in NAMES:
            secondary.entity(name)
        secondary.down()
        asked = Asked(secondary)
        await asked.provisioner.first()
        secondary.everywhere = raising(lambda: ServiceBusAuthenticationError(message="bad key"))
        await asyncio.sleep(100)
        assert "backlog-unavailable" in asked.told
        secondary.up()
        await asyncio.sleep(31)
        assert asked.usable == NAMES

    loop.run(main())


def test_a_queue_that_could_not_be_made_is_tried_three_times_and_joins_the_others():
    loop = SimLoop()

    async def main() -> None:
        secondary = ScriptedNamespace("b", strict=True)
        secondary.entity(NAMES[0])
        secondary.behave(NAMES[1], raising(lambda: TimeoutError("late")), times=1)
        secondary.entity(NAMES[2])
        asked = Asked(secondary)
        await asked.provisioner.first()
        assert asked.usable == [NAMES[0]]
        await asyncio.sleep(100)
        assert asked.usable == NAMES and not asked.provisioner.asking

    loop.run(main())


# -- a pair whose secondary comes later ----------------------------------------------------------------------------------


async def test_with_the_secondary_down_at_the_start_sends_reach_the_primary_and_the_state_is_visible(primary, secondary, clock):
    secondary.down()
    told: asyncio.Queue = asyncio.Queue()
    pair = PairedNamespaces(
        primary, secondary, now_ms=clock, backlog_queue_count=3, failover_interval=0, enable_syphon=True, on_event=told.put_nowait,
        secondary_administration=ScriptedAdministration(secondary), ping_primary_interval=1,
    )  # fmt: skip
    assert await pair.pair() == pair.backlog_queue_count == 3
    assert not pair.backlog_confirmed and not pair.syphon.running
    sender = pair.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x" * 262_000))
    assert len(primary.entity("orders").messages) == 1
    primary.down()
    with pytest.raises(BothNamespacesUnavailableError):
        await sender.send_messages(ServiceBusMessage("nowhere"))
    secondary.up()
    while (await asyncio.wait_for(told.get(), 10)).kind != "backlog-confirmed":
        pass
    assert pair.backlog_confirmed and pair.syphon.running and pair.backlog_message_bytes_max == 104_857_600
    await sender.send_messages(ServiceBusMessage("diverted"))
    assert pair.counters.diverted == 1
    await pair.close()


async def test_a_pair_closed_while_it_waits_for_its_secondary_stops_asking(primary, secondary, clock):
    secondary.down()
    pair = PairedNamespaces(primary, secondary, now_ms=clock, secondary_administration=ScriptedAdministration(secondary))
    await pair.pair()
    await pair.close()
    assert not pair._provisioner.asking


async def test_a_queue_that_does_not_answer_now_may_hold_messages_and_one_that_does_not_exist_cannot():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.entity(NAMES[0])
    secondary.entity(NAMES[2])
    secondary.behave(NAMES[2], raising(lambda: TimeoutError("its store is down")))
    asked = Asked(secondary)
    await asked.provisioner.first()
    assert asked.usable == [NAMES[0]] and asked.provisioner.possible == [NAMES[0], NAMES[2]]
    asked.provisioner.stop()
