"""Stories for a cluster: clients that come and go, so that whoever thinks that it has a store is asked for what waits in it."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from tandem.simulator.amqp_client import AmqpClient, AmqpReceiver, Gone, Incoming
from tandem.simulator.loop import until
from tandem.simulator.queue_stories import QueueStory
from tandem.simulator.story import PATIENCE, Actor, message


class ComeAndGo(QueueStory):
    """Messages wait. Receivers take a few, keep them for a while, settle some, and come again to another node."""

    queue = "waiting"
    gap_seconds = 0.8
    lock_ms = 10_000

    def actors(self) -> list[Actor]:
        return [self.produce, self.take, self.take, self.take]

    async def produce(self, client: AmqpClient) -> None:
        await self.send_steadily(client, message)

    async def take(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=self.dice.randint(1, 6))
        taken: list[tuple[Incoming, str]] = []
        for _ in range(self.dice.randint(1, 5)):
            try:
                incoming, key, _ = await until(self.get(receiver), 3.0)
            except TimeoutError:
                break
            taken.append((incoming, key))
        if not self.draining:
            await asyncio.sleep(self.dice.uniform(0.1, 6.0))
        await self._end(receiver, taken)
        raise Gone("it comes again")

    async def _end(self, receiver: AmqpReceiver, taken: list[tuple[Incoming, str]]) -> None:
        answer: asyncio.Future[None] | None = None
        for incoming, key in taken:
            if self.dice.random() < 0.3:
                self.give_back(receiver, incoming, key)
            else:
                answer = self.settle(receiver, incoming, key)
        if answer is not None:
            await until(asyncio.wait((answer,)), PATIENCE)


class ComeAndGoInFragments(ComeAndGo):
    """The same over fragments in all stores."""

    queue = "waiting-fragments"
    properties: ClassVar[dict[str, Any]] = {"enable_partitioning": True}
