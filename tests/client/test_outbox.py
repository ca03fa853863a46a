from __future__ import annotations

import asyncio
import contextlib
import datetime
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusConnectionError

from tandem.amqp import decode_message
from tandem.client.errors import NamespaceClosedError
from tandem.client.outbox import Outbox, OutboxFullError, OutboxSettings
from tandem.client.outbox_store import OutboxEntry, PostgresOutboxStore, SqliteOutboxStore
from tandem.client.sdk_codec import payload_from_message
from tests.client.scripted import ScriptedNamespace, hanging, raising
from tests.postgres import running_engine
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
FAST = OutboxSettings(pause_min=0.005, pause_max=0.02, poll=0.02)


@pytest.fixture(scope="session")
def postgres():
    with running_engine() as engine:
        yield engine.primary.dsn()


@pytest.fixture(params=["sqlite", "postgres"])
def make_store(request, tmp_path: Path):
    if request.param == "sqlite":
        return lambda: SqliteOutboxStore(tmp_path / "outbox.db")
    conninfo = request.getfixturevalue("postgres")
    clear(conninfo)
    return lambda: PostgresOutboxStore(conninfo)


def clear(conninfo: str) -> None:
    import psycopg

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS tandem_outbox, tandem_outbox_dead")


@pytest.fixture
async def make_outbox(primary: ScriptedNamespace, make_store):
    made: list[Outbox] = []

    async def make(**options) -> Outbox:
        options.setdefault("settings", FAST)
        outbox = Outbox(options.pop("store", None) or make_store(), options.pop("target", primary), **options)
        made.append(outbox)
        await outbox.open()
        return outbox

    yield make
    for outbox in made:
        await outbox.close()


def bodies(namespace: ScriptedNamespace, path: str = "q") -> list[str]:
    return [stored.parts.body_sections[5:].decode() for stored in namespace.entity(path).messages]


async def test_a_message_is_delivered_as_it_was_sent(make_outbox, primary):
    outbox = await make_outbox()
    message = ServiceBusMessage(
        b"x", session_id="s", message_id="m", scheduled_enqueue_time_utc=datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC),
        application_properties={"n": 1, "when": datetime.datetime(2020, 1, 1)},
    )  # fmt: skip
    await outbox.send("q", message)
    await outbox.flush(10)
    (stored,) = primary.entity("q").messages
    assert decode_message(stored.payload) == decode_message(payload_from_message(message))
    assert await outbox.pending() == 0


async def test_sending_succeeds_while_the_target_is_down_and_delivery_follows(make_outbox, primary):
    primary.down()
    outbox = await make_outbox()
    for i in range(5):
        await outbox.send("q", ServiceBusMessage(str(i), session_id="s"))
    assert await outbox.pending() == 5
    await asyncio.sleep(0.05)
    primary.up()
    await outbox.flush(10)
    assert bodies(primary) == list("01234")
    assert outbox.counters.retries >= 1


async def test_order_is_kept_per_session_and_per_key(make_outbox, primary):
    outbox = await make_outbox()
    primary.behave("q", raising(lambda: ServiceBusConnectionError(message="blip")), times=2)
    for i in range(60):
        if i % 2:
            await outbox.send("q", ServiceBusMessage(f"s{i:02}", session_id="s"))
        else:
            await outbox.send("q", ServiceBusMessage(f"k{i:02}"), key="k")
    await outbox.flush(10)
    for prefix in "sk":
        mine = [body for body in bodies(primary) if body.startswith(prefix)]
        assert mine == sorted(mine) and len(mine) == 30


async def test_a_permanent_error_goes_to_the_local_dead_letters_and_holds_nobody_up(make_outbox, primary):
    outbox = await make_outbox()
    primary.entity("q").message_bytes_max = 10_000
    await outbox.send("q", [ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b" * 20_000, session_id="s", message_id="big"),
                            ServiceBusMessage("c", session_id="s")])  # fmt: skip
    await outbox.flush(10)
    assert bodies(primary) == ["a", "c"]
    (dead,) = await outbox.dead_letters()
    assert dead.entry.message_id == "big" and "MessageSizeExceededError" in dead.error
    primary.entity("q").message_bytes_max = 262_144
    assert await outbox.retry_dead_letters([dead.id]) == 1
    await outbox.flush(10)
    assert len(bodies(primary)) == 3
    assert await outbox.dead_letters() == []


async def test_one_entity_that_is_down_does_not_hold_up_another(make_outbox, primary):
    outbox = await make_outbox()
    primary.behave("down", raising(lambda: ServiceBusConnectionError(message="down")))
    await outbox.send("down", ServiceBusMessage("1"))
    await outbox.send("up", ServiceBusMessage("2"))
    await until(lambda: primary.entity("up").messages, 10)
    assert await outbox.pending() == 1
    primary.recover("down")
    await outbox.flush(10)


