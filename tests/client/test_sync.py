from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from azure.servicebus import ServiceBusMessage

import tandem
from tandem import aio
from tandem.client.facade import Facade, facade
from tests.client.scripted import ScriptedAdministration, ScriptedNamespace
from tests.forked import in_a_forked_process


def test_importing_tandem_loads_neither_the_sdk_nor_the_client():
    program = "import sys, tandem; print(sorted(m for m in sys.modules if m.startswith(('azure', 'tandem.'))))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_both_front_doors_have_the_same_names():
    offered = {*tandem._SYNC, *tandem._SHARED, *tandem._OF_CLIENTS}
    assert offered == set(aio.__all__) - {"PairedSender", "Syphon"}
    for name in offered:
        assert getattr(tandem, name).__name__ == getattr(aio, name).__name__
    assert offered <= set(dir(tandem))
    with pytest.raises(AttributeError, match="Nonsense"):
        tandem.Nonsense  # noqa: B018


def test_every_public_method_is_there_with_its_documentation():
    for name in tandem._SYNC:
        synchronous, asynchronous = getattr(tandem, name), getattr(aio, name)
        for method, function in vars(asynchronous).items():
            if not method.startswith("_") and callable(function) and not isinstance(function, (classmethod, staticmethod)):
                assert getattr(synchronous, method).__doc__ == function.__doc__


def test_a_pair_works_without_await():
    primary, secondary = ScriptedNamespace("contoso"), ScriptedNamespace("backup", strict=True)
    with tandem.PairedNamespaces(
        primary, secondary, backlog_queue_count=2, failover_interval=0, secondary_administration=ScriptedAdministration(secondary)
    ) as pair:
        assert pair.backlog_queue_count == 2
        with pair.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("1"))
            primary.down()
            sender.send_messages(ServiceBusMessage("2"))
            assert pair.state("orders").state is tandem.PathState.FAILED_OVER
            assert pair.counters.diverted == 1
            with pytest.raises(tandem.AliasInUseError):
                sender.send_messages(ServiceBusMessage("3", application_properties={"x-ms-path": 1}))
    assert len(primary.entity("orders").messages) == 1


def test_a_syphon_is_measured_and_a_credential_made_without_await():
    primary, secondary = ScriptedNamespace("contoso"), ScriptedNamespace("backup", strict=True)
    administration = ScriptedAdministration(secondary)
    with tandem.PairedNamespaces(
        primary, secondary, backlog_queue_count=1, enable_syphon=True, secondary_administration=administration
    ) as pair:
        (measure,) = pair.syphon.measure()
        assert (measure.queue, measure.depth) == ("contoso/x-servicebus-transfer/0", 0) and pair.syphon.running
    credential = tandem.SasCredential.from_connection_string("SharedAccessKeyName=me;SharedAccessKey=secret")
    assert "skn=me" in credential.get_token("http://contoso/orders").token


def test_a_sender_can_be_used_from_many_threads():
    primary, secondary = ScriptedNamespace("contoso"), ScriptedNamespace("backup")
    with tandem.PassiveReplication(primary, secondary) as replication:
        sender = replication.get_queue_sender("q")
        threads = [threading.Thread(target=lambda: [sender.send_messages(ServiceBusMessage("x")) for _ in range(10)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(primary.entity("q").messages) == 80


def test_a_receiver_is_iterated_and_an_outbox_takes_another_facade(tmp_path):
    now = lambda: 0  # noqa: E731
    primary, secondary = ScriptedNamespace("a", now), ScriptedNamespace("b", now)
    with tandem.ActiveReplication(primary, secondary, now_ms=now) as replication:
        with tandem.Outbox(tmp_path / "o.db", replication) as outbox:
            outbox.send("q", ServiceBusMessage("x", message_id="m"))
            outbox.flush(10)
        with replication.get_queue_receiver("q", max_wait_time=0.1) as receiver:
            received = []
            for message in receiver:
                received.append(message.message_id)
                receiver.complete_message(message)
    assert received == ["m"]


def test_a_callback_on_the_loop_may_not_wait_for_the_loop():
    caught = []

    class Thing:
        async def outer(self) -> None:
            try:
                stand_in.inner()
            except RuntimeError as error:
                caught.append(str(error))

        async def inner(self) -> None: ...

    stand_in = facade(Thing, __name__)()
    assert isinstance(stand_in, Facade)
    stand_in.outer()
    assert "on the loop" in caught[0]


def test_in_a_forked_process_what_the_parent_made_is_refused_and_what_is_made_there_works():
    primary, secondary = ScriptedNamespace("contoso"), ScriptedNamespace("backup")
    with tandem.PassiveReplication(primary, secondary) as replication:
        sender = replication.get_queue_sender("q")
        sender.send_messages(ServiceBusMessage("1"))

        def with_the_parents():
            with pytest.raises(RuntimeError, match="PassiveReplication was made before the process was forked"), replication:
                raise AssertionError("entered")
            with pytest.raises(RuntimeError, match="make one in each process"):
                sender.send_messages(ServiceBusMessage("2"))
            replication.__exit__(None, None, None)  # as a child does that leaves the parent's block: nothing is closed
            return "refused"

        def with_its_own():
            with tandem.PassiveReplication(primary, secondary) as own, own.get_queue_sender("q") as own_sender:
                own_sender.send_messages(ServiceBusMessage("2"))
            return len(primary.entity("q").messages)

        assert in_a_forked_process(with_the_parents) == "refused"
        assert in_a_forked_process(with_its_own) == "2"
        sender.send_messages(ServiceBusMessage("3"))
    assert len(primary.entity("q").messages) == 2


@pytest.mark.parametrize("registered", ["before", "after"])
def test_what_the_interpreters_end_closes_is_closed_whenever_that_was_registered(registered):
    """Handlers run in the reverse order, and the loop has one of its own."""
    program = f"""
import atexit, tandem
from azure.servicebus import ServiceBusMessage
from tests.client.scripted import ScriptedNamespace

def end():
    sender.send_messages(ServiceBusMessage("last"))
    replication.close()
    print("closed", len(west.entity("q").messages))

if "{registered}" == "before":
    atexit.register(end)
west = ScriptedNamespace("west")
replication = tandem.PassiveReplication(west, ScriptedNamespace("east"))
sender = replication.get_queue_sender("q")
if "{registered}" == "after":
    atexit.register(end)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (out.returncode, out.stdout, out.stderr) == (0, "closed 1\n", "")


def test_an_outbox_takes_messages_and_is_closed_when_the_interpreter_ends(tmp_path):
    program = f"""
import atexit, tandem
from azure.servicebus import ServiceBusMessage
from tests.client.scripted import ScriptedNamespace

def end():
    outbox.send("q", ServiceBusMessage("last"))
    outbox.close()
    print("closed")

outbox = tandem.Outbox({str(tmp_path / "o.db")!r}, west := ScriptedNamespace("west"))
outbox.open()
west.down()
outbox.send("q", ServiceBusMessage("first"))
atexit.register(end)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (out.returncode, out.stdout, out.stderr) == (0, "closed\n", "")
    with tandem.Outbox(tmp_path / "o.db", west := ScriptedNamespace("west")) as outbox:
        outbox.flush(10)
    assert len(west.entity("q").messages) == 2
    for late in (outbox.pending, outbox.dead_letters, outbox.open, lambda: outbox.retry_dead_letters([1])):
        with pytest.raises(tandem.NamespaceClosedError, match="the outbox is closed"):
            late()
