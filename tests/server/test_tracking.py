"""Every error that leaves carries the id that finds it in the log."""

from __future__ import annotations

import random
import re

from tandem.model.errors import EntityNotFound, MessageLockLost, SessionLockLost
from tandem.server.tracking import Tracker

NOW_MS = 1_700_000_000_999
GUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def tracker(seed: int = 1) -> Tracker:
    return Tracker("shop", "G7", random.Random(seed).randbytes)


def test_description_ends_with_tracking_id_system_tracker_and_timestamp() -> None:
    text = tracker().describe(EntityNotFound("The messaging entity 'shop:orders' could not be found."), "Queue:orders", NOW_MS)
    head, tail = text.split(" TrackingId:")
    assert head == "The messaging entity 'shop:orders' could not be found."
    assert re.fullmatch(rf"{GUID}_G7, SystemTracker:shop:Queue:orders, Timestamp:2023-11-14T22:13:20", tail)


def test_lock_errors_carry_a_reference_before_the_tracking_id() -> None:
    for error in (MessageLockLost("The lock is gone."), SessionLockLost("The lock is gone.")):
        text = tracker().describe(error, "orders", NOW_MS)
        assert re.fullmatch(rf"The lock is gone\. Reference:{GUID}, TrackingId:{GUID}_G7, SystemTracker:shop:orders, Timestamp:\S+", text)


def test_trouble_with_a_store_names_the_store() -> None:
    assert re.fullmatch(rf"{GUID}_G7_B3", tracker().new_id(store=3))


def test_given_tracking_id_is_kept_so_that_log_and_client_agree() -> None:
    one = tracker()
    known = one.new_id()
    assert f"TrackingId:{known}, SystemTracker:shop, " in one.describe(EntityNotFound("Gone."), "", NOW_MS, known)


def test_finished_description_is_not_finished_again() -> None:
    one = tracker()
    once = one.finish("Gone.", "orders", NOW_MS)
    assert one.finish(once, "orders", NOW_MS + 5000) == once


def test_description_is_one_line_of_bounded_length() -> None:
    text = tracker().finish("a\nb\r\n" + "c" * 5000, "orders", NOW_MS)
    assert text.startswith("a b ccc") and "\n" not in text and len(text) < 1300


def test_same_randomness_gives_the_same_ids() -> None:
    assert tracker(5).new_id() == tracker(5).new_id()
    one = tracker(5)
    assert one.new_id() != one.new_id()
