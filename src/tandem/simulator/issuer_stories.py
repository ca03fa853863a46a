"""The issuer comes and goes, and brokers and the network with it: tokens are good to their end and no further, and all come back."""

from __future__ import annotations

import asyncio
import functools
from random import Random

import jwt
from azure.core.credentials import AccessToken
from cryptography.hazmat.primitives.asymmetric import ec

from tandem.client.tokens import IssuerCredential, SasCredential, TokenUnavailableError
from tandem.simulator.agenda import MACHINE
from tandem.simulator.amqp_client import AmqpClient, AmqpSender, Gone, PeerRefused
from tandem.simulator.loop import until
from tandem.simulator.queue_stories import QueueStory
from tandem.simulator.story import PATIENCE, Actor, message
from tandem.simulator.world import KEY, KEY_NAME, PORT, SimulatedIssuer, World
from tandem.tokens.key_set import VerificationKey
from tandem.tokens.trust import TrustedIssuer

LIFETIME = 120
"""Seconds of a token's life; the issuer's outages are shorter and longer than that."""
_UNAUTHORIZED = ("amqp:unauthorized-access", "com.microsoft:auth-failed")
_LATE_MS = 1_000
"""After its end a token is good for nothing; links may stand so long."""


@functools.cache
def _private_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class SimIssuer(SimulatedIssuer):
    """Signs real tokens in virtual time, while it is up."""

    def __init__(self, world: World, dice: Random) -> None:
        self.trust = TrustedIssuer(issuer="sim", jwks_url="sim://issuer/keys", refresh_ms=20_000, refetch_min_ms=1_000)
        self.up = True
        self.outages = 0
        self._world = world
        self._dice = dice
        self._kept: set[str] = set()

    async def come_and_go(self) -> None:
        while True:
            await asyncio.sleep(self._dice.uniform(20.0, 2 * LIFETIME))
            self.up = False
            self.outages += 1
            self._world.trace.happened("the issuer is down")
            await asyncio.sleep(self._dice.choice((0.2, 0.6, 1.5, 3.0)) * LIFETIME)
            self.up = True
            self._world.trace.happened("the issuer is back")

    async def __call__(self, scope: str) -> AccessToken:
        await asyncio.sleep(self._dice.uniform(0.01, 0.3))
        if not self.up:
            raise ConnectionRefusedError("the issuer is down")
        seconds = self._world.clock.now_ms() // 1000
        said = {"iss": "sim", "aud": self.trust.audiences[0], "sub": "client", "iat": seconds, "exp": seconds + LIFETIME, "scp": "Send"}
        return AccessToken(jwt.encode(said, _private_key(), algorithm="ES256", headers={"kid": "one"}), seconds + LIFETIME)

    async def fetch_keys(self, trust: TrustedIssuer) -> bytes:
        """A broker that starts finds the keys of before on its disk."""
        await asyncio.sleep(self._dice.uniform(0.01, 0.3))
        machine = MACHINE.get().name
        if not self.up and machine in self._kept:
            raise ConnectionRefusedError("the issuer is down")
        self._kept.add(machine)
        return _published()


@functools.cache
def _published() -> bytes:
    import json

    key = VerificationKey("one", "ES256", _private_key().public_key())
    public = jwt.algorithms.ECAlgorithm.to_jwk(_private_key().public_key(), as_dict=True)
    return json.dumps({"keys": [{**public, "kid": key.key_id, "use": "sig", "alg": key.algorithm}]}).encode()


class Issued(QueueStory):
    """Two senders with issued tokens, one of which may sign for itself when there is none. The consumer has a key, as always."""

    queue = "issued"
    gap_seconds = 1.0

    def __init__(self, world: World, host: str, dice: Random, issuer: SimIssuer) -> None:
        super().__init__(world, host, dice)
        self.issuer = issuer
        self.resource = f"sb://{host}/{self.queue}"
        self.sent_without_issuer = 0
        self.cut = 0
        now = world.clock.now_ms
        key = SasCredential(KEY_NAME, KEY, lifetime=600, now_ms=now)
        self.plain = IssuerCredential(issuer, scope="all", now_ms=now, chance=dice.random, retry_pause=2.0, retry_pause_max=20.0)
        self.spare = IssuerCredential(
            issuer, scope="all", fallback=key, now_ms=now, chance=dice.random, retry_pause=2.0, retry_pause_max=20.0
        )

    def actors(self) -> list[Actor]:
        return [self.consume]

    def start(self) -> None:
        super().start()
        coming_and_going = asyncio.ensure_future(self.issuer.come_and_go())
        self.tasks += [coming_and_going, *(asyncio.ensure_future(self._hold(one)) for one in (self.plain, self.spare))]

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=10)
        while True:
            incoming, key, _ = await self.get(receiver)
            self.settle(receiver, incoming, key)

    async def _hold(self, credential: IssuerCredential) -> None:
        while not self.draining:
            client: AmqpClient | None = None
            try:
                token = await credential.get_token(self.resource)
                client = await until(AmqpClient.connect(PORT, host=self.host, user="", password="", idle_timeout_ms=30_000), PATIENCE)
                await self._send(client, credential, token)
            except TokenUnavailableError:
                if self.issuer.up and credential is self.spare:
                    self.wrong("a client that has a key was left without a token")
                await asyncio.sleep(self.dice.uniform(0.5, 3.0))
            except (Gone, TimeoutError):
                await asyncio.sleep(self.dice.uniform(0.05, 2.0))
            except PeerRefused as refused:
                self._judge(refused, token)
                await asyncio.sleep(self.dice.uniform(0.05, 2.0))
            finally:
                if client is not None:
                    client.abort()

    async def _send(self, client: AmqpClient, credential: IssuerCredential, token: AccessToken) -> None:
        await until(client.put_token(self.resource, token.token), PATIENCE)
        sender = await self.sender(client)
        while await self.pace():
            if not sender.link.attached:
                raise sender.error or Gone("the link is gone")
            token = await self._renewed(client, credential, token)
            key = self.next_key()
            self.checker.sending(key)
            self._follow(sender, key, token)

    async def _renewed(self, client: AmqpClient, credential: IssuerCredential, token: AccessToken) -> AccessToken:
        """A new one is put as soon as there is one; without any the old one is kept to see how long it is good."""
        try:
            fresh = await credential.get_token(self.resource)
        except TokenUnavailableError:
            return token
        if fresh.token != token.token:
            await until(client.put_token(self.resource, fresh.token), PATIENCE)
        return fresh

    def _follow(self, sender: AmqpSender, key: str, token: AccessToken) -> None:
        sent_at = self.world.clock.now_ms()
        answer = sender.send(message(key))
        self.follow(answer, [key])
        answer.add_done_callback(lambda done: self._check_end(done, key, token, sent_at))

    def _check_end(self, answer: asyncio.Future[None], key: str, token: AccessToken, sent_at: int) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        if _issued(token) and sent_at > token.expires_on * 1000 + _LATE_MS:
            self.wrong(f"{key} was accepted {sent_at - token.expires_on * 1000} ms after the token had ended")
        self.sent_without_issuer += not self.issuer.up

    def _judge(self, refused: PeerRefused, token: AccessToken) -> None:
        if refused.condition not in _UNAUTHORIZED:
            self.judge(refused, "a client was told")
        elif _issued(token) and self.world.clock.now_ms() < token.expires_on * 1000:
            self.wrong(f"refused {token.expires_on * 1000 - self.world.clock.now_ms()} ms before the token's end: {refused}")
        else:
            self.cut += 1


def _issued(token: AccessToken) -> bool:
    return not token.token.startswith("SharedAccessSignature")
