"""The stories of the conformance suite, told about partitioned queues whose fragments two nodes have.

A selection of them; with TANDEM_TEST_CARRIED=all every one that does not need the order of a queue in one piece."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.cluster.spread import SpreadBroker
from tests.cluster.test_carried_conformance import ALL, NOT_HERE
from tests.cluster.test_carried_conformance import QUEUES as MANY
from tests.conformance import test_management, test_receiving, test_sending, test_sessions, test_time

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("TANDEM_TEST_CARRIED") == "all"
QUEUES = MANY if WHOLE else {"plain": 24, "sessions": 14, "short-sessions": 4, "short": 4, "twice": 2, "dedup": 4, "last-words": 2}

SELECTED: dict[ModuleType, tuple[str, ...]] = {
    test_sending: (
        "test_everything_a_sender_can_set_comes_back_as_it_was",
        "test_the_envelope_of_a_batch_is_not_a_message",
    ),
    test_receiving: (
        "test_a_completed_message_never_comes_again",
        "test_dead_lettering_keeps_the_message_and_says_why",
        "test_a_lock_outlives_its_link_and_can_be_settled_from_another_connection",
        "test_abandon_and_defer_can_modify_properties",
        "test_drain_gives_what_there_is_and_then_says_so",
        "test_one_disposition_settles_a_range",
        "test_settlements_sent_pre_settled_by_older_clients_hold",
        "test_many_frames_make_one_message_for_a_client_with_small_frames",
    ),
    test_sessions: (
        "test_a_session_is_accepted_by_id_and_read_in_order",
        "test_a_held_session_cannot_be_taken_and_is_free_the_moment_its_holder_closes",
        "test_who_waits_for_a_session_gets_the_first_one_that_comes",
        "test_session_state_is_kept_across_holders_until_it_is_cleared",
        "test_the_attach_of_a_session_is_answered_byte_for_byte",
        "test_a_waiting_attach_that_is_given_up_takes_no_session",
        "test_messages_of_one_session_never_reach_two_holders",
    ),
    test_management: (
        "test_locks_are_renewed_all_or_none",
        "test_each_connection_gets_its_own_answers",
    ),
    test_time: (),
}
IN_ONE_PIECE = {
    "test_250_kib_pass_and_256_kib_are_refused",
    "test_a_full_queue_refuses_and_takes_again_when_there_is_room",
    "test_a_lock_that_ends_after_the_message_expired_does_not_bring_it_back",
    "test_a_peek_through_a_sessions_link_shows_that_session",
    "test_a_received_message_may_be_sent_again_with_everything_it_carries",
    "test_a_received_message_sent_again_gets_new_broker_annotations",
    "test_a_request_names_its_session_by_its_link_alone_or_by_its_id_alone",
    "test_a_schedule_request_is_taken_whole_or_not_at_all",
    "test_a_status_that_changes_holds_for_links_that_are_open",
    "test_abandon_brings_a_message_back_in_front_with_its_count_raised",
    "test_an_entity_deleted_under_its_clients_is_not_found",
    "test_an_entity_deleted_with_messages_in_hand_leaves_the_broker_well",
    "test_batch_delete_removes_what_is_old_and_free",
    "test_deferred_messages_can_be_received_and_deleted",
    "test_deferred_messages_come_only_when_asked_for_by_number",
    "test_deferred_messages_of_a_session_need_its_holder",
    "test_drain_waits_for_bodies_that_must_be_read_from_the_store",
    "test_duplicates_are_accepted_and_dropped_within_the_window",
    "test_ids_of_different_types_are_different_ids",
    "test_locked_and_deferred_messages_do_not_expire_in_their_holders_hands",
    "test_one_message_a_list_and_a_batch_arrive_in_order",
    "test_peek_of_large_messages_comes_in_answers_of_bearable_size",
    "test_peek_shows_every_state_in_order_and_takes_nothing",
    "test_peek_starts_where_it_is_told_and_gives_no_more_than_asked_for",
    "test_pre_settled_messages_are_kept_and_not_answered",
    "test_receive_and_delete_removes_on_delivery",
    "test_scheduled_messages_come_at_their_time_and_can_be_cancelled",
    "test_scheduling_more_than_fits_schedules_nothing",
    "test_several_for_one_partition_that_is_nearly_full_are_taken_whole_or_not_at_all",
    "test_the_next_available_session_is_one_with_messages_that_nobody_holds",
    "test_the_session_of_a_request_is_that_of_the_link_it_names",
}
"""They count on one order, one store, sequence numbers from 1 on, or administration, which these two nodes do not share."""


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / "spread", QUEUES, real_time=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def clocked(module_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / "clocked", QUEUES) as broker:
        yield broker


def _told(module: ModuleType) -> list[str]:
    if not WHOLE:
        return list(SELECTED.get(module, ()))
    return [name for name in vars(module) if name.startswith("test_") and name not in NOT_HERE | IN_ONE_PIECE]


for _module in ALL:
    for _name in _told(_module):
        globals()[_name] = getattr(_module, _name)
