"""The console's interface, called as its page does."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tandem.testing import Bus


class Refusal(Exception):
    def __init__(self, status: int, error: str, description: str) -> None:
        super().__init__(f"{status} {error}: {description}")
        self.status = status
        self.error = error
        self.description = description


class ConsoleClient:
    def __init__(self, port: int, login: dict[str, str] | None = None) -> None:
        self.port = port
        self.token = ""
        self.token = self("POST", "login", **(login or {}))["token"]

    def __call__(self, method: str, what: str, **body: Any) -> Any:
        return json.loads(self.raw(method, what, body))

    def raw(self, method: str, what: str, body: Any) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"Authorization": self.token} if self.token else {}
            connection.request(method, f"/$tandem/api/{what}", body if isinstance(body, bytes) else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            told = json.loads(content)
            raise Refusal(answer.status, told["error"], told["description"])
        return content


def console_of(bus: Bus) -> ConsoleClient:
    return ConsoleClient(bus.port)
