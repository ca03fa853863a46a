"""`tandem send|schedule|cancel|receive|peek`: messages by hand, over the official SDK."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.cli.operations.links import DeadLetters, Entity, Path, Session, receiver
from tandem.cli.operations.message_text import from_line, instant
from tandem.cli.operations.output import JsonFlag, show, tell
from tandem.cli.operations.peeking import UnreadableMessage, line_of, peeked
from tandem.cli.operations.target import OperationTarget, refusals, takes_target
from tandem.cli.property_pairs import property_pair
from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSender

_PAGE: Final = 200
_COLUMNS: Final = ("sequence_number", "enqueued_time_utc", "message_id", "subject", "session_id", "state", "body")
_BODY_SHOWN: Final = 80

Body = Annotated[str | None, typer.Argument(help="The body; without it, --file or --lines.")]
BodyFile = Annotated[File | None, typer.Option("--file", help="A file that is the body.", metavar="FILE")]
Lines = Annotated[
    File | None,
    typer.Option("--lines", help="Messages as lines of JSON, as `peek --json` prints them; - for standard input.", allow_dash=True),
]
ApplicationProperties = Annotated[
    list[str] | None, typer.Option("--property", "-p", help='name=value; numbers, true, false and null are taken as such, "…" as text.')
]
MessageId = Annotated[str | None, typer.Option(help="Message id; with --count, a number is added.")]
Subject = Annotated[str | None, typer.Option(help="Subject (Label).")]
SessionId = Annotated[str | None, typer.Option(help="Session id.")]
ContentType = Annotated[str | None, typer.Option(help="Content type.")]
Ttl = Annotated[str | None, typer.Option(help="Time to live: 30s, 2h.")]
Count = Annotated[int, typer.Option(min=1, max=1_000_000, help="So many times.")]


@takes_target
def send(
    target: OperationTarget,
    entity: Annotated[str, typer.Argument(help="A queue or a topic.")],
    body: Body = None,
    file: BodyFile = None,
    lines: Lines = None,
    properties: ApplicationProperties = None,
    message_id: MessageId = None,
    subject: Subject = None,
    session_id: SessionId = None,
    correlation_id: Annotated[str | None, typer.Option(help="Correlation id.")] = None,
    content_type: ContentType = None,
    ttl: Ttl = None,
    count: Count = 1,
    as_json: JsonFlag = False,
) -> None:
    """Send a message, the same one several times, or a file of messages.

    Example: tandem send orders '{"total": 120}' --subject created --property region=eu
    """
    fields = {"subject": subject, "session_id": session_id, "correlation_id": correlation_id, "content_type": content_type}
    messages = _from_file(lines) if lines is not None else _written(body, file, properties, message_id, ttl, count, fields)
    sent = 0
    with refusals(), target.client() as client, client.get_queue_sender(entity) as sender:
        for sent in send_in_batches(sender, messages):
            _tell(f"sent {sent}")
    _tell("")
    tell(as_json, f"sent {sent}", sent=sent)


@takes_target
def schedule(
    target: OperationTarget,
    entity: Annotated[str, typer.Argument(help="A queue or a topic.")],
    at: Annotated[str, typer.Option(help="When: a span from now like 30s or 2h, or 2030-01-31T12:00:00Z.")],
    body: Body = None,
    file: BodyFile = None,
    properties: ApplicationProperties = None,
    message_id: MessageId = None,
    subject: Subject = None,
    session_id: SessionId = None,
    content_type: ContentType = None,
    count: Count = 1,
    as_json: JsonFlag = False,
) -> None:
    """Schedule a message and print its sequence number, with which it can be cancelled.

    Example: tandem schedule orders 'wake up' --at 2h
    """
    due = instant(at, datetime.now(UTC))
    fields = {"subject": subject, "session_id": session_id, "content_type": content_type}
    messages = list(_written(body, file, properties, message_id, None, count, fields))
    with refusals(), target.client() as client, client.get_queue_sender(entity) as sender:
        for start in range(0, len(messages), _PAGE):
            for number in sender.schedule_messages(messages[start : start + _PAGE], due):
                tell(as_json, str(number), sequence_number=number)


@takes_target
def cancel(
    target: OperationTarget,
    entity: Annotated[str, typer.Argument(help="A queue or a topic.")],
    sequence_numbers: Annotated[list[int], typer.Argument(help="As `tandem schedule` printed them.")],
    as_json: JsonFlag = False,
) -> None:
    """Cancel scheduled messages.

    Example: tandem cancel orders 1201 1202
    """
    with refusals(), target.client() as client, client.get_queue_sender(entity) as sender:
        sender.cancel_scheduled_messages(sequence_numbers)
    tell(as_json, f"cancelled {len(sequence_numbers)}", cancelled=sequence_numbers)


@takes_target
def peek(
    target: OperationTarget,
    entity: Entity,
    start: Annotated[int, typer.Option("--from", help="First sequence number.")] = 0,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 20,
    dead_letters: DeadLetters = False,
    session: Session = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON, one for each message.")] = False,
) -> None:
    """Look at messages without taking them.

    Example: tandem peek orders --count 100 --json > orders.jsonl
    """
    path = Path.parse(entity, dead_letters)
    with refusals(), target.client() as client, receiver(client, path, session) as source:
        held = source.session.session_id if source.session is not None else None
        print_messages(peeked(target, path, source, start, count, held), as_json)


@takes_target
def receive(
    target: OperationTarget,
    entity: Entity,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 1,
    wait: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the next one.")] = 5.0,
    keep: Annotated[bool, typer.Option("--keep", help="Give them back instead of completing them.")] = False,
    dead_letters: DeadLetters = False,
    session: Session = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON, one for each message.")] = False,
) -> None:
    """Take messages: each is completed after it is printed. Exit code 1 when there was none.

    Example: tandem receive orders --count 10
    """
    path = Path.parse(entity, dead_letters)
    taken = 0
    with refusals(), target.client() as client, receiver(client, path, session) as source:
        while taken < count:
            messages = source.receive_messages(max_message_count=min(_PAGE, count - taken), max_wait_time=wait)
            if not messages:
                break
            taken += len(messages)
            print_messages(messages, as_json)
            sys.stdout.flush()
            for message in messages:
                (source.abandon_message if keep else source.complete_message)(message)
            if keep:
                break  # what was given back would only come again
    if not taken:
        print("there is no message", file=sys.stderr)
        raise typer.Exit(1)


def print_messages(messages: Iterable[ServiceBusReceivedMessage | UnreadableMessage], as_json: bool) -> None:
    if as_json:
        for message in messages:
            print(json.dumps(line_of(message)))
        return
    rows = [line_of(message) for message in messages]
    for row in rows:
        if "unreadable" in row:
            row["body"] = f"unreadable: {row['unreadable']}"
            continue
        body = str(row.get("body", f"{len(row.get('body_base64', '')) * 3 // 4} bytes"))
        row["body"] = body if len(body) <= _BODY_SHOWN else body[: _BODY_SHOWN - 1] + "…"
    if rows:
        show(rows, False, [name for name in _COLUMNS if any(row.get(name) is not None for row in rows)])


def send_in_batches(sender: ServiceBusSender, messages: Iterable[ServiceBusMessage]) -> Iterator[int]:
    """As many in one transfer as fit; yields how many were accepted so far."""
    from azure.servicebus.exceptions import MessageSizeExceededError

    batch = sender.create_message_batch()
    sent = 0
    for message in messages:
        try:
            batch.add_message(message)
            continue
        except (ValueError, MessageSizeExceededError):
            pass  # full, or of another session: a new batch
        if len(batch):
            sender.send_messages(batch)
            sent += len(batch)
            yield sent
        batch = sender.create_message_batch()
        try:
            batch.add_message(message)
        except (ValueError, MessageSizeExceededError):
            sender.send_messages(message)  # larger than a batch may be: alone, or refused with the reason
            sent += 1
            yield sent
    if len(batch):
        sender.send_messages(batch)
        yield sent + len(batch)


def _written(
    body: str | None,
    file: File | None,
    properties: list[str] | None,
    message_id: str | None,
    ttl: str | None,
    count: int,
    fields: dict[str, Any],
) -> Iterator[ServiceBusMessage]:
    from azure.servicebus import ServiceBusMessage

    if (body is None) == (file is None):
        raise ConfigurationError("say the body, or --file FILE")
    content: str | bytes = body if body is not None else _bytes_of(file)
    now = datetime.now(UTC)
    given = {name: value for name, value in fields.items() if value is not None}
    if ttl is not None:
        given["time_to_live"] = instant(ttl, now) - now
    pairs: Any = dict(property_pair(text) for text in properties or ()) or None
    for number in range(count):
        if message_id is not None:
            given["message_id"] = message_id if count == 1 else f"{message_id}-{number + 1}"
        yield ServiceBusMessage(content, application_properties=pairs, **given)


def _bytes_of(file: File | None) -> bytes:
    assert file is not None
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error


def _from_file(file: File) -> Iterator[ServiceBusMessage]:
    try:
        with contextlib.nullcontext(sys.stdin) if str(file) == "-" else file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from_line(line, number)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error


def _tell(text: str) -> None:
    """How far it is, for people who watch."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
