from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
import urllib.parse

import pytest
from aiohttp import web
from azure.core.credentials import AccessToken

from tandem.client.tokens import HttpIssuer, IssuerCredential, SasCredential, TokenUnavailableError

SCOPE = "sb://contoso.example/orders"


class Issuer:
    def __init__(self, clock, lifetime: int = 100) -> None:
        self.clock, self.lifetime = clock, lifetime
        self.asked = 0
        self.down = False

    async def __call__(self, scope: str) -> AccessToken:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise ConnectionRefusedError("issuer down")
        return AccessToken(f"token-{self.asked}", self.clock() // 1000 + self.lifetime)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_self_minted_token_is_signed_for_the_resource_with_the_key(clock):
    credential = SasCredential("Root", "secret", lifetime=60, now_ms=clock)
    token = await credential.get_token(SCOPE)
    kind, _, rest = token.token.partition(" ")
    fields = dict(urllib.parse.parse_qsl(rest))
    expiry = clock() // 1000 + 60
    signed = f"{urllib.parse.quote_plus(SCOPE)}\n{expiry}".encode()
    assert kind == "SharedAccessSignature"
    assert fields["sr"] == SCOPE and fields["skn"] == "Root" and int(fields["se"]) == token.expires_on == expiry
    assert base64.b64decode(fields["sig"]) == hmac.new(b"secret", signed, hashlib.sha256).digest()


async def test_the_key_can_come_from_a_connection_string():
    string = "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=a=b=;UseDevelopmentEmulator=true"
    assert SasCredential.from_connection_string(string)._key == b"a=b="
    with pytest.raises(ValueError, match="sharedaccesskeyname"):
        SasCredential.from_connection_string("Endpoint=sb://h/")


async def test_a_token_is_fetched_once_and_used_again(clock):
    issuer = Issuer(clock)
    credential = IssuerCredential(issuer, now_ms=clock)
    first = await credential.get_token(SCOPE)
    assert await credential.get_token(SCOPE) is first
    assert issuer.asked == 1
    await credential.get_token("other")
    assert issuer.asked == 2


async def test_many_who_ask_at_once_make_one_request(clock):
    issuer = Issuer(clock)
    credential = IssuerCredential(issuer, now_ms=clock)
    tokens = await asyncio.gather(*(credential.get_token(SCOPE) for _ in range(20)))
    assert issuer.asked == 1 and len(set(tokens)) == 1


async def test_a_token_is_refreshed_early_and_nobody_waits_for_that(clock):
    issuer = Issuer(clock, lifetime=100)
    credential = IssuerCredential(issuer, now_ms=clock, refresh_share=0.5)
    first = await credential.get_token(SCOPE)
    clock.ms += 50_000
    assert await credential.get_token(SCOPE) is first
    await settle()
    assert (await credential.get_token(SCOPE)).token == "token-2"


async def test_a_valid_token_stays_in_use_while_the_issuer_is_down(clock):
    issuer = Issuer(clock, lifetime=100)
    credential = IssuerCredential(issuer, now_ms=clock, retry_pause=5)
    first = await credential.get_token(SCOPE)
    issuer.down = True
    for _ in range(49):
        clock.ms += 2_000
        assert await credential.get_token(SCOPE) is first
        await settle()
    assert 2 < issuer.asked < 10
    assert isinstance(credential.last_error, ConnectionRefusedError)


async def test_past_its_end_without_issuer_and_without_fallback_it_says_so(clock):
    issuer = Issuer(clock, lifetime=100)
    credential = IssuerCredential(issuer, now_ms=clock)
    await credential.get_token(SCOPE)
    issuer.down = True
    clock.ms += 101_000
    with pytest.raises(TokenUnavailableError, match="issuer down"):
        await credential.get_token(SCOPE)


async def test_past_its_end_the_fallback_signs_and_the_issuer_is_asked_again_later(clock):
    issuer = Issuer(clock, lifetime=100)
    credential = IssuerCredential(issuer, fallback=SasCredential("n", "k", now_ms=clock), now_ms=clock, retry_pause=5)
    issuer.down = True
    assert (await credential.get_token(SCOPE)).token.startswith("SharedAccessSignature")
    await settle()
    assert (await credential.get_token(SCOPE)).token.startswith("SharedAccessSignature")
    assert issuer.asked == 1 and credential.signed_by_fallback == 2
    issuer.down = False
    clock.ms += 5_000
    assert (await credential.get_token(SCOPE)).token == "token-2"


async def test_a_token_that_is_over_already_is_no_token(clock):
    credential = IssuerCredential(Issuer(clock, lifetime=0), now_ms=clock)
    with pytest.raises(TokenUnavailableError, match="over already"):
        await credential.get_token(SCOPE)


async def test_an_issuer_that_never_answers_is_given_up(clock):
    async def never(scope: str) -> AccessToken:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    credential = IssuerCredential(never, now_ms=clock, issue_timeout=0.02, fallback=SasCredential("n", "k", now_ms=clock))
    assert (await credential.get_token(SCOPE)).token.startswith("SharedAccessSignature")


async def test_a_real_issuer_over_http_goes_down_and_comes_back(clock):
    asked = []

    async def token(request: web.Request) -> web.Response:
        form = await request.post()
        asked.append(form["scope"])
        return web.json_response({"access_token": f"jwt-{len(asked)}", "expires_in": 100, "token_type": "Bearer"})

    async def start(port: int) -> web.AppRunner:
        application = web.Application()
        application.router.add_post("/token", token)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    runner = await start(0)
    port = runner.addresses[0][1]
    issuer = HttpIssuer(f"http://127.0.0.1:{port}/token", "me", "secret", now_ms=clock)
    credential = IssuerCredential(issuer, now_ms=clock, fallback=SasCredential("n", "k", now_ms=clock), retry_pause=1)
    assert (await credential.get_token(SCOPE)).token == "jwt-1"
    assert asked == [SCOPE]
    await runner.cleanup()
    clock.ms += 60_000
    assert (await credential.get_token(SCOPE)).token == "jwt-1"
    await asyncio.gather(*credential._asking.values(), return_exceptions=True)
    clock.ms += 60_000
    assert (await credential.get_token(SCOPE)).token.startswith("SharedAccessSignature")
    runner = await start(port)
    clock.ms += 60_000
    assert (await credential.get_token(SCOPE)).token == "jwt-2"
    await runner.cleanup()


async def test_an_answer_without_a_token_is_told(clock):
    async def odd(request: web.Request) -> web.Response:
        return web.json_response({"hello": 1})

    application = web.Application()
    application.router.add_post("/", odd)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with pytest.raises(TokenUnavailableError, match="usable"):
        await HttpIssuer(f"http://127.0.0.1:{runner.addresses[0][1]}/", "a", "b")(SCOPE)
    await runner.cleanup()


async def test_a_token_is_renewed_in_the_background_from_half_of_its_life_on_and_a_little_later_for_some():
    asked: list[float] = []
    renewed = asyncio.Event()

    async def issuer(scope: str) -> AccessToken:
        asked.append(time.monotonic())
        if len(asked) > 1:
            renewed.set()
        return AccessToken(f"token-{len(asked)}", int(time.time()) + 4)

    credential = IssuerCredential(issuer, chance=lambda: 1.0)
    first = await credential.get_token(SCOPE)
    await asyncio.wait_for(renewed.wait(), 20)
    life = first.expires_on - asked[0] - (time.time() - time.monotonic())
    assert asked[1] - asked[0] >= life * 0.6 - 0.05, "half of its life, and a tenth for the dice"
    await settle()
    assert (await credential.get_token(SCOPE)).token == "token-2", "nobody had to ask for it"
    await credential.close()


async def test_while_the_issuer_is_down_it_is_asked_again_in_the_background_and_found_when_it_is_back():
    issuer = Issuer(lambda: int(asyncio.get_running_loop().time() * 1000))
    clock = issuer.clock
    fallback = SasCredential("n", "k", now_ms=clock)
    credential = IssuerCredential(issuer, fallback=fallback, now_ms=clock, retry_pause=0.02, retry_pause_max=0.02)
    issuer.down = True
    assert (await credential.get_token(SCOPE)).token.startswith("SharedAccessSignature")
    async with asyncio.timeout(20):
        while issuer.asked < 4:
            await asyncio.sleep(0.01)
        issuer.down = False
        while not credential.issued:
            await asyncio.sleep(0.01)
    assert (await credential.get_token(SCOPE)).token.startswith("token-")
    await credential.close()


async def test_one_token_serves_all_entities_and_the_fallback_signs_for_each(clock):
    issuer = Issuer(clock)
    credential = IssuerCredential(issuer, scope="api://bus", fallback=SasCredential("n", "k", now_ms=clock), now_ms=clock)
    assert await credential.get_token("sb://h/a") is await credential.get_token("sb://h/b")
    assert issuer.asked == 1
    issuer.down = True
    clock.ms += 101_000
    assert "sr=sb%3A%2F%2Fh%2Fb" in (await credential.get_token("sb://h/b")).token
    await credential.close()


async def test_a_token_that_nobody_wants_any_more_is_not_renewed(clock):
    issuer = Issuer(clock)
    credential = IssuerCredential(issuer, now_ms=clock)
    await credential.get_token(SCOPE)
    clock.ms += 700_000
    credential._renew(SCOPE)
    await settle()
    assert issuer.asked == 1 and not credential._held
    await credential.close()
