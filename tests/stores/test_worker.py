"""Jobs of a store's threads: in order, one after the other, and all of them before the end."""

from __future__ import annotations

import threading

import pytest

from tandem.stores.worker import InlineWorker, ThreadWorker


def test_jobs_run_in_order_on_one_thread_that_is_not_the_callers() -> None:
    worker = ThreadWorker("tandem-test")
    ran: list[tuple[int, str]] = []

    def job(number: int) -> None:
        ran.append((number, threading.current_thread().name))

    for number in range(20):
        worker.submit(lambda number=number: job(number))  # type: ignore[misc]
    assert worker.stop(60)
    assert ran == [(number, "tandem-test") for number in range(20)]


def test_a_job_that_does_not_return_keeps_the_worker_from_ending() -> None:
    worker = ThreadWorker("tandem-test")
    begun, may_return = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        may_return.wait(60)

    worker.submit(job)
    assert begun.wait(60)
    assert not worker.stop(0.01)
    may_return.set()
    assert worker.stop(60)


def test_a_job_that_breaks_is_told_and_those_behind_it_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    worker = ThreadWorker("tandem-test")
    ran: list[str] = []

    def breaks() -> None:
        raise ZeroDivisionError("a mistake")

    worker.submit(breaks)
    worker.submit(lambda: ran.append("behind it"))
    assert worker.stop(60)
    assert ran == ["behind it"]
    (failed,) = told
    assert failed.exc_type is ZeroDivisionError and failed.thread is not None and failed.thread.name == "tandem-test"


def test_a_worker_that_never_worked_ends_at_once() -> None:
    assert ThreadWorker("tandem-test").stop(0)


def test_a_job_that_an_inline_job_submits_waits_for_the_end_of_that_one() -> None:
    worker = InlineWorker("tandem-test")
    ran: list[str] = []

    def first() -> None:
        worker.submit(lambda: ran.append("second"))
        ran.append("first")

    worker.submit(first)
    assert ran == ["first", "second"]
    assert worker.stop(0)
