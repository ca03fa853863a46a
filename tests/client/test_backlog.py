from __future__ import annotations

from azure.servicebus.exceptions import ServiceBusConnectionError

from tandem.client.backlog import PROPERTIES, Rotation, queue_name

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
