"""`tandem dead-letter list|show|resubmit|purge`: completed only after the copy was accepted, so that an interrupted run loses nothing."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.cli.operations.links import Path, receiver
from tandem.cli.operations.message_text import as_line
from tandem.cli.operations.messages import print_messages, send_in_batches
from tandem.cli.operations.output import JsonFlag, Yes, confirm, show, show_one, tell
from tandem.cli.operations.peeking import UnreadableMessage, peeked
from tandem.cli.operations.selection import MessageSelection, Reason, Since, Until, Where
from tandem.cli.operations.target import OperationTarget, refusals, takes_target
from tandem.cli.property_pairs import property_pair
from tandem.model.errors import ConfigurationError
from tandem.model.message_line import OF_DEAD_LETTERS

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver
    from azure.servicebus.amqp import AmqpAnnotatedMessage

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at dead letters, send them again, or drop them.")

Entity = Annotated[str, typer.Argument(help="The queue, or topic/Subscriptions/name, whose dead letters are meant.")]
_ALL: Final = 2**62
_PAGE: Final = 100
_WAIT_SECONDS: Final = 3.0
_COLUMNS: Final = ("sequence_number", "enqueued_time_utc", "message_id", "dead_letter_reason", "dead_letter_error_description")


@app.callback()
def dead_letter() -> None:
    """Look at dead letters, send them again, or drop them.

    Example: tandem dead-letter resubmit orders --reason MaxDeliveryCountExceeded --dry-run
    """


@app.command(name="list")
@takes_target
def list_dead_letters(
    target: OperationTarget,
    entity: Entity,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON, one for each message.")] = False,
) -> None:
    """List dead letters with their reasons.

    Example: tandem dead-letter list orders --reason TTLExpiredException --since 2h
    """
    selection = MessageSelection.of(reason, since, until, where)
    with refusals():
        chosen = islice(_selected(target, entity, selection), count)
        if as_json:
            print_messages(chosen, True)
        else:
            show([as_line(message) for message in chosen], False, _COLUMNS)


@app.command(name="show")
@takes_target
def show_dead_letter(
    target: OperationTarget,
    entity: Entity,
    sequence_number: Annotated[int, typer.Argument(help="As `tandem dead-letter list` prints it.")],
    as_json: JsonFlag = False,
) -> None:
    """Show one dead letter, whole.

    Example: tandem dead-letter show orders 42
    """
    path = Path.parse(entity, dead_letters=True)
    with refusals(), target.client() as client, receiver(client, path) as source:
        found = source.peek_messages(max_message_count=1, sequence_number=sequence_number)
    if not found or found[0].sequence_number != sequence_number:
        raise ConfigurationError(f"{entity} has no dead letter {sequence_number}")
    show_one(as_line(found[0]), as_json)


@app.command(name="resubmit")
@takes_target
def resubmit(
    target: OperationTarget,
    entity: Entity,
    to: Annotated[str | None, typer.Option(help="Another queue or topic; without it, where they came from.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="Application property to set: name=value; name= removes it.")] = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = _ALL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which would be sent again.")] = False,
    yes: Yes = False,
    as_json: JsonFlag = False,
) -> None:
    """Send dead letters again, a hundred at a time. Each keeps its message id, so that duplicate detection catches a repeat, and is
    completed only after its copy is accepted. Ctrl-C stops after the hundred under way; run it again for the rest.

    Example: tandem dead-letter resubmit orders --where "region = 'eu'" --set retried=true
    """
    changed = dict(_change(text) for text in changes or ())
    home = to or Path.parse(entity).home
    numbers = _numbers(target, entity, MessageSelection.of(reason, since, until, where), count)
    if dry_run or not numbers:
        tell(as_json, f"{len(numbers)} dead letters of {entity} would be sent to {home}", found=len(numbers), sent=0, to=home)
        return
    confirm(f"Send {len(numbers)} dead letters of {entity} to {home} again?", yes)

    def send(messages: list[ServiceBusReceivedMessage]) -> None:
        for _ in send_in_batches(sender, (copy_of(message, changed) for message in messages)):
            pass

    with refusals(), target.client() as client, client.get_queue_sender(home) as sender:
        done = _each(client, entity, numbers, "sent again", send)
    tell(as_json, f"sent {done} of {len(numbers)} again", found=len(numbers), sent=done, to=home)
    if done < len(numbers):
        print("the others are left as they are: it was stopped, or somebody else holds them; run it again", file=sys.stderr)
        raise typer.Exit(1)


@app.command(name="purge")
@takes_target
def purge_dead_letters(
    target: OperationTarget,
    entity: Entity,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = _ALL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many would go.")] = False,
    yes: Yes = False,
    as_json: JsonFlag = False,
) -> None:
    """Drop dead letters for good.

    Example: tandem dead-letter purge orders --until 30d --yes
    """
    numbers = _numbers(target, entity, MessageSelection.of(reason, since, until, where), count)
    if dry_run or not numbers:
        tell(as_json, f"{len(numbers)} dead letters of {entity} would be dropped", found=len(numbers), dropped=0)
        return
    confirm(f"Drop {len(numbers)} dead letters of {entity} for good?", yes)
    with refusals(), target.client() as client:
        done = _each(client, entity, numbers, "dropped", lambda messages: None)
    tell(as_json, f"dropped {done} of {len(numbers)}", found=len(numbers), dropped=done)
    if done < len(numbers):
        raise typer.Exit(1)


def copy_of(message: ServiceBusReceivedMessage, changed: dict[str, object]) -> AmqpAnnotatedMessage:
    """The same message without what made it a dead letter; its id, session and body stay to the byte."""
    from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader

    raw = message.raw_amqp_message
    properties: dict[Any, Any] = {}
    for name, value in (raw.application_properties or {}).items():
        key = name.decode() if isinstance(name, bytes) else name
        if key not in OF_DEAD_LETTERS:
            properties[key] = value
    for name, value in changed.items():
        if value is _REMOVED:
            properties.pop(name, None)
        else:
            properties[name] = value
    word = {AmqpMessageBodyType.DATA: "data_body", AmqpMessageBodyType.SEQUENCE: "sequence_body", AmqpMessageBodyType.VALUE: "value_body"}[
        raw.body_type
    ]
    body: Any = raw.body if raw.body_type == AmqpMessageBodyType.VALUE else list(raw.body)
    annotations = {}
    if message.partition_key is not None and message.session_id is None:
        annotations["x-opt-partition-key"] = message.partition_key
    ttl = raw.header.time_to_live if raw.header is not None else None
    return AmqpAnnotatedMessage(
        **{word: body},
        properties=raw.properties,
        application_properties=properties or None,
        annotations=annotations or None,
        header=AmqpMessageHeader(time_to_live=ttl, durable=True),
    )


_REMOVED: Final = object()


def _change(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return (name, _REMOVED) if name and not value and text.endswith("=") else property_pair(text)


def _selected(target: OperationTarget, entity: str, selection: MessageSelection) -> Iterator[ServiceBusReceivedMessage]:
    path = Path.parse(entity, dead_letters=True)
    with target.client() as client, receiver(client, path) as source:
        for message in peeked(target, path, source, 0, _ALL):
            if isinstance(message, UnreadableMessage):
                print(f"dead letter {message.sequence_number} of {entity} is left out: {message.why}", file=sys.stderr)
            elif selection.holds(message):
                yield message


def _numbers(target: OperationTarget, entity: str, selection: MessageSelection, count: int) -> set[int]:
    """Looked at first, so that what is asked for can be said before anything is touched."""
    with refusals():
        return {message.sequence_number or 0 for message in islice(_selected(target, entity, selection), count)}


def _each(client: Any, entity: str, numbers: set[int], word: str, act: Callable[[list[Any]], None]) -> int:
    """Do it for every one of these, then complete it. What is not meant is held until the end, or it would come again and again."""
    from rich.console import Console
    from rich.progress import Progress

    left, held, done = set(numbers), list[Any](), 0
    with (
        receiver(client, Path.parse(entity, dead_letters=True), prefetch_count=_PAGE) as source,
        Progress(console=Console(stderr=True), transient=True) as progress,
        _stopped_between() as stopped,
    ):
        task = progress.add_task(word, total=len(numbers))
        try:
            while left and not stopped.is_set():
                messages = source.receive_messages(max_message_count=_PAGE, max_wait_time=_WAIT_SECONDS)
                if not messages:
                    break
                meant = [message for message in messages if message.sequence_number in left]
                held += [message for message in messages if message.sequence_number not in left]
                act(meant)
                for message in meant:
                    source.complete_message(message)
                    left.discard(message.sequence_number)
                    done += 1
                progress.advance(task, len(meant))
        finally:
            _give_back(source, held)
    return done


@contextlib.contextmanager
def _stopped_between() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM are heard between two steps: what is sent is completed, too. The second time nothing is waited for."""
    told = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        told.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_back(source: ServiceBusReceiver, held: list[Any]) -> None:
    from azure.servicebus.exceptions import ServiceBusError

    for message in held:
        try:
            source.abandon_message(message)
        except ServiceBusError as error:
            print(f"message {message.sequence_number} returns when its lock ends: {error}", file=sys.stderr)
            return
