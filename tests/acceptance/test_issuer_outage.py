"""The issuer is killed: holders of tokens go on to their end and no further, those with a key sign for themselves, and all come back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import jwt
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tandem.client.tokens import SERVICE_BUS_SCOPE, HttpIssuer, IssuerCredential, SasCredential, TokenUnavailableError
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw, Refused, message
from tests.issuer.issuer_process import IssuerProcess, add_client, tandem
from tests.tokens.minting import OWNER
from tests.waiting import until

LIFETIME = 8


class House:
    def __init__(self, directory: Path, issuer: IssuerProcess, broker: BrokerProcess, secret: str) -> None:
        self.directory = directory
        self.issuer = issuer
        self.broker = broker
        self.secret = secret

    def http_issuer(self, client: str = "shop") -> HttpIssuer:
        return HttpIssuer(f"{self.issuer.authority}/tandem/oauth2/v2.0/token", client, self.secret, ca=self.issuer.ca)

    def credential(self, fallback: bool = False) -> IssuerCredential:
        key = SasCredential.from_connection_string(self.broker.connection_string) if fallback else None
        return IssuerCredential(self.http_issuer(), scope=SERVICE_BUS_SCOPE, fallback=key, retry_pause=0.5, retry_pause_max=0.5)

    async def send(self, credential: IssuerCredential, text: str) -> None:
        host = f"localhost:{self.broker.port}"
        async with ServiceBusClient(host, credential, use_tls=False, retry_total=0) as client, client.get_queue_sender("orders") as sender:  # type: ignore[arg-type]
            await sender.send_messages(ServiceBusMessage(text))


@pytest.fixture
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    """Tokens last the usual three hours, unless a test wants to see their end."""
    lifetime = getattr(request, "param", "3h")
    secret = add_client(tmp_path, "shop", "--role", OWNER)
    with IssuerProcess(tmp_path, "--lifetime", lifetime) as issuer:
        (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n' + issuer.trusted('refresh = "1s"', 'refetch_min = "0s"'))
        with BrokerProcess(tmp_path, "--port", "0", "--data", "data", log=tmp_path / "broker-stderr.txt") as broker:
            yield House(tmp_path, issuer, broker, secret)


def cut_at(refusal: Refused) -> int:
    """The second, on the broker's own clock, in which it cut the link."""
    stamp = re.search(r"Timestamp:(\S+)", refusal.description)
    assert stamp, refusal.description
    return int(datetime.fromisoformat(stamp.group(1)).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize("house", [f"{LIFETIME}s"], indirect=True)
async def test_who_holds_a_token_goes_on_to_its_end_and_everything_returns_with_the_issuer(house: House) -> None:
    held = await house.http_issuer()(SERVICE_BUS_SCOPE)
    ends = jwt.decode(held.token, options={"verify_signature": False})["exp"]
    with Raw(house.broker.port, user="") as raw:
        assert raw.put_token("orders", held.token)[0] == 202
        sender = raw.sender("orders")
        house.issuer.kill()
        sent = 0
        with pytest.raises(Refused) as cut:
            while time.time() < ends + 5:
                sender.send(message(str(sent)))
                sent += 1
                time.sleep(0.05)
        assert sent > 3, "it went on although nobody could have given it a new token"
        assert "The token has expired and was not renewed" in cut.value.description
        assert ends <= cut_at(cut.value) <= ends + 1, "not before its end, and not later than a second after"
    with Raw(house.broker.port, user="") as raw:
        assert "ExpiredToken" in raw.put_token("orders", held.token)[1]

    without, spare = house.credential(), house.credential(fallback=True)
    with pytest.raises(TokenUnavailableError):
        await without.get_token("sb://localhost/orders")
    await house.send(spare, "signed by ourselves")
    assert spare.signed_by_fallback > 0 and spare.issued == 0

    house.issuer.start()
    await until(lambda: spare.issued and without.issued, 30)
    fallen_back = spare.signed_by_fallback
    await house.send(without, "with a token again")
    await house.send(spare, "and so does this one")
    assert spare.signed_by_fallback == fallen_back
    await without.close()
    await spare.close()


@pytest.mark.parametrize("house", [f"{LIFETIME}s"], indirect=True)
async def test_a_client_that_renews_in_time_never_notices_that_tokens_end(house: House) -> None:
    credential = house.credential()
    host = f"localhost:{house.broker.port}"
    began = time.monotonic()
    # The SDK looks for a new token when a tenth of its life is left, in whole seconds: with lives this short it has to come back.
    async with ServiceBusClient(host, credential, use_tls=False) as client, client.get_queue_sender("orders") as sender:  # type: ignore[arg-type]
        while time.monotonic() - began < 2 * LIFETIME + 1:
            await sender.send_messages(ServiceBusMessage("steady"))
            await asyncio.sleep(0.2)
    assert credential.issued >= 3, "renewed from half of the life on, in the background"
    await credential.close()


async def test_a_removed_client_is_cut_off_as_soon_as_the_broker_hears_of_it(house: House) -> None:
    token = (await house.http_issuer()(SERVICE_BUS_SCOPE)).token
    with Raw(house.broker.port, user="") as raw:
        assert raw.put_token("orders", token)[0] == 202
        sender = raw.sender("orders")
        sender.send(message("while it may"))
        tandem(house.directory, "issuer", "client", "remove", "shop", "--data", "issuer")
        with pytest.raises(Refused) as cut:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                sender.send(message("still?"))
                time.sleep(0.05)
        assert "The token was revoked by its issuer" in cut.value.description
    with pytest.raises(Exception, match="401"):
        await house.http_issuer()(SERVICE_BUS_SCOPE)


async def test_a_broker_that_starts_during_the_outage_knows_the_keys_of_before(house: House) -> None:
    token = (await house.http_issuer()(SERVICE_BUS_SCOPE)).token
    with Raw(house.broker.port, user="") as raw:
        assert raw.put_token("orders", token)[0] == 202
    house.broker.stop()
    house.issuer.kill()
    with BrokerProcess(house.directory, "--port", "0", "--data", "data") as again, Raw(again.port, user="") as raw:
        assert raw.put_token("orders", token)[0] == 202
        raw.sender("orders").send(message("as if nothing had happened"))


async def test_neither_secrets_nor_tokens_are_written_down_anywhere(house: House) -> None:
    token = (await house.http_issuer()(SERVICE_BUS_SCOPE)).token
    with Raw(house.broker.port, user="") as raw:
        raw.put_token("orders", token)
        raw.put_token("nowhere", token[:-4] + "AAAA")
    with pytest.raises(Exception, match="401"):
        await HttpIssuer(f"{house.issuer.authority}/tandem/oauth2/v2.0/token", "shop", "a-wrong-secret", ca=house.issuer.ca)(
            SERVICE_BUS_SCOPE
        )
    house.issuer.kill()
    house.broker.stop()
    written = b"".join(
        path.read_bytes()
        for path in house.directory.rglob("*")
        if path.is_file() and path.suffix in (".txt", ".jsonl", ".json", ".toml") and "signing-keys" not in path.name
    )
    for secret in (house.secret, "a-wrong-secret", token, token.rpartition(".")[2], "eyJhbGci"):
        assert secret.encode() not in written