async def test_what_was_not_delivered_is_delivered_after_a_restart(make_outbox, primary, make_store):
    primary.down()
    first = await make_outbox()
    await first.send("q", ServiceBusMessage("x", message_id="m"))
    await first.close()
    with pytest.raises(NamespaceClosedError):
        await first.send("q", ServiceBusMessage("y"))
    primary.up()
    second = await make_outbox()
    await second.flush(10)
    assert primary.entity("q").ids == ["m"]


async def test_many_sends_at_once_share_a_transaction(make_outbox, primary):
    outbox = await make_outbox()
    written = []
    insert = outbox._store.insert
    outbox._store.insert = lambda entries: written.append(len(entries)) or insert(entries)
    await asyncio.gather(*(outbox.send("q", ServiceBusMessage(str(i))) for i in range(200)))
    await outbox.flush(20)
    assert len(primary.entity("q").messages) == 200
    assert len(written) < 20 and sum(written) == 200


async def test_the_outbox_is_bounded(make_outbox, primary):
    primary.down()
    outbox = await make_outbox(settings=OutboxSettings(messages_max=3))
    for i in range(3):
        await outbox.send("q", ServiceBusMessage(str(i)))
    with pytest.raises(OutboxFullError, match="messages_max"):
        await outbox.send("q", ServiceBusMessage("4"))


async def test_only_one_pump_delivers_and_another_takes_over(make_outbox, primary):
    first = await make_outbox()
    await first.send("q", ServiceBusMessage("1"))
    await first.flush(10)
    second = await make_outbox()
    await second.send("q", ServiceBusMessage("2"))
    await second.flush(10)
    assert second.counters.delivered == 0
    await first.close()
    await second.send("q", ServiceBusMessage("3"))
    await second.flush(10)
    assert bodies(primary) == ["1", "2", "3"]
    assert second.counters.delivered == 1


# -- the caller's own transaction ----------------------------------------------------------------------------------------


async def test_a_message_enrolled_in_the_callers_sqlite_transaction_exists_only_if_that_commits(primary, tmp_path):
    path = tmp_path / "application.db"
    async with Outbox(path, primary, settings=FAST) as outbox:
        application = sqlite3.connect(path)
        application.execute("CREATE TABLE orders (id INTEGER)")
        with application:
            application.execute("INSERT INTO orders VALUES (1)")
            outbox.enrol(application, "q", ServiceBusMessage("committed"))
        with pytest.raises(ZeroDivisionError), application:
            application.execute("INSERT INTO orders VALUES (2)")
            outbox.enrol(application, "q", ServiceBusMessage("rolled back"))
            raise ZeroDivisionError
        application.close()
        outbox.wake()
        await outbox.flush(10)
        assert bodies(primary) == ["committed"]


async def test_a_message_enrolled_in_the_callers_postgres_transaction_exists_only_if_that_commits(primary, postgres):
    import psycopg

    clear(postgres)
    async with Outbox(PostgresOutboxStore(postgres), primary, settings=FAST) as outbox:
        with psycopg.connect(postgres) as application:
            outbox.enrol(application, "q", ServiceBusMessage("committed"))
        with pytest.raises(ZeroDivisionError), psycopg.connect(postgres) as application:
            outbox.enrol(application, "q", ServiceBusMessage("rolled back"))
            raise ZeroDivisionError
        async with await psycopg.AsyncConnection.connect(postgres) as application:
            await outbox.enrol_async(application, "q", ServiceBusMessage("committed too"))
        await outbox.flush(10)
        assert sorted(bodies(primary)) == ["committed", "committed too"]


async def test_a_transaction_that_commits_late_is_delivered_though_later_ones_went_before(primary, postgres):
    import psycopg

    clear(postgres)
    async with Outbox(PostgresOutboxStore(postgres), primary, settings=FAST) as outbox:
        slow = psycopg.connect(postgres)
        outbox.enrol(slow, "q", ServiceBusMessage("early id"))
        await outbox.send("q", ServiceBusMessage("late id"))
        await until(lambda: primary.entity("q").messages, 10)
        slow.commit()
        slow.close()
        await until(lambda: len(primary.entity("q").messages) >= 2, 10)
        assert bodies(primary) == ["late id", "early id"]


# -- crashes -------------------------------------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from azure.servicebus import ServiceBusMessage
from tandem.client.outbox import Outbox
from tests.client.scripted import ScriptedNamespace

