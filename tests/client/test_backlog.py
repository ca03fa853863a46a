from __future__ import annotations

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusConnectionError

from tandem.client.backlog import PROPERTIES, Provisioning, Rotation, provision, queue_name
from tandem.client.errors import SendAvailabilityBacklogError
from tandem.testing.scripted import ScriptedAdministration, ScriptedNamespace, raising

NAMES = [queue_name("contoso", i) for i in range(3)]
error = ServiceBusConnectionError(message="reset")


class Told(list):
    def __call__(self, kind: str, path: str, detail: str, cause: BaseException | None) -> None:
        self.append((kind, path))


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rotation(choose=lambda n: 0) -> tuple[Rotation, Time, Told]:
    time, told = Time(), Told()
    return Rotation(NAMES, choose, time, told, pause_min=5, pause_max=60), time, told


def test_backlog_queues_are_named_after_the_primary():
    assert queue_name("contoso", 0) == "contoso/x-servicebus-transfer/0"


def test_backlog_queues_have_exactly_the_documented_properties():
    assert PROPERTIES == {
        "max_size_in_megabytes": 5120,
        "max_delivery_count": 2**31 - 1,
        "default_message_time_to_live": "P10675199DT2H48M5.4775807S",
        "auto_delete_on_idle": "P10675199DT2H48M5.4775807S",
        "lock_duration": "PT1M",
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }


def test_the_choice_is_made_by_the_injected_randomness():
    asked = []
    queues, _, _ = rotation(lambda n: asked.append(n) or n - 1)
    assert queues.pick() == NAMES[2]
    assert asked == [3]


def test_a_failing_queue_leaves_the_rotation_for_everybody_and_comes_back_after_a_pause():
    queues, time, told = rotation()
    queues.failed(NAMES[0], error)
    assert queues.available() == NAMES[1:]
    assert queues.pick() == NAMES[1]
    time.now = 4.9
    assert NAMES[0] not in queues.available()
    time.now = 5.0
    assert queues.available() == NAMES
    assert told == [("backlog-queue-out", NAMES[0]), ("backlog-queue-readmitted", NAMES[0])]


def test_a_queue_that_fails_again_stays_out_twice_as_long_up_to_a_bound():
    queues, time, _ = rotation()
    pauses = []
    for _ in range(6):
        queues.failed(NAMES[0], error)
        started = time.now
        while NAMES[0] not in queues.available():
            time.now += 1
        pauses.append(time.now - started)
    assert pauses == [5, 10, 20, 40, 60, 60]


def test_a_success_forgets_the_past():
    queues, time, _ = rotation()
    queues.failed(NAMES[0], error)
    queues.succeeded(NAMES[0])
    assert queues.in_rotation(NAMES[0])
    queues.failed(NAMES[0], error)
    time.now += 5
    assert queues.in_rotation(NAMES[0])


def test_when_all_are_out_the_one_that_comes_back_first_is_tried_and_each_only_once():
    queues, time, _ = rotation()
    for at, name in enumerate(NAMES):
        time.now = at
        queues.failed(name, error)
    assert queues.pick() == NAMES[0]
    assert queues.pick([NAMES[0]]) == NAMES[1]
    assert queues.pick(NAMES) is None


async def test_missing_queues_are_created_and_existing_ones_used_as_they_are():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.entity(NAMES[1]).message_bytes_max = 77
    secondary.entity("contoso/x-servicebus-transfer/7")
    admin = ScriptedAdministration(secondary)
    assert await provision(secondary, NAMES, admin, Provisioning(message_kilobytes_max=260)) == NAMES
    assert admin.created == {NAMES[0]: 260, NAMES[2]: 260}
    assert secondary.entity(NAMES[1]).message_bytes_max == 77


async def test_without_the_manage_claim_existing_queues_are_found_by_opening_them():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.entity(NAMES[0])
    secondary.entity(NAMES[2])
    admin = ScriptedAdministration(secondary)
    admin.error = lambda: ClientAuthenticationError("Manage")
    assert await provision(secondary, NAMES, admin, Provisioning()) == [NAMES[0], NAMES[2]]
    assert await provision(secondary, NAMES, None, Provisioning()) == [NAMES[0], NAMES[2]]


async def test_no_usable_queue_at_all_is_an_error_that_says_why():
    secondary = ScriptedNamespace("b", strict=True)
    with pytest.raises(SendAvailabilityBacklogError, match="no entity"):
        await provision(secondary, NAMES, None, Provisioning())


async def test_an_unreachable_secondary_is_tried_three_times_thirty_seconds_apart():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.down()
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with pytest.raises(SendAvailabilityBacklogError, match="refused"):
        await provision(secondary, NAMES, None, Provisioning(), sleep)
    assert slept == [30.0, 30.0]


async def test_a_secondary_that_comes_back_between_attempts_is_paired():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.down()

    async def sleep(seconds: float) -> None:
        secondary.up()

    assert await provision(secondary, NAMES, ScriptedAdministration(secondary), Provisioning(), sleep) == NAMES


async def test_wrong_credentials_fail_at_once():
    secondary = ScriptedNamespace("b", strict=True)
    secondary.entity(NAMES[0])
    secondary.behave(NAMES[0], raising(lambda: ServiceBusAuthenticationError(message="bad key")))

    async def sleep(seconds: float) -> None:
        raise AssertionError("no second attempt")

    with pytest.raises(ServiceBusAuthenticationError):
        await provision(secondary, NAMES, None, Provisioning(), sleep)
