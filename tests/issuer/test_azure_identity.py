"""azure-identity, unmodified, gets tokens from our issuer, and the Service Bus clients work with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import ClientSecretCredential
from azure.identity.aio import ClientSecretCredential as AsyncClientSecretCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.cli.broker_process import BrokerProcess
from tests.issuer.issuer_process import IssuerProcess, add_client
from tests.tokens.minting import OWNER

SCOPE = "https://servicebus.azure.net/.default"
JS = Path(__file__).parents[1] / "js"
NODE = shutil.which("node") is not None and (JS / "node_modules" / "@azure" / "identity").is_dir()


class House:
    def __init__(self, issuer: IssuerProcess, broker: BrokerProcess, secret: str) -> None:
        self.issuer = issuer
        self.broker = broker
        self.secret = secret
        self.ca = str(broker.directory / broker.line("CA file:"))
        self.host = f"localhost:{broker.port}"
        self.endpoint = f"sb://localhost:{broker.port}"

    def credential(self, secret: str | None = None) -> ClientSecretCredential:
        return ClientSecretCredential(
            "tandem",
            "shop",
            secret or self.secret,
            authority=self.issuer.authority,
            disable_instance_discovery=True,
            connection_verify=self.issuer.ca,
        )

    def async_credential(self) -> AsyncClientSecretCredential:
        return AsyncClientSecretCredential("tandem", "shop", self.secret, authority=self.issuer.authority, connection_verify=self.issuer.ca)


@pytest.fixture(scope="module")
def house(module_path: Path) -> Iterator[House]:
    secret = add_client(module_path, "shop", "--role", OWNER)
    with IssuerProcess(module_path) as issuer:
        (module_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n[[queue]]\nname = "js"\n' + issuer.trusted())
        with BrokerProcess(module_path, "--port", "0", "--data", "data") as broker:
            yield House(issuer, broker, secret)


@pytest.mark.slow
def test_a_token_is_good_for_three_hours_and_each_has_its_line_of_audit(house: House) -> None:
    token = house.credential().get_token(SCOPE)
    assert 3 * 3600 - 60 < token.expires_on - time.time() <= 3 * 3600
    last = house.issuer.audit[-1]
    assert (last["event"], last["client"], last["audience"]) == ("issued", "shop", "https://servicebus.azure.net/")
    said = jwt.decode(token.token, options={"verify_signature": False})
    assert (last["token_id"], last["expires_at"]) == (said["jti"], said["exp"])
    assert token.token not in json.dumps(house.issuer.audit)


def test_a_wrong_secret_is_refused_and_written_down(house: House) -> None:
    with pytest.raises(ClientAuthenticationError, match="no client with this id and this secret"):
        house.credential("wrong").get_token(SCOPE)
    assert (house.issuer.audit[-1]["event"], house.issuer.audit[-1]["reason"]) == ("refused", "invalid_client")


def test_the_clients_work_unmodified(house: House) -> None:
    options: dict[str, Any] = {"custom_endpoint_address": house.endpoint, "connection_verify": house.ca}
    with house.credential() as credential:
        with ServiceBusClient("localhost", credential, **options) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("with an issued token"))
            with client.get_queue_receiver("orders") as receiver:
                (found,) = receiver.receive_messages(1, max_wait_time=10)
                receiver.complete_message(found)
                assert str(found) == "with an issued token"
        with ServiceBusAdministrationClient(house.host, credential, connection_verify=house.ca) as admin:
            admin.create_queue("made")
            assert admin.get_queue("made").name == "made"
            admin.delete_queue("made")


async def test_the_async_clients_work_unmodified(house: House) -> None:
    options: dict[str, Any] = {"custom_endpoint_address": house.endpoint, "connection_verify": house.ca}
    async with house.async_credential() as credential:
        async with AsyncServiceBusClient("localhost", credential, **options) as client:
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("async"))
            async with client.get_queue_receiver("orders") as receiver:
                (found,) = await receiver.receive_messages(1, max_wait_time=10)
                await receiver.complete_message(found)
                assert str(found) == "async"
        async with AsyncAdministrationClient(house.host, credential, connection_verify=house.ca) as admin:
            await admin.create_queue("made-async")
            await admin.delete_queue("made-async")


@pytest.mark.js
@pytest.mark.skipif(not NODE, reason="MISSING: Node.js 20 and the packages of tests/js. Install Node.js, then run `make js`")
def test_the_javascript_clients_work_unmodified(house: House, tmp_path: Path) -> None:
    both = tmp_path / "trusted.pem"
    both.write_text(Path(house.ca).read_text() + Path(house.issuer.ca).read_text())
    command = ["node", str(JS / "identity.mjs"), house.issuer.authority, "tandem", "shop", house.secret, house.host, "js"]
    done = subprocess.run(
        command, env=os.environ | {"NODE_EXTRA_CA_CERTS": str(both)}, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"minutes": 180, "body": "from JavaScript", "made": True, "refused": True}
