"""Ids for messages that were sent without one: never the same twice, in whatever thread or process."""

from __future__ import annotations

import os
import re
import threading

import pytest

from tandem.client.sdk_codec import new_message_id


def test_ids_are_random_and_differ_between_threads() -> None:
    found: list[str] = []

    def take() -> None:
        found.extend([new_message_id() for _ in range(2_000)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 8_000
    assert all(re.fullmatch("[0-9a-f]{32}", id_) for id_ in found)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_ids_of_its_own() -> None:
    new_message_id()  # so that some are in store
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, " ".join(new_message_id() for _ in range(10)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read().split()
    os.waitpid(child, 0)
    ours = [new_message_id() for _ in range(100)]
    assert len(theirs) == 10
    assert not set(theirs) & set(ours)
