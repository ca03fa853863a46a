"""An issuer in the process of its broker: `[issuer]`, one process, one certificate, one directory to keep."""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import ClientSecretCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from tandem.cli.configuration.settings import Flags, load
from tandem.model.entity import Right
from tandem.model.errors import ConfigurationError
from tandem.testing.ports import free_port
from tests.cli.broker_process import BrokerProcess
from tests.issuer.issuer_process import tandem
from tests.tokens.minting import OWNER
from tests.waiting import wait_until

SCOPE = "https://servicebus.azure.net/.default"


def add(directory: Path, name: str, *options: str) -> str:
    shown = json.loads(tandem(directory, "issuer", "client", "add", name, "--data", "data", "--json", *options))
    return str(shown["client_secret"])


def credential(broker: BrokerProcess, name: str, secret: str) -> ClientSecretCredential:
    url, _, rest = broker.line("issuer:").partition(", tenant ")
    ca = str(broker.directory / broker.line("CA file:"))
    return ClientSecretCredential(
        rest.partition(";")[0], name, secret, authority=url, disable_instance_discovery=True, connection_verify=ca
    )


def client(broker: BrokerProcess, who: ClientSecretCredential, retries: int = 3) -> ServiceBusClient:
    options: dict[str, Any] = {
        "custom_endpoint_address": f"sb://localhost:{broker.port}",
        "connection_verify": str(broker.directory / broker.line("CA file:")),
        "retry_total": retries,
    }
    return ServiceBusClient("localhost", who, **options)


@pytest.mark.slow
def test_the_clients_of_azure_work_with_one_process_through_its_restart_and_until_they_are_removed(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "tandem.toml").write_text(
        f'[issuer]\nport = {port}\ntenant = "house"\n[[issuer.grant]]\nsubject = "till"\nrights = ["Send"]\nentities = ["orders"]\n'
        '[[queue]]\nname = "orders"\n[[queue]]\nname = "other"\n[[relay]]\nname = "line"\n'
    )
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--key", "a-key") as broker:
        owner, till = add(tmp_path, "shop", "--role", OWNER), add(tmp_path, "till")
        shop = credential(broker, "shop", owner)
        with client(broker, shop) as bus, bus.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with client(broker, credential(broker, "till", till)) as bus:
            with bus.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("two"))
            with pytest.raises(ServiceBusError), bus.get_queue_sender("other") as sender:
                sender.send_messages(ServiceBusMessage("not allowed"))
        ca = str(tmp_path / broker.line("CA file:"))
        with ServiceBusAdministrationClient(f"localhost:{broker.port}", shop, connection_verify=ca) as admin:
            assert admin.get_queue_runtime_properties("orders").active_message_count == 2
        with pytest.raises(ClientAuthenticationError, match="no client with this id"):
            credential(broker, "shop", "guess").get_token(SCOPE)
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(30) == 0
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--key", "a-key") as broker:
        with client(broker, shop) as bus, bus.get_queue_receiver("orders") as receiver:  # with the token of before the restart
            found = receiver.receive_messages(2, max_wait_time=10)
            assert [str(message) for message in found] == ["one", "two"]
        token = {"ServiceBusAuthorization": f"Bearer {shop.get_token(SCOPE).token}"}
        uri = f"ws://localhost:{broker.port}/$hc/line?sb-hc-action=listen"
        with connect(uri, additional_headers=token, proxy=None) as listening:
            tandem(tmp_path, "issuer", "client", "remove", "shop", "--data", "data")
            with pytest.raises(ConnectionClosedError) as cut:
                listening.recv(20)
        assert cut.value.rcvd is not None and cut.value.rcvd.code == 1008 and "RevokedClient" in cut.value.rcvd.reason
        with pytest.raises(ServiceBusError), client(broker, shop, retries=0) as bus, bus.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("still"))
        asking = http.client.HTTPConnection("localhost", broker.port, timeout=30)
        asking.request("GET", "/orders?api-version=2021-05", headers={"Authorization": token["ServiceBusAuthorization"]})
        answer = asking.getresponse()
        assert answer.status == 401 and b"RevokedClient" in answer.read()
        asking.close()
    audit = [json.loads(line) for line in (tmp_path / "data" / "issuer-audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["client"]) for line in audit] == [
        ("issued", "shop"),
        ("issued", "till"),
        ("refused", "shop"),
        ("issued", "shop"),
    ]


@pytest.mark.slow
def test_it_runs_once_beside_workers_which_all_believe_it_and_hear_of_those_who_are_removed(tmp_path: Path) -> None:
    queues = "".join(f'[[queue]]\nname = "q{number}"\n' for number in range(4))
    (tmp_path / "tandem.toml").write_text(f"workers = 2\n[issuer]\nport = {free_port()}\n{queues}")
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--key", "a-key", log=tmp_path / "log") as broker:
        shop = credential(broker, "shop", add(tmp_path, "shop", "--role", OWNER))
        for number in range(4):
            with client(broker, shop) as bus, bus.get_queue_sender(f"q{number}") as sender:
                sender.send_messages(ServiceBusMessage("one"))
        tandem(tmp_path, "issuer", "client", "remove", "shop", "--data", "data")

        def refused(queue: str) -> bool:
            try:
                with client(broker, shop, retries=0) as bus, bus.get_queue_sender(queue) as sender:
                    sender.send_messages(ServiceBusMessage("still"))
            except ServiceBusError:
                return True
            return False

        for number in range(4):
            wait_until(lambda number=number: refused(f"q{number}"), "whichever worker has the queue")  # type: ignore[misc]
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: (tmp_path / "log").read_text().count("configuration read again") == 2, "both workers")
        assert "needs a restart" not in (tmp_path / "log").read_text()
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(30) == 0


def test_its_table_may_be_empty_and_mistakes_are_told_with_their_place(tmp_path: Path) -> None:
    def read(text: str) -> Any:
        (tmp_path / "tandem.toml").write_text(text)
        return load(Flags(), {}, tmp_path).issuer

    assert read('[[queue]]\nname = "q"\n') is None
    empty = read("[issuer]\n")
    assert (empty.port, empty.lifetime_ms, empty.tenant, empty.grants) == (5443, 10_800_000, "tandem", ())
    full = read('[issuer]\nlifetime = "1h"\nper_minute = 5\n[[issuer.grant]]\nrole = "clerk"\nrights = ["Listen"]\n')
    assert (full.lifetime_ms, full.requests_per_minute, full.grants[0].rights) == (3_600_000, 5, frozenset({Right.LISTEN}))
    for text, words in (
        ('[issuer]\nlifetime = "1s"\n', r"tandem.toml:2: issuer.lifetime: found \"1s\""),
        ('[issuer]\nurl = "http://issuer.example"\n', "issuer.url: found"),
        ('[issuer]\nrotate_every = "10m"\n', "publish_ahead: must not be longer"),
        ("[issuer]\nsecret = 1\n", "there is no such setting here"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            read(text)