async def main():
    target = ScriptedNamespace("never")
    target.down()
    async with Outbox(sys.argv[1], target) as outbox:
        for i in range(10_000):
            await outbox.send("q", ServiceBusMessage("x", message_id=str(i), session_id="s"))
            sys.stdout.write(f"{i}\\n")
            sys.stdout.flush()

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [1, 7, 40])
async def test_sigkill_while_sending_loses_nothing_that_was_acknowledged(primary, tmp_path, after):
    path = tmp_path / "outbox.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(after)]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    acknowledged += [int(line) for line in writer.stdout.read().split()]
    async with Outbox(path, primary, settings=FAST) as outbox:
        await outbox.flush(20)
    ids = [int(i) for i in primary.entity("q").ids]
    assert ids == sorted(set(ids))
    assert set(acknowledged) <= set(ids) and len(ids) - len(acknowledged) <= 1


async def test_a_crash_between_acceptance_and_removal_doubles_the_message_under_one_id(primary, tmp_path):
    """The only window there is; duplicate detection on the entity closes it."""
    store = SqliteOutboxStore(tmp_path / "outbox.db")
    store.open()
    message = ServiceBusMessage("x", message_id="m")
    store.insert([OutboxEntry("q", None, "m", payload_from_message(message), 0)])
    store.close()
    primary.entity("q").duplicate_detection = True
    primary.store(primary.entity("q"), payload_from_message(message))
    async with Outbox(tmp_path / "outbox.db", primary, settings=FAST) as outbox:
        await outbox.flush(10)
    assert primary.entity("q").ids == ["m"]


# -- combined ------------------------------------------------------------------------------------------------------------


async def test_with_both_namespaces_of_a_pair_down_the_outbox_keeps_the_message(make_pair, primary, secondary, tmp_path):
    pair = await make_pair()
    primary.down()
    secondary.down()
    async with Outbox(tmp_path / "outbox.db", pair, settings=FAST) as outbox:
        await outbox.send("q", ServiceBusMessage("x", message_id="m"))
        await until(lambda: outbox.counters.retries, 10)
        secondary.up()
        await outbox.flush(10)
    assert pair.counters.diverted == 1
    assert await_none(primary)


def await_none(primary: ScriptedNamespace) -> bool:
    return not primary.entity("q").messages


async def test_a_missing_entity_is_a_permanent_error(make_outbox, primary):
    outbox = await make_outbox()
    primary.behave("gone", raising(lambda: MessagingEntityNotFoundError(message="gone")))
    await outbox.send("gone", ServiceBusMessage("x"))
    await outbox.flush(10)
    assert len(await outbox.dead_letters()) == 1


async def test_what_was_delivered_is_not_sent_again_while_the_disk_cannot_be_written_and_is_crossed_off_afterwards(primary, tmp_path):
    path, told = tmp_path / "outbox.db", []
    async with Outbox(path, primary, settings=FAST, on_event=lambda event: told.append((event.kind, event.path))) as outbox:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("CREATE TRIGGER full BEFORE DELETE ON tandem_outbox BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END")
        for number in range(5):
            await outbox.send("q", ServiceBusMessage(f"{number}", session_id="s"))  # also after a transaction of the pump has failed
        await until(lambda: told.count(("outbox-waiting", "q")) > 10, what="tried several times")
        sent = len(primary.entity("q").messages)
        assert sent <= 5 and await outbox.pending() == 5
        other.execute("DROP TRIGGER full")
        other.close()
        await asyncio.wait_for(outbox.flush(), 10)
    assert bodies(primary) == ["0", "1", "2", "3", "4"]


async def test_a_send_that_met_a_full_disk_fails_alone(primary, tmp_path):
    store = SqliteOutboxStore(tmp_path / "outbox.db")
    primary.down()
    async with Outbox(store, primary, settings=FAST) as outbox:
        await outbox.send("q", ServiceBusMessage("kept"))
        pages = await outbox._on_thread(lambda: store._db.execute("PRAGMA page_count").fetchone()[0])
        await outbox._on_thread(lambda: store._db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
        with pytest.raises(sqlite3.OperationalError, match="full"):
            await outbox.send("q", ServiceBusMessage("x" * 100_000))
        await outbox._on_thread(lambda: store._db.execute("PRAGMA max_page_count = 1000000").fetchone())
        await outbox.send("q", ServiceBusMessage("kept too"))
        assert await outbox.pending() == 2
        primary.up()
        await asyncio.wait_for(outbox.flush(), 10)
    assert sorted(bodies(primary)) == ["kept", "kept too"]


@pytest.mark.parametrize("becomes", ["nothing", "an empty file", "a copy"])
async def test_an_outbox_whose_file_is_taken_away_acknowledges_nothing_more_and_delivers_what_it_has(primary, tmp_path, becomes):
    path = tmp_path / "outbox.db"
    primary.down()
    async with Outbox(path, primary, settings=FAST) as outbox:
        await outbox.send("q", ServiceBusMessage("kept"))
        copy = path.read_bytes()
        path.unlink()
        if becomes != "nothing":
            path.write_bytes(copy if becomes == "a copy" else b"")
        with pytest.raises(sqlite3.OperationalError, match="was removed or replaced while the outbox is open"):
            await outbox.send("q", ServiceBusMessage("lost"))
        primary.up()
        await outbox.flush(10)
    assert bodies(primary) == ["kept"]


async def test_an_outbox_that_begins_anew_where_one_was_says_so(primary, tmp_path, caplog):
    path = tmp_path / "outbox.db"
    async with Outbox(path, primary, settings=FAST) as outbox:
        await outbox.send("q", ServiceBusMessage("m"))
        await outbox.flush(10)
    async with Outbox(path, primary, settings=FAST):
        assert not caplog.records
    path.write_bytes(b"")
    async with Outbox(path, primary, settings=FAST):
        assert "outbox.db is a new outbox, but there was one here before" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["down", "hung"])
