"""Events of a pair told to a broker, for its console: what an outage looks like from inside. Beside the sends, never in their way."""

from __future__ import annotations

import collections
import http.client
import json
import logging
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tandem.model.clock import SystemClock
from tandem.model.sas_token import make_token

if TYPE_CHECKING:
    from tandem.client.events import Counters, Event

log = logging.getLogger("tandem.client.report")

_LINES_KEPT: Final = 10_000
_LINES_PER_REQUEST: Final = 500
_TOKEN_MS: Final = 600_000
_PORTS: Final = {True: 5671, False: 5672}
_NO_ANSWER: Final = (OSError, http.client.HTTPException)
"""Or one that is none, as from a proxy that breaks."""


class EventReport:
    """Give it to a pair as `on_event`, like an `EventLog`; lines are the same. `close` it at the end.

    The broker is that of `connection_string`, best the secondary's: it answers while the primary is down. While it does not answer, the
    last lines are kept and told later; `dropped` counts those that were too many. One thread, one request at a time.
    """

    def __init__(
        self, connection_string: str, who: str = "", *, ca_file: str | None = None, every: float = 1.0, timeout: float = 10.0
    ) -> None:
        parts = {name.strip().casefold(): value.strip() for name, _, value in (p.partition("=") for p in connection_string.split(";"))}
        place = urlsplit(parts.get("endpoint", ""))
        if not place.hostname or not parts.get("sharedaccesskey"):
            raise ValueError("the connection string needs Endpoint, SharedAccessKeyName and SharedAccessKey")
        tls = parts.get("usedevelopmentemulator", "").casefold() != "true"
        host = f"[{place.hostname}]" if ":" in place.hostname else place.hostname
        self._base = f"{'https' if tls else 'http'}://{host}:{place.port or _PORTS[tls]}/"
        self._key = (parts.get("sharedaccesskeyname", ""), parts["sharedaccesskey"])
        self._tls = ssl.create_default_context(cafile=ca_file) if tls else None
        self._clock = SystemClock()
        self._timeout = timeout
        self._every = every
        self._given = who
        self._begin()

    def _begin(self) -> None:
        """Once in each process: threads and their locks stay behind when one is forked, and what the parent has to tell it tells itself."""
        self._process = os.getpid()
        self.who = self._given or f"{socket.gethostname()}-{self._process}"
        self.dropped = 0
        self.told = 0
        self._lines: collections.deque[dict[str, Any]] = collections.deque()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tandem-event-report", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        self._add(event.at_ms, event.kind, event.path, {"detail": event.detail})

    def count(self, counters: Counters, now_ms: Callable[[], int]) -> None:
        for path, one in counters.by_path.items():
            counts = {"attempted": one.sent_primary + one.diverted + one.failed, "diverted": one.diverted, "failed": one.failed}
            self._add(now_ms(), "counters", path, counts)

    def _add(self, at_ms: int, kind: str, path: str, more: Mapping[str, object]) -> None:
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            self._lines.append({"at_ms": at_ms, "source": "client", "who": self.who, "kind": kind, "path": path, **more})
            if len(self._lines) > _LINES_KEPT:
                self._lines.popleft()
                self.dropped += 1

    def close(self) -> None:
        """What is left is told once more, if the broker answers."""
        self._ending.set()
        self._thread.join(self._timeout + 1)

    def _run(self) -> None:
        silent = False
        while True:
            ending = self._ending.wait(self._every)
            try:
                while self._tell_some():
                    pass
                silent = False
            except _NO_ANSWER as error:
                if not silent:
                    log.info("events are not reported for now: %r", error)
                silent = True
            if ending:
                return

    def _tell_some(self) -> bool:
        """One request; whether there is more. A refusal by the broker would be the same next time: its lines are dropped."""
        with self._lock:
            some = [self._lines.popleft() for _ in range(min(len(self._lines), _LINES_PER_REQUEST))]
        if not some:
            return False
        try:
            self._post(some)
        except urllib.error.HTTPError as error:
            with error:
                if error.code >= 500:
                    self._put_back(some)
                    raise
            log.warning("the broker refuses reports of events: %s", error)
            self.dropped += len(some)
        except _NO_ANSWER:
            self._put_back(some)
            raise
        else:
            self.told += len(some)
        return bool(self._lines)

    def _post(self, lines: list[dict[str, Any]]) -> None:
        token = make_token(self._base, *self._key, self._clock.now_ms() + _TOKEN_MS)
        body = json.dumps({"lines": lines}).encode()
        request = urllib.request.Request(f"{self._base}$tandem/api/reports", body, {"Authorization": token}, method="POST")
        with urllib.request.urlopen(request, timeout=self._timeout, context=self._tls) as reply:
            reply.read()

    def _put_back(self, lines: list[dict[str, Any]]) -> None:
        with self._lock:
            room = _LINES_KEPT - len(self._lines)
            kept = lines[-room:] if room > 0 else []
            self.dropped += len(lines) - len(kept)
            self._lines.extendleft(reversed(kept))
