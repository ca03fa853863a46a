"""Relays as entities: made by the configuration, over ATOM and by commands; kept; and gone when they are deleted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import aiohttp
import pytest
import websockets

from tandem.aio.relay import RelayEndpoint, RelayListener, RelayRefusedError, RelaySender
from tandem.client.tokens import SasCredential
from tests.cli.broker_process import BrokerProcess
from tests.relay.house import accept, relay, relay_house

XML = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<HybridConnectionDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{}'
    "</HybridConnectionDescription></content></entry>"
)
RULE = (
    "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Listen</AccessRights></Rights><KeyName>ours</KeyName>"
    "<PrimaryKey>first-key</PrimaryKey><SecondaryKey>second-key</SecondaryKey></AuthorizationRule></AuthorizationRules>"
)


async def test_atom_creates_reads_changes_lists_and_deletes_hybrid_connections() -> None:
    async with relay_house() as house:
        headers = {"Authorization": house.token(), "X-PROCESS-AT": "ServiceBus"}
        uri = house.http("a/b") + "?api-version=2016-07"
        async with aiohttp.ClientSession(headers=headers) as http:
            body = ENTRY.format(f"<RequiresClientAuthorization>false</RequiresClientAuthorization>{RULE}<UserMetadata>mine</UserMetadata>")
            async with http.put(uri, data=body) as made:
                assert made.status == 201
            async with http.put(uri, data=body) as again:
                assert again.status == 409
            ours = RelayEndpoint(house.host, "a/b", SasCredential("ours", "first-key"), tls=False)
            async with RelayListener(ours), http.get(uri) as found:
                content = ElementTree.fromstring(await found.text())
                told = {item.tag.removeprefix(XML): item.text for item in content.iter() if item.tag.startswith(XML)}
            assert (told["ListenerCount"], told["RequiresClientAuthorization"], told["UserMetadata"]) == ("1", "false", "mine")
            assert told["CreatedAt"] and told["UpdatedAt"] and told["KeyName"] == "ours"
            async with http.put(uri, data=ENTRY.format(""), headers={"If-Match": "*"}) as changed:
                assert changed.status == 200 and "mine" not in await changed.text()
            async with http.get(house.http("$Resources/HybridConnections")) as listed:
                assert (await listed.text()).count("<HybridConnectionDescription") == 1
            async with http.delete(uri) as deleted:
                assert deleted.status == 200
            async with http.get(uri) as gone:
                assert gone.status == 404


async def test_names_are_shared_with_queues_and_topics() -> None:
    async with relay_house(relay("taken")) as house:
        headers = {"Authorization": house.token(), "X-PROCESS-AT": "ServiceBus"}
        queue = ENTRY.replace("HybridConnectionDescription", "QueueDescription").format("")
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.put(house.http("other"), data=queue) as made:
                assert made.status == 201
            async with http.put(house.http("other"), data=ENTRY.format("")) as refused:
                assert refused.status == 409
            async with http.put(house.http("taken"), data=queue) as refused:
                assert refused.status >= 400


async def test_deleting_a_relay_in_use_tells_listeners_and_senders_1001() -> None:
    async with relay_house(relay("hyco")) as house, house.listen("hyco") as channel:
        connecting = asyncio.ensure_future(house.connect("hyco").__aenter__())
        listener = await accept(channel)
        sender = await connecting
        await house.server.admins[0].relays.delete("hyco")
        for socket in (channel, listener, sender):
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await asyncio.wait_for(socket.recv(), 10)
            assert closed.value.rcvd.code == 1001
        with pytest.raises(websockets.InvalidStatus) as refused:
            await house.connect("hyco")
        assert refused.value.response.status_code == 404


CONFIGURATION = """
[[relay]]
name = "web"
user_metadata = "from the file"

[[relay.authorization_rule]]
name = "service"
rights = ["Listen"]

[[relay]]
name = "open/to/all"
requires_client_authorization = false
"""


def tandem(broker: BrokerProcess, *arguments: str) -> str:
    environ = os.environ | {"TANDEM_CONNECTION_STRING": broker.connection_string}
    done = subprocess.run([sys.executable, "-m", "tandem", *arguments], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
async def test_relays_of_the_configuration_and_of_commands_are_kept_and_imported(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIGURATION)
    arguments = ("--data", str(tmp_path / "data"), "--port", "0", "--config", str(tmp_path / "tandem.toml"))
    with BrokerProcess(tmp_path, *arguments) as broker:
        tandem(broker, "relay", "create", "made/later", "--rule", "clients=Send", "--user-metadata", "by hand")
        tandem(broker, "relay", "update", "made/later", "--no-client-authorization")
        shown = json.loads(tandem(broker, "relay", "show", "made/later", "--json"))
        assert (shown["requires_client_authorization"], shown["user_metadata"]) == (False, "by hand")
        assert shown["authorization_rules"] == [{"name": "clients", "rights": ["Send"]}]
        tandem(broker, "relay", "create", "short-lived")
        tandem(broker, "relay", "delete", "short-lived", "--yes")
        broker.stop()
    with BrokerProcess(tmp_path, *arguments) as broker:
        listed = json.loads(tandem(broker, "relay", "list", "--json"))
        assert {one["name"]: one["user_metadata"] for one in listed} == {
            "web": "from the file",
            "open/to/all": None,
            "made/later": "by hand",
        }
        assert [one["rights"] for one in listed[-1]["authorization_rules"]] == [["Listen"]]
        key = next(item for item in json.loads(tandem(broker, "keys", *arguments[:2], *arguments[4:], "--json")) if item["entity"] == "web")
        service = RelayEndpoint(f"localhost:{broker.port}", "web", SasCredential("service", key["primary_key"]), tls=False)
        async with RelayListener(service) as listener, RelaySender(service) as sender:
            await listener.wait_online(10)
            with pytest.raises(RelayRefusedError):  # Listen is not Send
                await sender.open()
        text = tandem(broker, "import", "--from", broker.connection_string, "--to", "-", "--keys", "--ca-file", broker.line("CA file:"))
        assert '[[relay]]\nname = "made/later"\nrequires_client_authorization = false\nuser_metadata = "by hand"' in text
        assert "[[relay.authorization_rule]]" in text and key["primary_key"] in text
