"""One trace from the send to the receive, through the broker and across a diversion, with the official SDK's tracing plug-in."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

import tandem
from tandem import amqp
from tandem.aio import PairedNamespaces
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.gateway.amqp.traced import TracedConsumer
from tandem.server.server import Server
from tandem.testing import Bus
from tandem.tracing import trace_parent
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw
from tests.plain_http import administration_of
from tests.waiting import until, wait_until

pytest.importorskip("opentelemetry.sdk", reason="MISSING: opentelemetry-sdk")
pytest.importorskip("azure.core.tracing.ext.opentelemetry_span", reason="MISSING: azure-core-tracing-opentelemetry")

from azure.core.settings import settings
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PROVIDER = TracerProvider()
SPANS = InMemorySpanExporter()
PROVIDER.add_span_processor(SimpleSpanProcessor(SPANS))
TRACER = PROVIDER.get_tracer("an application")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def spans() -> Iterator[InMemorySpanExporter]:
    SPANS.clear()
    yield SPANS


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The SDK traces by itself, as an application would have it."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", PROVIDER)
    settings.tracing_implementation = "opentelemetry"
    yield
    settings.tracing_implementation = None


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True, tracer_provider=PROVIDER) as running:
        running.create_queue("orders")
        running.create_queue("sessions", requires_session=True)
        yield running


def named(trace_id: int) -> list[str]:
    return sorted(span.name for span in SPANS.get_finished_spans() if span.context.trace_id == trace_id)


def test_the_brokers_spans_are_in_the_trace_that_the_sdk_began(bus: Bus, plug_in: None) -> None:
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        with TRACER.start_as_current_span("order taken") as span, client.get_queue_sender("orders") as sender:
            trace_id = span.get_span_context().trace_id
            message = ServiceBusMessage("x", application_properties={"total": 7})
            sender.send_messages(message)
        with client.get_queue_receiver("orders") as receiver:
            [received] = receiver.receive_messages(1, max_wait_time=30)
            carried = trace_parent(received.application_properties or {})
            assert carried.split("-")[1] == f"{trace_id:032x}", "kept as it was"
            receiver.complete_message(received)
    wait_until(lambda: "tandem settle" in named(trace_id), lambda: str(named(trace_id)))
    found = named(trace_id)
    assert {"order taken", "tandem accept", "tandem deliver", "tandem settle"} <= set(found)
    assert any(name.startswith("ServiceBus.") for name in found), "the SDK's own"
    accepted = next(span for span in SPANS.get_finished_spans() if span.name == "tandem accept")
    assert f"{accepted.parent.span_id:016x}" == carried.split("-")[2]
    assert accepted.attributes["messaging.destination.name"] == "orders"


@pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
def test_either_name_is_continued_and_a_batch_has_a_span_for_each(bus: Bus, name: str) -> None:
    trace_id = int(PARENT.split("-")[1], 16)
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(str(n), application_properties={name: PARENT}) for n in range(3)])
        sender.send_messages(ServiceBusMessage("not traced"))
        with client.get_queue_receiver("orders") as receiver:
            got = []
            while len(got) < 4:
                got += receiver.receive_messages(4 - len(got), max_wait_time=30)
            for message in got[1:]:
                receiver.complete_message(message)
            receiver.abandon_message(got[0])
            [again] = receiver.receive_messages(1, max_wait_time=30)
            receiver.dead_letter_message(again)

    def settled(how: str) -> int:
        finished = [one for one in SPANS.get_finished_spans() if one.name == "tandem settle"]
        return sum(one.attributes["messaging.settlement"] == how for one in finished)

    wait_until(lambda: (settled("complete"), settled("abandon"), settled("dead-letter")) == (2, 1, 1), lambda: str(named(trace_id)))
    assert (named(trace_id).count("tandem accept"), named(trace_id).count("tandem deliver")) == (3, 4)
    assert {span.context.trace_id for span in SPANS.get_finished_spans()} == {trace_id}, "what carries no context is not traced"


@pytest.mark.parametrize(("settle", "how"), [("complete_message", "complete"), ("dead_letter_message", "dead-letter")])
def test_what_is_settled_by_a_request_is_in_the_trace(bus: Bus, settle: str, how: str) -> None:
    """A deferred message has no link to be settled over."""
    trace_id = int(PARENT.split("-")[1], 16)
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x", application_properties={"traceparent": PARENT}))
        with client.get_queue_receiver("orders") as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=30)
            receiver.defer_message(message)
            [deferred] = receiver.receive_deferred_messages([message.sequence_number or 0])
            getattr(receiver, settle)(deferred)
            settled = [one for one in SPANS.get_finished_spans() if one.name == "tandem settle" and one.context.trace_id == trace_id]
            assert [one.attributes["messaging.settlement"] for one in settled][-1] == how


def test_a_link_does_not_remember_what_was_settled_by_a_request(bus: Bus) -> None:
    bus.create_queue("by-request")

    def remembered(server: Server) -> int:
        found = server.contexts[0].namespace.find("by-request")
        assert isinstance(found, QueueEntity)
        return sum(len(one.contexts) for one in found.main.receivers.consumers if isinstance(one, TracedConsumer))

    most = 0
    with Raw(bus.port) as raw:
        receiver = raw.receiver("by-request")
        for number in range(40):
            raw.feed("by-request", *(f"{number}-{one}" for one in range(10)), application_properties={"traceparent": PARENT})
            tokens = amqp.Array(0x98, [arrival.token for arrival in receiver.receive(10)])
            wish = {"disposition-status": "completed", "lock-tokens": tokens}
            assert raw.request("by-request", "com.microsoft:update-disposition", wish)[0] == 200
            most = max(most, bus.inside(remembered))
    assert 10 <= most <= 128, "of four hundred"


def test_a_refusal_is_in_the_trace(bus: Bus) -> None:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client,
        client.get_queue_sender("sessions") as sender,
        pytest.raises(ServiceBusError, match="SessionId"),
    ):
        sender.send_messages(ServiceBusMessage("x", application_properties={"traceparent": PARENT}))
    [refused] = [span for span in SPANS.get_finished_spans() if span.name == "tandem accept"]
    assert not refused.status.is_ok and "SessionId" in str(refused.status.description)


@asynccontextmanager
async def paired(west: Bus, east: Bus, syphon: bool = True) -> AsyncIterator[PairedNamespaces]:
    manager = administration_of(east)
    pair = PairedNamespaces(
        west.connection_string,
        east.connection_string,
        primary_namespace="contoso",
        failover_interval=0,
        ping_primary_interval=1,
        enable_syphon=syphon,
        backlog_queue_count=1,
        tracer_provider=PROVIDER,
        secondary_administration=manager,
    )
    async with manager, pair:
        yield pair


async def test_one_trace_shows_a_message_sent_diverted_carried_home_and_received(bus: Bus) -> None:
    with Bus(real_time=True, tracer_provider=PROVIDER) as east:
        async with paired(bus, east) as pair, pair.get_queue_sender("orders") as sender:
            with TRACER.start_as_current_span("order taken") as span:
                trace_id = span.get_span_context().trace_id
                await sender.send_messages(ServiceBusMessage("straight"))
                await pair.fail_over("orders", hold=True)
                await sender.send_messages(ServiceBusMessage("round about"))
            await pair.mark_path_healthy("orders")
            await until(lambda: "tandem move" in named(trace_id), 60, "the move")
            async with pair.primary_client.get_queue_receiver("orders") as receiver:
                texts: list[str] = []
                while len(texts) < 2:
                    for message in await receiver.receive_messages(2, max_wait_time=30):
                        texts.append(str(message))
                        await receiver.complete_message(message)
            await until(lambda: named(trace_id).count("tandem settle") == 3, 60, "all to be settled")
    assert sorted(texts) == ["round about", "straight"]
    found = named(trace_id)
    counts = {name: found.count(f"tandem {name}") for name in ("send", "divert", "move", "accept", "deliver", "settle")}
    # The one that went round about was accepted, delivered and settled twice: in the backlog queue and at home.
    assert counts == {"send": 2, "divert": 1, "move": 1, "accept": 3, "deliver": 3, "settle": 3}
    diverted = next(span for span in SPANS.get_finished_spans() if span.name == "tandem divert")
    assert diverted.attributes["messaging.destination.name"] == "orders"


async def test_one_trace_shows_a_message_carried_home_by_spark(bus: Bus) -> None:
    """The task of the Spark job, run here."""
    queue = "contoso/x-servicebus-transfer/0"
    with Bus(real_time=True, tracer_provider=PROVIDER) as east:
        async with paired(bus, east, syphon=False) as pair, pair.get_queue_sender("orders") as sender:
            await pair.fail_over("orders", hold=True)
            with TRACER.start_as_current_span("order taken") as span:
                trace_id = span.get_span_context().trace_id
                await sender.send_messages([ServiceBusMessage(str(n)) for n in range(3)])
        moved = await asyncio.to_thread(_carried_by_spark, bus, east, queue)
        assert moved == {"orders": 3}
        with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_receiver("orders") as receiver:
            got = []
            while len(got) < 3:
                got += receiver.receive_messages(3, max_wait_time=30)
            for message in got:
                receiver.complete_message(message)
        await until(lambda: named(trace_id).count("tandem settle") == 6, 60, "all to be settled, in the backlog and at home")
    found = named(trace_id)
    counts = {name: found.count(f"tandem {name}") for name in ("send", "divert", "move", "accept", "deliver", "settle")}
    assert counts == {"send": 1, "divert": 3, "move": 3, "accept": 6, "deliver": 6, "settle": 6}
    [one, *_] = [span for span in SPANS.get_finished_spans() if span.name == "tandem move"]
    assert (one.attributes["messaging.by"], one.attributes["messaging.destination.name"]) == ("spark", "orders")


def _carried_by_spark(west: Bus, east: Bus, queue: str) -> dict[str, int]:
    from tandem.spark.connector.connections import drop
    from tandem.spark.connector.leased_batches import LeasedBatches
    from tandem.spark.connector.options import Where
    from tandem.spark.syphon.task import SyphonTaskSettings
    from tandem.spark.syphon.traced import TracedSyphonTask

    home, backlog = (Where(connection_string=one.connection_string, ca_file=None, timeout_seconds=30) for one in (west, east))
    move = SyphonTaskSettings(primary=home, secondary=backlog, batch_messages=50, subtract_time_in_backlog=False, tracing=True)
    batches = LeasedBatches(backlog, 60, 60, 100_000)
    try:
        share = batches.take(queue, 0, {queue: 100}, 10**8, 10.0)[queue]
        return {one.path: one.moved for one in TracedSyphonTask(PROVIDER, move, queue, 0).run([(share.lease, share.count)])}
    finally:
        batches.close()
        drop(home)
        drop(backlog)


async def test_pings_are_traced_with_what_came_of_them(bus: Bus) -> None:
    with Bus(real_time=True) as east:
        async with paired(bus, east) as pair, pair.get_queue_sender("orders") as sender:
            await pair.fail_over("orders")
            await sender.send_messages(ServiceBusMessage("while it pings"))
            await until(lambda: any(span.name == "tandem ping" for span in SPANS.get_finished_spans()), 60, "a ping")
    ping = next(span for span in SPANS.get_finished_spans() if span.name == "tandem ping")
    assert ping.attributes["messaging.ping"] == "accepted"


def test_a_broker_sends_its_spans_to_a_collector(tmp_path: Path) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Quietly."""

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        (tmp_path / "tandem.toml").write_text('tracing = true\n\n[[queue]]\nname = "orders"\n')
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}", "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
        with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", environ=environ) as broker:
            with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("x", application_properties={"traceparent": PARENT}))
            broker.stop()
        collector.shutdown()
    assert any(bytes.fromhex(PARENT.split("-")[1]) in body and b"tandem accept" in body for body in received)


def test_a_collector_that_hangs_delays_neither_messages_nor_the_end_of_the_broker(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('tracing = true\n\n[[queue]]\nname = "orders"\n')
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hangs.getsockname()[1]}"}
        with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", environ=environ) as broker:
            with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("orders") as sender:
                for _ in range(5):
                    sender.send_messages(ServiceBusMessage("x", application_properties={"traceparent": PARENT}))
            began = time.monotonic()
            assert broker.stop()[0] == 0
    assert time.monotonic() - began < 8, "OpenTelemetry alone would wait for 10 s and more"


def test_a_sender_without_await_is_traced_too(bus: Bus) -> None:
    with Bus(real_time=True) as east:
        pair = tandem.PairedNamespaces(bus.connection_string, east.connection_string, primary_namespace="contoso", tracer_provider=PROVIDER)
        with pair, pair.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    assert "tandem send" in {span.name for span in SPANS.get_finished_spans()}


def test_a_broker_that_does_not_trace_loads_nothing_for_it() -> None:
    code = (
        "import sys, tandem.cli.running, tandem.server.server, tandem.gateway.amqp.attach, tandem.client.pairing\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or name.endswith('.traced')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
