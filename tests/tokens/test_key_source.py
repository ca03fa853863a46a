"""Keys that are fetched again in the background, kept while the issuer is down, and looked for when a token names a new one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tandem.model.clock import SystemClock
from tandem.model.errors import AuthenticationFailed
from tandem.tokens.key_set import parse_key_set
from tandem.tokens.key_source import KeySource
from tandem.tokens.trust import TrustedIssuer, UnknownKey
from tandem.tokens.verification import Claims
from tandem.tokens.verifier import TokenVerifier
from tests.tokens.minting import ISSUER, claims, jwk, key_set, rsa_key, signed


class Publisher:
    """A web server with a key set, which can be taken down and changed."""

    def __init__(self) -> None:
        self.document = key_set(jwk(rsa_key(), "rsa-1"))
        self.pieces: list[bytes] = []
        """What comes instead, one after the other."""
        self.status = 200
        self.asked = 0
        self.seen = asyncio.Condition()
        self.url = ""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        async with self.seen:
            self.seen.notify_all()
        if not self.pieces:
            return web.Response(status=self.status, body=self.document)
        answer = web.StreamResponse(status=self.status)
        await answer.prepare(request)
        for piece in self.pieces:
            await answer.write(piece)
            await asyncio.sleep(0.01)
        return answer

    async def asked_times(self, count: int) -> None:
        async with asyncio.timeout(30), self.seen:
            await self.seen.wait_for(lambda: self.asked >= count)


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    publisher = Publisher()
    runner = web.ServerRunner(web.Server(publisher.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    publisher.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
    yield publisher
    await runner.cleanup()


def source_of(
    publisher: Publisher, notes: list[str], cache: Path | None = None, refresh_ms: int = 3_600_000, refetch: int = 0
) -> KeySource:
    trust = TrustedIssuer(issuer=ISSUER, jwks_url=publisher.url, refresh_ms=refresh_ms, refetch_min_ms=refetch)
    return KeySource(trust, SystemClock(), notes.append, cache=cache)


async def until(true: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await true.wait()


async def test_keys_stay_in_use_while_the_issuer_is_down_and_are_fetched_again_when_it_is_back(publisher: Publisher) -> None:
    notes: list[str] = []
    source = source_of(publisher, notes, refresh_ms=20)
    verifier = TokenVerifier([source], SystemClock())
    await verifier.start()
    await source.look_again()
    publisher.status = 503
    asked = publisher.asked
    await publisher.asked_times(asked + 3)
    assert verifier.verify(signed(claims()), "tandem").claims.subject == "shop"
    assert [note for note in notes if "503; the 1 known ones stay in use" in note] == notes, "said once, however often it failed"
    changed = asyncio.Event()
    source.on_change = lambda keys: changed.set()
    publisher.document = key_set(jwk(rsa_key("two"), "rsa-2"))
    publisher.status = 200
    await until(changed)
    assert verifier.verify(signed(claims(), rsa_key("two"), "rsa-2"), "tandem").claims.subject == "shop"
    await source.look_again()
    assert notes[-1].endswith("can be had again")
    await verifier.close()


async def test_keys_that_arrive_in_pieces_are_whole_and_a_flood_is_cut_off(publisher: Publisher) -> None:
    notes: list[str] = []
    source = source_of(publisher, notes)
    document = publisher.document
    publisher.pieces = [document[:100], document[100:200], document[200:]]
    await source.look_again()
    assert [key.key_id for key in source.keys.keys] == ["rsa-1"] and notes == []
    publisher.pieces = [b" " * 65_536] * 1_000
    await source.look_again()
    assert "has more than" in notes[0] and "the 1 known ones stay in use" in notes[0]
    assert [key.key_id for key in source.keys.keys] == ["rsa-1"]


async def test_an_unknown_key_is_looked_for_at_once_but_not_more_often_than_allowed(publisher: Publisher) -> None:
    source = source_of(publisher, [], refetch=3_600_000)
    verifier = TokenVerifier([source], SystemClock())
    await verifier.start()
    await source.look_again()
    source._looked_at = None  # as if the last look were long ago
    publisher.document = key_set(jwk(rsa_key(), "rsa-1"), jwk(rsa_key("two"), "rsa-2"))
    fresh = signed(claims(), rsa_key("two"), "rsa-2")
    both = await asyncio.gather(*[verifier.verify_looking(fresh, "tandem") for _ in range(20)])
    assert {one.claims.subject for one in both} == {"shop"}
    assert publisher.asked == 2, "one look for all who wait"
    for number in range(50):
        with pytest.raises(UnknownKey):
            await verifier.verify_looking(signed(claims(), rsa_key("stranger"), f"made-up-{number}"), "tandem")
    assert publisher.asked == 2
    await verifier.close()


async def test_a_broker_that_starts_while_its_issuer_is_down_knows_the_keys_it_had(publisher: Publisher, tmp_path: Path) -> None:
    cache = tmp_path / "keys.json"
    first = source_of(publisher, [], cache, refetch=0)
    await first.start()
    await first.look_again()
    await first.close()
    publisher.status = 500
    notes: list[str] = []
    again = source_of(publisher, notes, cache)
    verifier = TokenVerifier([again], SystemClock())
    await verifier.start()
    assert verifier.verify(signed(claims()), "tandem").claims.subject == "shop"
    await verifier.close()


async def test_a_key_that_was_replaced_under_its_old_id_is_kept_too(publisher: Publisher, tmp_path: Path) -> None:
    cache = tmp_path / "keys.json"
    first = source_of(publisher, [], cache)
    await first.start()
    await first.look_again()
    publisher.document = key_set(jwk(rsa_key("two"), "rsa-1"))
    await first.look_again()
    await first.close()
    publisher.status = 500
    verifier = TokenVerifier([source_of(publisher, [], cache)], SystemClock())
    await verifier.start()
    assert verifier.verify(signed(claims(), rsa_key("two"), "rsa-1"), "tandem").claims.subject == "shop"
    await verifier.close()


async def test_keys_that_cannot_be_kept_on_disk_are_used_all_the_same(publisher: Publisher, tmp_path: Path) -> None:
    notes: list[str] = []
    source = source_of(publisher, notes, tmp_path / "no such directory" / "keys.json", refresh_ms=20)
    verifier = TokenVerifier([source], SystemClock())
    await verifier.start()
    await publisher.asked_times(3)
    assert verifier.verify(signed(claims()), "tandem")
    assert [note for note in notes if "cannot be kept" in note] == notes
    await verifier.close()


async def test_a_file_of_keys_is_read_at_start_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(jwk(rsa_key(), "rsa-1")))
    notes: list[str] = []
    source = KeySource(TrustedIssuer(issuer=ISSUER, jwks_file=file, refresh_ms=10), SystemClock(), notes.append)
    verifier = TokenVerifier([source], SystemClock())
    await verifier.start()
    assert verifier.verify(signed(claims()), "tandem")
    changed = asyncio.Event()
    source.on_change = lambda keys: changed.set()
    fresh = tmp_path / "new.json"
    fresh.write_bytes(key_set(jwk(rsa_key("two"), "rsa-2")))
    os.replace(fresh, file)
    await until(changed)
    with pytest.raises(AuthenticationFailed):
        verifier.verify(signed(claims()), "tandem")
    assert verifier.verify(signed(claims(), rsa_key("two"), "rsa-2"), "tandem")
    file.unlink()
    assert verifier.verify(signed(claims(), rsa_key("two"), "rsa-2"), "tandem"), "a file that vanishes takes no key away"
    await verifier.close()


async def test_a_revocation_is_told_as_soon_as_it_is_known(publisher: Publisher) -> None:
    source = source_of(publisher, [])
    verifier = TokenVerifier([source], SystemClock())
    held = Claims(ISSUER, "shop", frozenset({"shop"}), frozenset(), frozenset(), frozenset(), 0, 1)
    told: list[bool] = []
    verifier.on_revoked = lambda: told.append(verifier.revoked(held))
    await verifier.start()
    await source.look_again()
    assert told == []
    publisher.document = key_set(jwk(rsa_key(), "rsa-1"), tandem_revoked={"shop": 4_000_000_000})
    await source.look_again()
    assert told == [True]
    with pytest.raises(AuthenticationFailed, match="RevokedClient"):
        verifier.verify(signed(claims()), "tandem")
    await verifier.close()


async def test_a_token_that_was_believed_is_looked_at_again_when_keys_change_or_it_has_ended(tmp_path: Path) -> None:
    class Clock(SystemClock):
        ahead = 0

        def now_ms(self) -> int:
            return super().now_ms() + self.ahead

    clock = Clock()
    source = KeySource(TrustedIssuer(issuer=ISSUER, jwks_url="unused"), clock, print)
    source.keys = parse_key_set(key_set(jwk(rsa_key(), "rsa-1")))
    verifier = TokenVerifier([source], clock)
    token = signed(claims())
    first = verifier.verify(token, "tandem")
    assert verifier.verify(token, "tandem") is first
    assert verifier.verify(token, "other") is not first, "what it allows is another namespace's to say"
    clock.ahead = 3_600_000
    with pytest.raises(AuthenticationFailed, match="ExpiredToken"):
        verifier.verify(token, "tandem")
    clock.ahead = 0
    source.keys = parse_key_set(key_set(jwk(rsa_key("two"), "rsa-1")))
    with pytest.raises(AuthenticationFailed, match="InvalidSignature"):
        verifier.verify(token, "tandem")
    source.keys = parse_key_set(key_set(jwk(rsa_key(), "rsa-1"), tandem_revoked={"shop": 4_000_000_000}))
    with pytest.raises(AuthenticationFailed, match="RevokedClient"):
        verifier.verify(token, "tandem")
    source.keys = parse_key_set(key_set(jwk(rsa_key(), "rsa-1")))
    for number in range(1_100):
        verifier.verify(token, f"namespace-{number}")
    assert len(verifier._known) == 1_000
