"""A sender faster than the disk: the broker's memory stays bounded, and nothing that was accepted is missing."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

from tandem.amqp import encode_message
from tandem.engine_client.blocking import BlockingClient, Endpoint
from tandem.model.sas_token import make_token
from tests.cli.broker_process import BrokerProcess

CONFIG = """
[limits]
ingress_bytes_in_flight_max = 2097152
link_credit = 100000

[stores]
count = 1

[[queue]]
name = "orders"
"""


def resident_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024


def test_a_stalled_disk_stops_the_reading_not_the_broker(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml") as broker:
        base = f"http://localhost:{broker.port}/"
        token = make_token(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time() * 1000) + 600_000)
        wish = json.dumps({"kind": "store-slow", "store": 0, "delay_ms": 3000, "for_ms": 4000}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{base}$tandem/faults", wish, {"Authorization": token}, method="POST"), timeout=10)
        before = resident_bytes(broker.process.pid)
        payload = encode_message(properties={"message-id": "x"}, body=[b"z" * 65_536])
        with BlockingClient(Endpoint.parse(broker.connection_string), timeout=60) as client:
            sender = client.sender("orders", max_in_flight=100_000)
            for number in range(1_500):  # about 100 MB against a limit of 2
                sender.send(payload, number)
            sender.drain(60)
            assert sender.accepted == 1_500
            assert sender.failed == []
        assert resident_bytes(broker.process.pid) - before < 80_000_000
