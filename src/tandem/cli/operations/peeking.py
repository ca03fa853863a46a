"""Looking at messages page by page. One that the SDK cannot read stands in nobody's way: it is named, and the next one comes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tandem.cli.operations.links import Path, receiver
from tandem.cli.operations.message_text import as_line

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver

    from tandem.cli.operations.target import OperationTarget

_PAGE: Final = 100
_PEEK: Final = "com.microsoft:peek-message"
_OF_A_DECODER: Final = (TypeError, ValueError, LookupError, ArithmeticError, struct.error)


@dataclass(frozen=True, slots=True)
class UnreadableMessage:
    sequence_number: int
    why: str


def line_of(message: ServiceBusReceivedMessage | UnreadableMessage) -> dict[str, Any]:
    """As `as_line`; of one that cannot be read its number, and why."""
    if isinstance(message, UnreadableMessage):
        return {"sequence_number": message.sequence_number, "unreadable": message.why}
    try:
        return as_line(message)
    except _OF_A_DECODER as error:  # bodies are read when they are asked for
        return {"sequence_number": message.sequence_number, "unreadable": _reason(error)}


def peeked(
    target: OperationTarget, path: Path, source: ServiceBusReceiver, start: int, count: int, session: str | None = None
) -> Iterator[ServiceBusReceivedMessage | UnreadableMessage]:
    """From a sequence number on, so many at most."""
    from azure.servicebus.exceptions import ServiceBusError

    while count > 0:
        most = min(_PAGE, count)
        page: list[Any]
        try:
            page = source.peek_messages(max_message_count=most, sequence_number=start)
        except ServiceBusError as error:
            if not isinstance(error.inner_exception, _OF_A_DECODER):
                raise
            page = _one_by_one(target, path, source, session, start, most)
        if not page:
            return
        yield from page
        count -= len(page)
        start = (page[-1].sequence_number or 0) + 1


def _one_by_one(
    target: OperationTarget, path: Path, source: ServiceBusReceiver, session: str | None, start: int, most: int
) -> list[ServiceBusReceivedMessage | UnreadableMessage]:
    """Which numbers there are says our own engine, which reads no values; each is then asked for alone, and not again if it fails."""
    from azure.servicebus.exceptions import ServiceBusError

    from tandem.engine_client.message_rows import sequence_number_of

    with target.engine_client() as engine:
        asked: dict[str, object] = {"from-sequence-number": start, "message-count": engine.int32(most)}
        answer = engine.request(path.whole, _PEEK, asked if session is None else {**asked, "session-id": session})
    numbers = [sequence_number_of(entry["message"]) for entry in answer["messages"]] if answer is not None else []
    found: list[ServiceBusReceivedMessage | UnreadableMessage] = []
    with contextlib.ExitStack() as opened:
        if session is None:  # a session has one receiver
            source = opened.enter_context(receiver(opened.enter_context(target.client(retries=0)), path))
        for number in numbers:
            try:
                found += [one for one in source.peek_messages(1, sequence_number=number) if one.sequence_number == number]
            except ServiceBusError as error:
                if not isinstance(error.inner_exception, _OF_A_DECODER):
                    raise
                found.append(UnreadableMessage(number, _reason(error.inner_exception)))
    return found


def _reason(error: Exception) -> str:
    return f"the SDK's decoder cannot read it ({type(error).__name__}: {str(error)[:100]}); the console shows it as far as it goes"
