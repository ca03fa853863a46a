"""The stories of the conformance suite, told through a node that owns nothing: whoever is carried notices nothing.

A selection of them; with TANDEM_TEST_CARRIED=all every one that does not need the broker to be a process of its own.
"""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from tests.conformance import (
    test_authorization,
    test_management,
    test_receiving,
    test_refusals,
    test_sending,
    test_sessions,
    test_time,
)

pytestmark = pytest.mark.slow

QUEUES = {
    "plain": 320,
    "partitioned": 4,
    "sessions": 180,
    "short-sessions": 40,
    "short": 20,
    "twice": 4,
    "dedup": 20,
    "disabled": 10,
    "send-disabled": 8,
    "receive-disabled": 8,
    "small": 4,
    "mebibyte": 4,
    "roomy": 6,
    "brief": 12,
    "last-words": 12,
}

ALL: tuple[ModuleType, ...] = (
    test_authorization,
    test_management,
    test_receiving,
    test_refusals,
    test_sending,
    test_sessions,
    test_time,
)
SELECTED: dict[ModuleType, tuple[str, ...]] = {
    test_sending: (
        "test_one_message_a_list_and_a_batch_arrive_in_order",
        "test_everything_a_sender_can_set_comes_back_as_it_was",
        "test_an_entity_may_allow_more_than_the_default",
        "test_a_batch_is_taken_whole_or_not_at_all",
        "test_pre_settled_messages_are_kept_and_not_answered",
        "test_several_for_one_partition_that_is_nearly_full_are_taken_whole_or_not_at_all",
    ),
    test_receiving: (
        "test_receive_and_delete_removes_on_delivery",
        "test_a_completed_message_never_comes_again",
        "test_deferred_messages_come_only_when_asked_for_by_number",
        "test_dead_lettering_keeps_the_message_and_says_why",
        "test_a_lock_outlives_its_link_and_can_be_settled_from_another_connection",
        "test_an_expired_lock_returns_the_message_in_front_and_can_do_nothing_more",
        "test_abandon_and_defer_can_modify_properties",
        "test_drain_gives_what_there_is_and_then_says_so",
        "test_one_disposition_settles_a_range",
        "test_settlements_sent_pre_settled_by_older_clients_hold",
        "test_many_frames_make_one_message_for_a_client_with_small_frames",
        "test_a_stolen_link_gives_its_session_to_the_thief",
    ),
    test_authorization: (
        "test_links_are_detached_when_their_token_lapses_and_the_token_cannot_be_used_again",
        "test_a_renewed_token_keeps_links_open",
    ),
    test_sessions: (
        "test_a_session_is_accepted_by_id_and_read_in_order",
        "test_a_held_session_cannot_be_taken_and_is_free_the_moment_its_holder_closes",
        "test_who_waits_for_a_session_gets_the_first_one_that_comes",
        "test_session_state_is_kept_across_holders_until_it_is_cleared",
        "test_the_session_of_a_request_is_that_of_the_link_it_names",
        "test_the_attach_of_a_session_is_answered_byte_for_byte",
        "test_a_waiting_attach_that_is_given_up_takes_no_session",
    ),
    test_management: (
        "test_peek_shows_every_state_in_order_and_takes_nothing",
        "test_locks_are_renewed_all_or_none",
        "test_each_connection_gets_its_own_answers",
        "test_answers_go_on_when_the_clients_credit_is_used_up",
    ),
}
NOT_HERE = {
    "test_a_delivery_that_the_end_of_the_broker_interrupts_counts",  # starts brokers of its own
    "test_an_id_that_came_back_as_binary_is_the_same_id",  # wants the topic to itself
}


def _told(module: ModuleType) -> list[str]:
    if os.environ.get("TANDEM_TEST_CARRIED") == "all":
        return [name for name in vars(module) if name.startswith("test_") and name not in NOT_HERE]
    return list(SELECTED.get(module, ()))


for _module in ALL:
    for _name in _told(_module):
        globals()[_name] = getattr(_module, _name)