async def test_one_entity_with_more_messages_than_are_read_at_a_time_does_not_hold_up_another(make_outbox, primary, trouble):
    outbox = await make_outbox(settings=OutboxSettings(pause_min=0.005, pause_max=0.02, poll=0.02, window_max=20, batch_max=5))
    if trouble == "down":
        primary.behave("away", raising(lambda: ServiceBusConnectionError(message="down")))
    else:
        primary.behave("away", hanging)
    for number in range(100):
        await outbox.send("away", ServiceBusMessage(f"{number}", session_id=f"{number % 7}"))
    for number in range(100):
        await outbox.send("up", ServiceBusMessage(f"{number}", session_id="s"))
    await until(lambda: len(primary.entity("up").messages) == 100, 300)
    assert await outbox.pending() == 100 and bodies(primary, "up") == [str(number) for number in range(100)]
    primary.recover("away")
    await outbox.flush(300)
    arrived = list(map(int, bodies(primary, "away")))
    assert sorted(arrived) == list(range(100))
    assert all([n for n in arrived if n % 7 == session] == list(range(session, 100, 7)) for session in range(7))


async def test_large_messages_are_read_a_few_at_a_time(make_outbox, primary):
    outbox = await make_outbox(settings=OutboxSettings(pause_min=0.005, pause_max=0.02, poll=0.02, window_bytes_max=250_000))
    primary.behave("q", hanging)
    for number in range(10):
        await outbox.send("q", ServiceBusMessage(f"{number}" * 100_000, session_id="s"))
    await until(lambda: outbox._window.lanes, what="some are read")
    await asyncio.sleep(1)
    assert len(outbox._window.known()) == 3
    primary.recover("q")
    await outbox.flush(300)
    assert [chr(stored.payload[-1]) for stored in primary.entity("q").messages] == list("0123456789")


async def test_as_many_senders_are_open_as_may_be_however_many_entities_there_are(make_outbox, primary):
    outbox = await make_outbox(settings=OutboxSettings(pause_min=0.005, pause_max=0.02, poll=0.02, senders_max=3, in_flight_max=2))
    most = 0
    for number in range(40):
        await outbox.send(f"q{number % 20}", ServiceBusMessage(f"{number}"))
        await outbox.flush(30)
        most = max(most, len(outbox._target._senders))
    assert most == 3
    assert all(len(primary.entity(f"q{number}").messages) == 2 for number in range(20))


async def test_an_outbox_goes_on_after_it_has_lost_its_connection_to_postgres_and_one_process_delivers(primary, postgres):
    import psycopg

    def hang_up() -> None:
        others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
        with psycopg.connect(postgres, autocommit=True) as administrator:
            administrator.execute(f"SELECT pg_terminate_backend(pid, 10000) {others}")

    clear(postgres)
    async with (
        Outbox(PostgresOutboxStore(postgres), primary, settings=FAST) as first,
        Outbox(PostgresOutboxStore(postgres), primary, settings=FAST) as second,
    ):
        for number in range(10):
            for outbox in (first, second):
                try:
                    await outbox.send("q", ServiceBusMessage(f"{number}", session_id="s"))
                except psycopg.OperationalError:  # the one that finds out
                    await outbox.send("q", ServiceBusMessage(f"{number}", session_id="s"))
            hang_up()
        await until(lambda: len(primary.entity("q").messages) >= 20, what="all are delivered")
        with contextlib.suppress(psycopg.OperationalError):
            await first.flush(30)
        await first.flush(30)
    arrived = list(map(int, bodies(primary)))
    assert set(arrived) == set(range(10)) and len(arrived) >= 20
