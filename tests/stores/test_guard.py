"""What guards the heads and keys of a block restores them, or says that it cannot; it never makes something up."""

from __future__ import annotations

from random import Random

import pytest

from tandem.broker.facts import DELIVERED, ENQUEUED, PREPARED, SETTLED
from tandem.simulator.disk import SimDisk
from tandem.stores.blocks import BLOCK_BYTES, RECORD, pack_block_header
from tandem.stores.checksum import crc32
from tandem.stores.guard import find_foot, guard_of, parts_of

SEED = 77


def records(dice: Random, count: int) -> list[bytes]:
    parts: list[bytes] = []
    for seq in range(count):
        kind = dice.choice((ENQUEUED, SETTLED, DELIVERED, PREPARED))
        key = dice.randbytes(dice.choice((0, 0, 12, 40, 3_000 if dice.random() < 0.02 else 8)))
        body = dice.randbytes(dice.randint(1, 600)) if kind in (ENQUEUED, PREPARED) else b""
        parts += [RECORD.pack(kind, 0, 4, seq, 1, 2, len(key), len(body), crc32(body) if body else 0), key, body]
    return parts


class Block:
    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self.facts = b"".join(parts)
        self.payload = self.facts + b"".join(guard_of(SEED, 3, 9, parts))
        self.raw = pack_block_header(SEED, 3, 9, len(parts) // 3 + 1, self.payload) + self.payload

    def restored(self, raw: bytes, payload_bytes: int) -> bytes | None:
        disk = SimDisk()
        disk.put("/x", b"before" + raw + b"behind" * 20)
        descriptor = disk.open("/x", 0)
        foot = find_foot(disk, descriptor, SEED, 3, 9, 6, payload_bytes)
        return foot.restore(raw[BLOCK_BYTES:]) if foot is not None else None

    def without_bodies(self, payload: bytes) -> list[bytes]:
        """Those of messages, which prove themselves."""
        parts = parts_of(payload, len(self.parts) // 3 + 1)
        return [part for at, part in enumerate(parts) if at % 3 < 2 or parts[at - 2][0] != ENQUEUED]


@pytest.mark.parametrize("count", [1, 2, 30, 400])
def test_any_one_byte_of_the_facts_or_the_header_can_be_restored(count: int) -> None:
    dice = Random(count)
    block = Block(records(dice, count))
    wanted = block.without_bodies(block.payload)
    for offset in dice.sample(range(BLOCK_BYTES + len(block.facts)), min(300, len(block.facts))):
        raw = bytearray(block.raw)
        raw[offset] ^= 1 << dice.randrange(8)
        restored = block.restored(bytes(raw), 0 if offset < BLOCK_BYTES else len(block.payload))
        assert restored is not None, offset
        assert block.without_bodies(restored) == wanted


def test_groups_that_are_alike_cancel_each_other_out_and_are_restored_all_the_same() -> None:
    alike = [RECORD.pack(SETTLED, 0, 4, 7, 1, 2, 1_000, 0, 0), bytes(1_000), b""]
    block = Block(alike * 3)
    for number in range(3):
        raw = bytearray(block.raw)
        raw[BLOCK_BYTES + number * 1_042 + 500] ^= 4
        assert block.restored(bytes(raw), len(block.payload)) == block.payload


def test_any_sector_of_the_facts_can_be_restored() -> None:
    dice = Random(5)
    block = Block(records(dice, 300))
    wanted = block.without_bodies(block.payload)
    for offset in dice.sample(range(len(block.facts) - 512), 200):
        raw = bytearray(block.raw)
        raw[BLOCK_BYTES + offset : BLOCK_BYTES + offset + 512] = dice.randbytes(512)
        restored = block.restored(bytes(raw), len(block.payload))
        assert restored is not None, offset
        assert block.without_bodies(restored) == wanted


def test_more_damage_than_can_be_restored_is_said_and_nothing_is_made_up() -> None:
    dice = Random(6)
    block = Block(records(dice, 300))
    wanted = block.without_bodies(block.payload)
    given_up = 0
    for _ in range(300):
        raw = bytearray(block.raw)
        for _ in range(dice.randint(1, 12)):
            offset = dice.randrange(len(block.raw))
            size = dice.choice((1, 100, 3_000))
            raw[offset : offset + size] = dice.randbytes(len(raw[offset : offset + size]))
        restored = block.restored(bytes(raw), dice.choice((0, len(block.payload))))
        if restored is None:
            given_up += 1
        else:
            assert block.without_bodies(restored) == wanted
    assert 50 < given_up < 300


def test_a_guard_is_small_beside_what_it_guards() -> None:
    """A kilobyte or two and a hundredth."""
    block = Block(records(Random(7), 2_000))
    assert len(block.payload) - len(block.facts) < 8_192 + len(block.facts) // 50
