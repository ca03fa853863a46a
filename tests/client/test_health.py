from __future__ import annotations

import pytest

from tandem.client.health import PathHealth, PathState

MINUTE = 60_000
error = ConnectionRefusedError("refused")


def suspect(at: int = 0) -> PathHealth:
    health = PathHealth(MINUTE, 0)
    health.failed(error, at)
    return health


def test_a_first_failure_makes_a_path_suspect_and_sends_still_go_to_the_primary():
    health = PathHealth(MINUTE, 0)
    change = health.failed(error, 5)
    assert change is not None and (change.before, change.after, change.error) == (PathState.HEALTHY, PathState.SUSPECT, error)
    assert not health.diverting
    assert health.suspect_until == 5 + MINUTE


def test_later_failures_do_not_restart_the_failover_interval():
    health = suspect(at=0)
    assert health.failed(error, MINUTE - 1) is None
    assert health.suspect_until == MINUTE
    change = health.failed(error, MINUTE)
    assert change is not None and change.after is PathState.FAILED_OVER


def test_any_success_within_the_interval_makes_a_suspect_path_healthy():
    health = suspect()
    change = health.succeeded(10)
    assert change is not None and change.after is PathState.HEALTHY
    assert health.failures == 0 and health.last_error is None


def test_one_failure_and_silence_is_no_proof_and_does_not_fail_over_by_itself():
    health = suspect()
    assert health.expired(MINUTE) is None
    assert health.state is PathState.SUSPECT


def test_a_confirmed_failure_fails_over_when_the_interval_ends():
    health = suspect()
    health.failed(error, 1_000)
    assert health.expired(MINUTE - 1) is None
    change = health.expired(MINUTE)
    assert change is not None and change.after is PathState.FAILED_OVER
    assert health.diverting


def test_with_an_interval_of_zero_the_first_failure_fails_over():
    health = PathHealth(0, 0)
    change = health.failed(error, 1)
    assert change is not None and change.after is PathState.FAILED_OVER


def test_a_late_success_of_an_old_send_does_not_heal_a_failed_over_path():
    health = PathHealth(0, 0)
    health.failed(error, 1)
    assert health.succeeded(2) is None
    assert health.diverting


def test_a_ping_heals_a_failed_over_path():
    health = PathHealth(0, 0)
    health.failed(error, 1)
    change = health.ping_succeeded(2)
    assert change is not None and change.after is PathState.HEALTHY


def test_a_refused_ping_poisons_and_a_later_accepted_one_heals():
    health = PathHealth(0, 0)
    health.failed(error, 1)
    gone = LookupError("no such entity")
    change = health.ping_refused(gone, 2)
    assert change is not None and change.after is PathState.POISONED and change.error is gone
    assert health.last_error is gone
    change = health.ping_succeeded(3)
    assert change is not None and change.after is PathState.HEALTHY


@pytest.mark.parametrize("state", [PathState.HEALTHY, PathState.SUSPECT])
def test_a_refused_ping_changes_nothing_unless_failed_over(state: PathState):
    health = PathHealth(MINUTE, 0) if state is PathState.HEALTHY else suspect()
    assert health.ping_refused(error, 2) is None
    assert health.state is state


def test_a_held_drill_is_ended_by_hand_only():
    health = PathHealth(MINUTE, 0)
    change = health.fail_over(1, hold=True)
    assert change is not None and change.after is PathState.FAILED_OVER
    assert health.ping_succeeded(2) is None
    assert health.ping_refused(error, 3) is None
    change = health.mark_healthy(4)
    assert change is not None and change.after is PathState.HEALTHY and not health.held


def test_a_drill_that_is_not_held_is_ended_by_the_next_ping():
    health = PathHealth(MINUTE, 0)
    health.fail_over(1, hold=False)
    change = health.ping_succeeded(2)
    assert change is not None and change.after is PathState.HEALTHY


def test_marking_a_healthy_path_healthy_is_no_change():
    assert PathHealth(MINUTE, 0).mark_healthy(1) is None
