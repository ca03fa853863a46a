"""`tandem purge`: everything that is ready in an entity is dropped, session by session where it has sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tandem.cli.operations.links import NEXT_SESSION, DeadLetters, Entity, Path, receiver
from tandem.cli.operations.output import JsonFlag, Yes, confirm, tell
from tandem.cli.operations.target import OperationTarget, refusals, takes_target

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from rich.progress import Progress

_BATCH: Final = 4_000
_UNKNOWN: Final = ("amqp:not-implemented", "amqp:not-allowed", "com.microsoft:argument-error", "400", "501")
_PAGE: Final = 1_000
_WAIT_SECONDS: Final = 2.0


@takes_target
def purge(
    target: OperationTarget,
    entity: Entity,
    dead_letters: DeadLetters = False,
    yes: Yes = False,
    as_json: JsonFlag = False,
) -> None:
    """Drop every message that is ready. Scheduled, deferred and locked ones stay.

    Example: tandem purge orders --yes
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    path = Path.parse(entity, dead_letters)
    confirm(f"Drop all messages of {entity}{' (dead letters)' if path.sub_queue else ''}?", yes)
    with refusals(), Progress(TextColumn("dropped {task.completed}"), console=Console(stderr=True), transient=True) as progress:
        dropped = _batch_delete(target, path, progress)
        if dropped is None:
            with target.client() as client:
                dropped = _purge(client, path, progress)
    tell(as_json, f"dropped {dropped}", entity=path.whole, dropped=dropped)


def _batch_delete(target: OperationTarget, path: Path, progress: Progress) -> int | None:
    """By the broker itself, thousands in a request; None where it does not know how."""
    from tandem.engine_client.endpoint import TransportError

    task = progress.add_task("", total=None)
    dropped = 0
    with target.engine_client() as client:
        while True:
            try:
                answer = client.request(path.whole, "com.microsoft:batch-delete-messages", {"message-count": client.int32(_BATCH)})
            except TransportError as error:
                if dropped or error.condition not in _UNKNOWN:
                    raise
                return None
            removed = int((answer or {}).get("message-count", 0))
            if not removed:
                return dropped
            dropped += removed
            progress.update(task, completed=dropped)


def _purge(client: ServiceBusClient, path: Path, progress: Progress) -> int:
    """An entity with sessions says so: it refuses a receiver without one."""
    from azure.servicebus.exceptions import ServiceBusError

    try:
        return _drop(client, path, None, progress)
    except ServiceBusError as error:
        if path.sub_queue is not None or "session" not in str(error).casefold():
            raise
    return _purge_sessions(client, path, progress)


def _purge_sessions(client: ServiceBusClient, path: Path, progress: Progress) -> int:
    from azure.servicebus.exceptions import OperationTimeoutError

    dropped = 0
    while True:
        try:
            dropped += _drop(client, path, NEXT_SESSION, progress)
        except OperationTimeoutError:
            return dropped  # no session is left that has messages and that nobody holds


def _drop(client: ServiceBusClient, path: Path, session: str | None, progress: Progress) -> int:
    from azure.servicebus import ServiceBusReceiveMode

    task = progress.add_task("", total=None)
    dropped = 0
    options: dict[str, Any] = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE, "prefetch_count": 0}
    if session is not None:
        options["max_wait_time"] = _WAIT_SECONDS
    with receiver(client, path, session, **options) as source:
        while messages := source.receive_messages(max_message_count=_PAGE, max_wait_time=_WAIT_SECONDS):
            dropped += len(messages)
            progress.update(task, completed=dropped)
    return dropped
