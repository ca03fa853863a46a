"""`tandem queue|topic|subscription create|list|show|update|delete`, over the administration API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from tandem.cli.operations.entity_properties import Properties, counted, described, read_properties
from tandem.cli.operations.output import JsonFlag, Yes, confirm, show, show_one, tell
from tandem.cli.operations.target import OperationTarget, refusals, takes_target
from tandem.model.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class EntityCommands:
    """Names of the SDK's methods follow from the word."""

    word: str
    example: str
    columns: tuple[str, ...]
    of: str = ""
    """What it is found in, as the argument of `list`; empty when it is the namespace."""

    def split(self, path: str) -> tuple[str, ...]:
        """The SDK's positional arguments: a topic's subscription is written topic/subscription."""
        if not self.of:
            return (path,)
        parts = [part for part in path.split("/") if part.casefold() != "subscriptions"]
        if len(parts) < 2 or not all(parts):
            raise ConfigurationError(f"'{path}': write {self.of}/{self.word}, for instance {self.example}")
        return ("/".join(parts[:-1]), parts[-1])


QUEUE: Final = EntityCommands(
    "queue", "orders", ("name", "status", "active_message_count", "dead_letter_message_count", "scheduled_message_count", "size_in_bytes")
)
TOPIC: Final = EntityCommands("topic", "orders", ("name", "status", "subscription_count", "scheduled_message_count", "size_in_bytes"))
SUBSCRIPTION: Final = EntityCommands(
    "subscription", "orders/billing", ("name", "status", "active_message_count", "dead_letter_message_count"), "topic"
)


def entity_app(kind: EntityCommands) -> typer.Typer:
    """The five commands of one kind of entity."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, help=f"Create, list, show, change and delete {kind.word}s.")
    app.command(name="create", help=f"Create a {kind.word}.\n\nExample: tandem {kind.word} create {kind.example}")(_create(kind))
    app.command(
        name="list",
        help=f"List {kind.word}s with what is in them.\n\nExample: tandem {kind.word} list{' orders' if kind.of else ''}",
    )(_list_of_parent(kind) if kind.of else _list(kind))
    app.command(name="show", help=f"Show one {kind.word}.\n\nExample: tandem {kind.word} show {kind.example}")(_show(kind))
    change = f"tandem {kind.word} update {kind.example} -p default-message-time-to-live=1h"
    app.command(name="update", help=f"Change properties of a {kind.word}; the others stay.\n\nExample: {change}")(_update(kind))
    gone = f"Delete a {kind.word} with all its messages.\n\nExample: tandem {kind.word} delete {kind.example}"
    app.command(name="delete", help=gone)(_delete(kind))
    return app


def _call(administration: Any, verb: str, kind: EntityCommands, suffix: str = "") -> Any:
    return getattr(administration, f"{verb}_{kind.word}{suffix}")


def _row(administration: Any, kind: EntityCommands, where: Sequence[str]) -> dict[str, Any]:
    settings = _call(administration, "get", kind)(*where)
    runtime = _call(administration, "get", kind, "_runtime_properties")(*where)
    return described(kind.word, settings) | counted(runtime)


def _create(kind: EntityCommands) -> Any:
    @takes_target
    def create(
        target: OperationTarget,
        name: Annotated[str, typer.Argument(help="Its path.")],
        properties: Properties = None,
        as_json: JsonFlag = False,
    ) -> None:
        wanted = read_properties(kind.word, properties or ())
        where = kind.split(name)
        with refusals(), target.administration() as administration:
            status = wanted.pop("status", None)
            made = _call(administration, "create", kind)(*where, **wanted)
            if status is not None:
                made.status = status
                _call(administration, "update", kind)(*where[:-1], made)
            show_one(_row(administration, kind, where), as_json)

    return create


def _rows(kind: EntityCommands, administration: Any, parent: Sequence[str]) -> list[dict[str, Any]]:
    """Two lists joined by name: one request a page instead of two an entity."""
    runtime = {one.name: counted(one) for one in _call(administration, "list", kind, "s_runtime_properties")(*parent)}
    return [described(kind.word, one) | runtime.get(one.name, {}) for one in _call(administration, "list", kind, "s")(*parent)]


def _list(kind: EntityCommands) -> Any:
    @takes_target
    def list_entities(target: OperationTarget, as_json: JsonFlag = False) -> None:
        with refusals(), target.administration() as administration:
            show(_rows(kind, administration, ()), as_json, kind.columns)

    return list_entities


def _list_of_parent(kind: EntityCommands) -> Any:
    @takes_target
    def list_entities(
        target: OperationTarget,
        parent: Annotated[str, typer.Argument(help="What they belong to.", metavar="TOPIC")],
        as_json: JsonFlag = False,
    ) -> None:
        with refusals(), target.administration() as administration:
            show(_rows(kind, administration, (parent,)), as_json, kind.columns)

    return list_entities


def _show(kind: EntityCommands) -> Any:
    @takes_target
    def show_entity(
        target: OperationTarget,
        name: Annotated[str, typer.Argument(help="Its path.")],
        as_json: JsonFlag = False,
    ) -> None:
        where = kind.split(name)
        with refusals(), target.administration() as administration:
            show_one(_row(administration, kind, where), as_json)

    return show_entity


def _update(kind: EntityCommands) -> Any:
    @takes_target
    def update(
        target: OperationTarget,
        name: Annotated[str, typer.Argument(help="Its path.")],
        properties: Properties = None,
        as_json: JsonFlag = False,
    ) -> None:
        wanted = read_properties(kind.word, properties or ())
        if not wanted:
            raise ConfigurationError("say what to change, for instance --property max-delivery-count=5")
        where = kind.split(name)
        with refusals(), target.administration() as administration:
            found = _call(administration, "get", kind)(*where)
            for one, value in wanted.items():
                setattr(found, one, value)
            _call(administration, "update", kind)(*where[:-1], found)
            show_one(_row(administration, kind, where), as_json)

    return update


def _delete(kind: EntityCommands) -> Any:
    @takes_target
    def delete(
        target: OperationTarget,
        name: Annotated[str, typer.Argument(help="Its path.")],
        yes: Yes = False,
        as_json: JsonFlag = False,
    ) -> None:
        where = kind.split(name)
        with refusals(), target.administration() as administration:
            inside = _row(administration, kind, where).get("total_message_count", 0)
            confirm(f"Delete {kind.word} {name}{f' with {inside} messages' if inside else ''}?", yes)
            _call(administration, "delete", kind)(*where)
        tell(as_json, f"deleted {name}", deleted=name, messages=inside)

    return delete


queue = entity_app(QUEUE)
topic = entity_app(TOPIC)
subscription = entity_app(SUBSCRIPTION)
