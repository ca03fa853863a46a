"""`tandem rule match`: which subscriptions of a topic would get a message, and what stands in the way of the others."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tandem.amqp import encode_message
from tandem.cli.operations.target import OperationTarget, takes_target
from tandem.cli.property_pairs import property_pair
from tandem.engine_client.endpoint import TransportError
from tandem.model.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Ask about the rules of subscriptions.")


@app.callback()
def rule() -> None:
    """Ask about the rules of subscriptions.

    Example: tandem rule match orders --property region=eu --property total=120
    """


@app.command(name="match")
@takes_target
def match(
    target: OperationTarget,
    topic: Annotated[str, typer.Argument(help="The topic, or topic/Subscriptions/name for one subscription.")],
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help='name=value; numbers, true, false and null are taken as such, "…" as text.')
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Subject (Label) of the message.")] = None,
    message_id: Annotated[str | None, typer.Option(help="Message id.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Correlation id.")] = None,
    to: Annotated[str | None, typer.Option(help="To.")] = None,
    reply_to: Annotated[str | None, typer.Option(help="Reply to.")] = None,
    session_id: Annotated[str | None, typer.Option(help="Session id.")] = None,
    content_type: Annotated[str | None, typer.Option(help="Content type.")] = None,
    body: Annotated[str, typer.Option(help="Body, which no rule looks at.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which rules a message would match, and why not. Nothing is sent. Exit code 1 when no subscription would get it.

    Example: tandem rule match orders --property region=eu --property total=120 --subject created
    """
    fields: dict[str, object] = {
        "message-id": message_id or "example",
        "to": to,
        "subject": subject,
        "reply-to": reply_to,
        "correlation-id": correlation_id,
        "content-type": content_type,
        "group-id": session_id,
    }
    payload = encode_message(
        properties={name: value for name, value in fields.items() if value is not None},
        application_properties=dict(property_pair(text) for text in properties or []),
        body=body.encode(),
    )
    subscriptions = _ask(target, topic, payload)
    if as_json:
        print(json.dumps(subscriptions, indent=2))
    else:
        _show(topic, subscriptions)
    if not any(one["matches"] for one in subscriptions):
        raise typer.Exit(1)


def _ask(target: OperationTarget, topic: str, payload: bytes) -> list[dict[str, Any]]:
    try:
        with target.engine_client() as client:
            answer = client.request(topic, "com.tandem:explain-rules", {"message": payload})
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    except TransportError as error:
        raise ConfigurationError(f"{topic}: {error.description or error.condition}") from error
    return [] if answer is None else list(answer["subscriptions"])


def _show(topic: str, subscriptions: list[dict[str, Any]]) -> None:
    if not subscriptions:
        print(f"{topic} has no subscriptions: nobody would get the message")
    for one in subscriptions:
        print(f"{one['name']}: {'gets the message' if one['matches'] else 'does not get it'}")
        for explained in one["rules"]:
            print("\n".join(f"  {line}" for line in str(explained["text"]).splitlines()))
        if not one["rules"]:
            print("  it has no rules, so nothing reaches it")
