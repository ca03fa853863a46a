"""Every message is accounted for, and each kind of trouble is found under its name."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.client.envelope import FENCE_ID
from tandem.model.entity import RuleDescription, SqlFilter
from tandem.model.errors import ConfigurationError
from tandem.testing import Bus
from tests.spark.ledger_lines import ledger

pytestmark = pytest.mark.spark


def problems(result: Any) -> dict[str, str]:
    return {finding.message_id: finding.problem for finding in result.findings}


def test_ledgers_alone_show_what_is_lost_doubled_late_and_unexpected(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    sent = ledger(tmp_path / "sent.jsonl", [(f"m{n}", "orders", n) for n in range(6)])
    received = [("m0", "orders", 1.0), ("m1", "ORDERS", 1.5), ("m1", "orders", 1.6), ("m2", "orders", 100.0), ("m3", "orders", 4.0)]
    result = reconcile(spark, sent=sent, received=ledger(tmp_path / "got.jsonl", [*received, ("ghost", "orders", 5.0)]))
    assert (result.total.sent, result.total.delivered, result.held) == (6, 5, False)
    assert problems(result) == {"m4": "lost", "m5": "lost", "m1": "duplicated", "m2": "delayed", "ghost": "unexpected"}
    assert result.delayed_after_ms == 60_000


def test_among_equals_the_longest_on_their_way_come_first(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    sent = ledger(tmp_path / "sent.jsonl", [(f"m{n}", "orders", n) for n in range(3)] + [("z", "alpha", 0)])
    got = ledger(tmp_path / "got.jsonl", [("m0", "orders", 80.0), ("m1", "orders", 300.0), ("m2", "orders", 70.0), ("z", "alpha", 200.0)])
    result = reconcile(spark, sent=sent, received=got)
    assert [finding.message_id for finding in result.findings] == ["m1", "z", "m0", "m2"]


def test_order_is_judged_within_a_session(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    sent = ledger(tmp_path / "sent.jsonl", [(f"m{n}", "orders", n) for n in range(4)], session_id="s")
    received = ledger(tmp_path / "got.jsonl", [(f"m{n}", "orders", 9 + n) for n in (0, 2, 1, 3)], session_id="s")
    result = reconcile(spark, sent=sent, received=received)
    assert result.held
    assert problems(result) == {"m2": "out_of_order"}, "it overtook m1"


def test_journals_of_both_namespaces_tell_where_every_message_is(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    backlog = "contoso/x-servicebus-transfer/0"
    with Bus(data_dir=tmp_path / "west", real_time=True) as west, Bus(data_dir=tmp_path / "east", real_time=True) as east:
        west.create_queue("orders")
        east.create_queue(backlog)
        with ServiceBusClient.from_connection_string(west.connection_string) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages([ServiceBusMessage("x", message_id=f"w{n}") for n in range(5)])
                sender.send_messages(ServiceBusMessage("home again", message_id="e0"))
            with client.get_queue_receiver("orders") as receiver:
                messages = receiver.receive_messages(max_message_count=6, max_wait_time=5)
                by_id = {str(message.message_id): message for message in messages}
                for name in ("w0", "w1", "e0"):
                    receiver.complete_message(by_id[name])
                receiver.dead_letter_message(by_id["w2"], reason="bad")
        with ServiceBusClient.from_connection_string(east.connection_string) as client:
            with client.get_queue_sender(backlog) as sender:
                diverted = [ServiceBusMessage("x", message_id=f"e{n}", application_properties={"x-ms-path": "orders"}) for n in range(2)]
                sender.send_messages(diverted)
                fence = f"{FENCE_ID}1"
                sender.send_messages(ServiceBusMessage(b"", message_id=fence, application_properties={"x-ms-path": "orders"}))
            with client.get_queue_receiver(backlog) as receiver:
                for message in receiver.receive_messages(max_message_count=1, max_wait_time=5):
                    receiver.complete_message(message)
    result = reconcile(spark, journals=[str(tmp_path / "west"), str(tmp_path / "east")])
    assert [one.entity for one in result.entities] == ["orders"]
    assert (result.total.sent, result.total.delivered, result.total.diverted, result.held) == (7, 3, 2, True)
    assert problems(result) == {"w2": "dead_lettered", "w3": "waiting", "w4": "waiting", "e1": "waiting"}


def test_messages_that_are_forwarded_are_followed_to_where_they_went(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    with Bus(data_dir=tmp_path / "west", real_time=True) as west:
        west.create_queue("orders")
        west.create_queue("front", forward_to="orders")
        west.create_topic("events")
        west.create_subscription("events", "all", forward_to="orders")
        with ServiceBusClient.from_connection_string(west.connection_string) as client:
            with client.get_queue_sender("front") as sender:
                sender.send_messages([ServiceBusMessage("x", message_id=f"f{n}") for n in range(3)])
            with client.get_topic_sender("events") as sender:
                sender.send_messages(ServiceBusMessage("x", message_id="t0"))
            with client.get_queue_receiver("orders") as receiver:
                taken = 0
                while taken < 3:
                    for message in receiver.receive_messages(max_message_count=3 - taken, max_wait_time=5):
                        receiver.complete_message(message)
                        taken += 1
    journals = [str(tmp_path / "west")]
    result = reconcile(spark, journals=journals)
    counts = {one.entity: (one.sent, one.delivered, one.forwarded, one.waiting) for one in result.entities}
    assert counts == {"orders": (4, 3, 0, 1), "front": (0, 0, 3, 0), "events": (0, 0, 1, 0)}
    assert result.held

    sent = ledger(tmp_path / "sent.jsonl", [("f0", "front", 1), ("f1", "front", 1), ("f2", "front", 1), ("t0", "events", 1)])
    taken_ids = {"f0", "f1", "f2", "t0"} - set(problems(result))
    got = ledger(tmp_path / "got.jsonl", [(one, "orders", 2) for one in sorted(taken_ids)])
    result = reconcile(spark, journals=journals, sent=sent, received=got)
    assert result.held
    assert set(problems(result).values()) == {"waiting"}
    missed = min(taken_ids)
    short = ledger(tmp_path / "short.jsonl", [(one, "orders", 2) for one in sorted(taken_ids) if one != missed])
    assert problems(reconcile(spark, journals=journals, sent=sent, received=short))[missed] == "lost"


def test_subscriptions_get_a_copy_each_and_have_an_order_each(tmp_path: Path, spark: Any) -> None:
    """Also when ledgers are all there is."""
    from tandem.spark.analytics.reconcile import reconcile

    sent = ledger(tmp_path / "sent.jsonl", [(f"m{n}", "events", n) for n in range(4)], session_id="s")
    slow = [(f"m{n}", "events/Subscriptions/slow", 30 + n) for n in (0, 1)]
    fast = [(f"m{n}", "events/subscriptions/fast", 10 + n) for n in (1, 2, 3)]
    result = reconcile(spark, sent=sent, received=ledger(tmp_path / "got.jsonl", [*fast, *slow], session_id="s"))
    assert (result.total.delivered, result.findings) == (4, ())
    again = [*fast, *slow, ("m3", "events/Subscriptions/FAST", 20), ("m0", "events/Subscriptions/fast", 21)]
    result = reconcile(spark, sent=sent, received=ledger(tmp_path / "again.jsonl", again, session_id="s"))
    assert problems(result) == {"m3": "duplicated", "m1": "out_of_order", "m2": "out_of_order"}, "they came before m0"


def test_sessions_of_a_topic_are_in_order_though_subscriptions_count_for_themselves(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    with Bus(data_dir=tmp_path / "west", real_time=True) as west:
        west.create_topic("events")
        west.create_subscription("events", "all", requires_session=True)
        with ServiceBusClient.from_connection_string(west.connection_string) as client, client.get_topic_sender("events") as sender:
            sender.send_messages([ServiceBusMessage("x", message_id=f"early{n}", session_id="s") for n in range(5)])
            west.create_subscription(
                "events",
                "red",
                requires_session=True,
                rules=[RuleDescription(name="red", filter=SqlFilter(expression="sys.Label = 'red'"))],
            )
            late = [ServiceBusMessage("x", message_id=f"late{n}", session_id="s", subject="red" if n % 2 else "") for n in range(6)]
            sender.send_messages(late)
    result = reconcile(spark, journals=[str(tmp_path / "west")])
    assert (result.total.waiting, result.total.out_of_order) == (11, 0)


def test_nothing_to_compare_is_an_error(spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    with pytest.raises(ConfigurationError, match="nothing to reconcile"):
        reconcile(spark)


def test_a_ledger_without_ids_is_refused_by_name(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    (tmp_path / "sent.jsonl").write_text('{"path": "orders", "at_ms": 1}\n')
    with pytest.raises(ConfigurationError, match="has no column message_id"):
        reconcile(spark, sent=str(tmp_path / "sent.jsonl"))


def test_lines_that_cannot_be_read_are_told_and_columns_may_begin_in_any_line(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.reconcile import reconcile

    sent = tmp_path / "sent [1] {a}*.jsonl"
    ledger(tmp_path / "sent.jsonl", [(f"m{n}", "orders", n) for n in range(4)], session_id="s")
    whole = (tmp_path / "sent.jsonl").read_text()
    sent.write_text('\n{"message_id": "first", "path": "orders", "at_ms": 1750000000000.25}\n{"path": "orders"}\n' + whole[:-20])
    received = ledger(tmp_path / "received.jsonl", [(name, "orders", 9) for name in ("m1", "m0", "m2", "first")], session_id="s")
    packed = tmp_path / "received.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(received).read_bytes()))
    result = reconcile(spark, sent=str(sent), received=str(packed))
    assert [one.entity for one in result.entities] == ["orders"]
    assert (result.total.sent, result.total.delivered, result.total.out_of_order, result.broken_lines) == (4, 4, 1, 2)
    assert result.latency_ms["max"] == 9_000


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("a.jsonl", '{"message_id": "ü"}'.encode("latin-1"), "neither Parquet nor lines of JSON"),
        ("a.jsonl", '{"message_id": "x"}'.encode("utf-16"), "neither Parquet nor lines of JSON"),
        ("a.jsonl", b'["message_id", "path", "at_ms"]', "is no object"),
        ("a.jsonl", b'"text"', "is no object"),
        ("12:00.jsonl", b'{"message_id": "a", "path": "q", "at_ms": 1}', "colon"),
        ("a.parquet", b"none", "as Parquet"),
        ("_a", b"", "no file in"),
    ],
)
def test_a_ledger_that_is_none_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    from tandem.spark.analytics.ledgers import load_ledger

    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=says):
        load_ledger(None, str(tmp_path if name == "_a" else file))  # type: ignore[arg-type]


def test_names_are_shown_as_they_are_whatever_they_look_like() -> None:
    from rich.console import Console

    from tandem.cli.analytics import show_availability, show_reconciliation
    from tandem.spark.analytics.availability import Availability, Outage, PathAvailability
    from tandem.spark.analytics.reconcile import EntityCounts, Finding, Reconciliation

    console = Console(record=True, width=200, file=io.StringIO())
    counts = EntityCounts("[red]a[/bold]", sent=1, lost=1)
    finding = Finding("[red]a[/bold]", "[/i]", "lost", 1, None)
    show_reconciliation(Reconciliation(replace(counts, entity=""), (counts,), (finding,), broken_lines=3), console)
    path = PathAvailability("[/p]", 1, 0, 0, 1.0, 1.0, 0.9)
    show_availability(Availability((Outage("[/w]", "[/o]", 1, None, None, 0),), (), (path,)), console)
    text = console.export_text()
    assert all(name in text for name in ("[red]a[/bold] ", "lost: [/i] in [red]a[/bold]", "[/p]: 1", "[/w]", "[/o]", "3 lines of ledgers"))
