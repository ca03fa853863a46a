"""What a listener says on a socket, put together: commands are texts, a response's body is the binary message after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tandem.relay import commands
from tandem.relay.body import Body, Source
from tandem.relay.commands import CommandRefused, RenewToken, Response
from tandem.relay.frames import BINARY, CONTINUATION, TEXT, Piece

_COMMAND_BYTES_MAX: Final = 131_072
"""Twice what clients themselves take: a response's headers may have 32 KiB."""


class CommandTooLong(Exception):
    """The socket is closed with 1009."""


class Exchange(Protocol):
    """One HTTP request that waits for its response."""

    def response_came(self, response: Response, source: Source | None) -> Body | None:
        """The body to feed, None if nobody wants it. `source` is what to stop when it comes too fast."""
        ...

    def response_refused(self, why: str) -> None: ...

    def listener_gone(self) -> None: ...


class AnswerReader:
    """Fed with the pieces of one socket."""

    def __init__(
        self, find: Callable[[str], Exchange | None], source: Source | None, on_renew: Callable[[str], None] | None = None
    ) -> None:
        self._find = find
        self._source = source
        self._on_renew = on_renew
        self._text = bytearray()
        self._in_text = False
        self._expected: Body | None = None
        """Of a response that said it has one: the next binary message."""
        self._body: Body | None = None
        """Of the binary message under way; None for one that nobody waits for."""

    def feed(self, pieces: list[Piece]) -> None:
        """Raises CommandTooLong."""
        for opcode, fin, payload in pieces:
            if opcode == TEXT:
                self._in_text = True
                self._drop_expected()
            elif opcode == BINARY:
                self._in_text = False
                self._body, self._expected = self._expected, None
            if self._in_text:
                self._text += payload
                if len(self._text) > _COMMAND_BYTES_MAX:
                    raise CommandTooLong(f"a command may have {_COMMAND_BYTES_MAX} bytes")
                if fin:
                    text, self._text = self._text.decode("utf-8"), bytearray()
                    self._in_text = False
                    self._obey(text)
            elif self._body is not None and opcode in (BINARY, CONTINUATION):
                self._body.feed(payload, fin)
                if fin:
                    self._body = None

    def ended(self, clean: bool) -> None:
        """The socket will say nothing more. The Java client ends a body by closing with 1000 instead of FIN."""
        for body in (self._body, self._expected):
            if body is not None:
                if clean:
                    body.end()
                else:
                    body.fail("the listener was lost in the middle of its response")
        self._body = self._expected = None

    def _drop_expected(self) -> None:
        """It was announced, and did not come."""
        if self._expected is not None:
            self._expected.end()
            self._expected = None

    def _obey(self, text: str) -> None:
        try:
            command = commands.read(text)
        except CommandRefused as refusal:
            exchange = self._find(refusal.request_id)
            if exchange is not None:
                exchange.response_refused(str(refusal))
            return
        if isinstance(command, RenewToken):
            if self._on_renew is not None:
                self._on_renew(command.token)
        elif command is not None:
            exchange = self._find(command.request_id)
            body = exchange.response_came(command, self._source) if exchange is not None else None
            if command.has_body:
                self._expected = body
            elif body is not None:
                body.end()
