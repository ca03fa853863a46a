"""A process that is forked from this one, as gunicorn, Celery and multiprocessing do it."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

_SECONDS = 30


def in_a_forked_process(work: Callable[[], object]) -> str:
    """What `work` returned there, as text, or why it failed. A child that hangs is killed, and that is an error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_SECONDS)
        try:
            os.write(writing, str(work()).encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    return said
