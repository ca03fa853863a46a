"""Threads that do one job after the other, so that the loop never waits for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Job = Callable[[], None]


class Worker(Protocol):
    def submit(self, job: Job) -> None:
        """Jobs run in the order in which they were submitted. A job handles its own errors."""

    def stop(self, timeout_seconds: float) -> bool:
        """Finish what was submitted, then end. False if it did not end in time."""
        ...


class ThreadWorker:
    """One thread, started with the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._runner: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        self._jobs.put(job)
        if self._runner is None:
            self._runner = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._runner.start()

    def stop(self, timeout_seconds: float) -> bool:
        if self._runner is None:
            return True
        self._jobs.put(None)
        self._runner.join(timeout_seconds)
        return not self._runner.is_alive()

    def _run(self) -> None:
        get = self._jobs.get
        while True:
            job = get()
            if job is None:
                return
            try:
                job()
            except Exception as error:  # noqa: BLE001 - told as for any thread; what stands behind it is done all the same
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))


class InlineWorker:
    """Does each job at once, on the caller's thread: for simulations, where nothing may run by itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: list[Job] = []
        self._running = False

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        if self._running:
            return
        self._running = True
        try:
            while self._jobs:
                self._jobs.pop(0)()
        finally:
            self._running = False

    def stop(self, timeout_seconds: float) -> bool:
        return True
