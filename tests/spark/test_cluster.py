"""On a real cluster, everything that can die is killed in the middle of a drain: nothing lost, nothing doubled, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.brokers import Broker
from tests.spark.cluster import Cluster
from tests.spark.house import BACKLOG, EXACT, connect, counts, create_queue, diverted, ids, send, take_all, verdict
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
QUEUES = 4
LONG = os.environ.get("TANDEM_LONG_TESTS") == "1"


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[Cluster]:
    with Cluster(module_path) as cluster:
        yield cluster


class Driver:
    """`tandem syphon --once` on the cluster, started as often as it is killed."""

    def __init__(self, cluster: Cluster, primary: Broker, secondary: Broker, home: Path, batch: int, conf: str = "") -> None:
        self._conf = conf
        self._command = [
            sys.executable, "-m", "tandem", "syphon", "--primary", primary.connection_string, "--secondary", secondary.connection_string,
            "--name", "contoso", "--once", "--json", "--checkpoint", str(home / "checkpoint"), "--master", cluster.master,
            "--batch", str(batch),
        ]  # fmt: skip
        self._log = home / "driver.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Driver:
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory 512m --executor-memory 700m {self._conf} pyspark-shell"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=environ, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        return self

    def kill(self) -> None:
        """Python and JVM of the driver, at once."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def finish(self, seconds: float) -> dict[str, object]:
        assert self.process is not None
        out, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, self._log.read_text()[-4000:]
        return dict(json.loads(out.splitlines()[-1]))


def left_in(secondary: Broker) -> int:
    with connect(secondary) as client:
        found = [client.request(f"{BACKLOG}/{n}", "com.tandem:message-counts", {}) for n in range(QUEUES)]
    return sum(int(one["total"]) for one in found if one is not None)


def kill_when(secondary: Broker, below: int, kill: Callable[[], object], what: str) -> None:
    """In the middle of a batch: messages are leaving right now."""
    wait_until(lambda: left_in(secondary) < below, f"{what}: the backlog below {below}", 200)
    assert left_in(secondary) > 0, f"{what} came too late: the backlog was empty"
    kill()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "detection",
    [
        pytest.param(True, id="with-duplicate-detection"),
        pytest.param(False, id="without", marks=pytest.mark.skipif(not LONG, reason="on demand: TANDEM_LONG_TESTS=1")),
    ],
)
def test_whatever_dies_in_the_middle_every_message_comes_home(
    cluster: Cluster, mortal: Broker, mortal_too: Broker, tmp_path: Path, detection: bool, record_property: Callable[[str, object], None]
) -> None:
    primary, secondary = mortal, mortal_too
    create_queue(primary, "orders", requires_duplicate_detection=detection)
    create_queue(secondary, *(f"{BACKLOG}/{n}" for n in range(QUEUES)))
    each = 10_000
    for queue in range(QUEUES):
        send(secondary, f"{BACKLOG}/{queue}", diverted(each, "orders", f"q{queue}-", size=1_000))
    total = QUEUES * each
    driver = Driver(cluster, primary, secondary, tmp_path, batch=2_000).start()

    def outage(broker: Broker) -> None:
        broker.kill()
        time.sleep(1.0)  # long enough for tasks to notice
        broker.start()

    def replace_driver() -> None:
        driver.kill()
        driver.start()

    story: list[tuple[str, Callable[[], object]]] = [
        ("a Python worker", cluster.kill_python_worker),
        ("an executor", cluster.kill_executor),
        ("the driver", replace_driver),
        ("the secondary", lambda: outage(secondary)),
        ("the primary", lambda: outage(primary)),
        ("another Python worker", cluster.kill_python_worker),
        ("the driver again", replace_driver),
    ]
    for step, (what, kill) in enumerate(story):
        kill_when(secondary, total - (step + 1) * total // (len(story) + 2), kill, what)
    last = driver.finish(400)
    assert (last["remaining"], last["dead_lettered"]) == (0, 0)
    found = verdict((f"q{queue}-{n}" for queue in range(QUEUES) for n in range(each)), ids(take_all(primary, "orders")))
    record_property("duplicated", found["duplicated"])
    if detection:
        assert found == EXACT
    else:
        # Repeats are the price of crashes where nobody removes them; they stay within what was under way when something died.
        assert (found["lost"], found["unexpected"]) == (0, 0)
        assert found["duplicated"] <= len(story) * QUEUES * 2_000
    with connect(secondary) as client:
        leases = [client.request(f"{BACKLOG}/{n}", "com.tandem:list-leases", {}) for n in range(QUEUES)]
    assert leases == [None] * QUEUES
    assert all(counts(secondary, f"{BACKLOG}/{n}")["total"] == 0 for n in range(QUEUES))


SPECULATION = " ".join(
    f"--conf spark.speculation{key}={value}"
    for key, value in (("", "true"), (".interval", "200ms"), (".multiplier", "1.2"), (".quantile", "0.25"), (".minTaskRuntime", "1s"))
)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not LONG, reason="on demand: TANDEM_LONG_TESTS=1; tests/spark/syphon/test_task.py stops attempts without a cluster")
def test_with_speculation_and_a_stalled_executor_nothing_is_doubled_also_without_duplicate_detection(
    cluster: Cluster, mortal: Broker, mortal_too: Broker, tmp_path: Path
) -> None:
    """A Python worker is stopped in the middle; Spark starts a second attempt on the other executor, which waits for the claim to lapse."""
    primary, secondary = mortal, mortal_too
    create_queue(primary, "speculative")
    create_queue(secondary, *(f"{BACKLOG}/{n}" for n in range(QUEUES)))
    each = 5_000
    for queue in range(QUEUES):
        send(secondary, f"{BACKLOG}/{queue}", diverted(each, "speculative", f"q{queue}-", size=1_000))
    total = QUEUES * each
    driver = Driver(cluster, primary, secondary, tmp_path, batch=total, conf=SPECULATION).start()
    wait_until(lambda: 0 < left_in(secondary) < total and cluster.python_workers(), "messages are leaving", 200)
    stopped = cluster.stop_python_worker()
    last = driver.finish(300)
    cluster.go_on(stopped)
    assert (last["remaining"], last["dead_lettered"]) == (0, 0)
    expected = (f"q{queue}-{n}" for queue in range(QUEUES) for n in range(each))
    assert verdict(expected, ids(take_all(primary, "speculative"))) == EXACT
