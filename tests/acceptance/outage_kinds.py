"""The ways in which two data centres can fail, each with its beginning and its end, and the line between them and the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from azure.servicebus.management import AuthorizationRule, EntityStatus

from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import administration
from tests.acceptance.proxy import SlowNetwork

QUEUE = "orders"
KEYS = ("b2xkLW9sZC1vbGQtb2xkLW9sZC1vbGQtb2xkLW9sZC0=", "bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldy0=")
RULE = "application"
SLOW_SECONDS = 30.0
STORES = 4
"""Of a broker that is told nothing else."""


class World:
    """West is the primary, reached over a line that can fall silent or slow; east the secondary."""

    def __init__(self, west: Broker, east: Broker, line: SlowNetwork) -> None:
        self.west = west
        self.east = east
        self.line = line

    @property
    def primary(self) -> str:
        return self.west.string_for(RULE, KEYS[0]).replace(str(self.west.port), str(self.line.port))

    async def create(self) -> None:
        async with administration(self.west) as client:
            await client.create_queue(
                QUEUE, requires_duplicate_detection=True, duplicate_detection_history_time_window="P1D", max_size_in_megabytes=5120,
                authorization_rules=[_rule(KEYS[0])],
            )  # fmt: skip

    async def change(self, change: Callable[..., None]) -> None:
        async with administration(self.west) as client:
            properties = await client.get_queue(QUEUE)
            change(properties)
            await client.update_queue(properties)


def _rule(key: str) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule", rights=["Send", "Listen", "Manage"], key_name=RULE, primary_key=key, secondary_key=key
    )


def _status(status: EntityStatus) -> Callable[..., None]:
    def change(properties) -> None:
        properties.status = status

    return change


def _key(key: str) -> Callable[..., None]:
    def change(properties) -> None:
        properties.authorization_rules = [_rule(key)]

    return change


Step = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Outage:
    """`diverts`: whether the application's sends go to the secondary meanwhile; otherwise they fail, or do not notice."""

    name: str
    begin: Step
    end: Step
    diverts: bool = True


async def _kill_west(world: World) -> None:
    world.west.kill()


async def _start_west(world: World) -> None:
    await asyncio.to_thread(world.west.start)


async def _freeze(world: World) -> None:
    world.west.freeze()


async def _thaw(world: World) -> None:
    world.west.thaw()


async def _silence(world: World) -> None:
    world.line.flowing.clear()


async def _speak(world: World) -> None:
    world.line.cut()
    world.line.flowing.set()


async def _slow(world: World) -> None:
    world.line.one_way = SLOW_SECONDS


async def _quick(world: World) -> None:
    world.line.cut()
    world.line.one_way = 0.0


async def _stores_down(world: World) -> None:
    for store in range(STORES):
        await asyncio.to_thread(world.west.inject, "store-down", store=store)


async def _heal(world: World) -> None:
    await asyncio.to_thread(world.west.heal)


async def _disable(world: World) -> None:
    await world.change(_status(EntityStatus.DISABLED))


async def _enable(world: World) -> None:
    await world.change(_status(EntityStatus.ACTIVE))


async def _rotate(world: World) -> None:
    await world.change(_key(KEYS[1]))
    world.line.cut()  # the old key is noticed when somebody connects anew


async def _rotate_back(world: World) -> None:
    await world.change(_key(KEYS[0]))


async def _kill_east(world: World) -> None:
    world.east.kill()


async def _start_east(world: World) -> None:
    await asyncio.to_thread(world.east.start)


async def _kill_both(world: World) -> None:
    world.west.kill()
    world.east.kill()


async def _start_both(world: World) -> None:
    await asyncio.gather(asyncio.to_thread(world.west.start), asyncio.to_thread(world.east.start))


OUTAGES: tuple[Outage, ...] = (
    Outage("process killed", _kill_west, _start_west),
    Outage("process stopped", _freeze, _thaw),
    Outage("black hole", _silence, _speak),
    Outage("slow line", _slow, _quick),
    Outage("stores down", _stores_down, _heal),
    Outage("entity disabled", _disable, _enable, diverts=False),
    Outage("key rotated", _rotate, _rotate_back, diverts=False),
    Outage("secondary dead", _kill_east, _start_east, diverts=False),
    Outage("both dead", _kill_both, _start_both, diverts=False),
)
