"""A process that uses a store as hard as it can until it is killed, and tells its parent what it was promised.

Lines on standard output: `t e s` a settlement is about to be appended, `p e s` a put is durable, `s e s` a settlement is durable.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

from tandem.broker.ports import Effect
from tandem.model.clock import SystemClock
from tandem.stores import LogSettings, SegmentStore
from tests.stores.harness import Loop, Shop

SETTINGS = LogSettings(segment_bytes=65_536, compaction_records_per_step=64, index_spill_bytes=4_096)


def body_of(entity: int, seq: int) -> bytes:
    """Anybody can tell what a message should hold."""
    return b"%d/%d " % (entity, seq) * (seq * 7 % 90 + 1)


class Promise(Effect):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def done(self, error: BaseException | None) -> None:
        if error is not None:
            raise error
        os.write(1, "".join(self.lines).encode())


def main() -> None:
    directory, seed = Path(sys.argv[1]), int(sys.argv[2])
    random = Random(seed)
    loop = Loop()
    shop = Shop()
    store = SegmentStore(directory, loop.call, SETTINGS, SystemClock())
    shop.journal = store
    store.replay(shop)
    os.write(1, b"open\n")
    while True:
        promised: list[str] = []
        doomed = random.sample(sorted(shop.messages), k=min(len(shop.messages), random.randint(0, 8)))
        os.write(1, "".join(f"t {entity} {seq}\n" for entity, seq in doomed).encode())
        for entity, seq in doomed:
            shop.settle(entity, seq)
            promised.append(f"s {entity} {seq}\n")
        for _ in range(random.randint(0, 8)):
            entity = 4 * random.randint(1, 3)
            seq = shop.counters.get(entity, 0) + 1
            shop.put(entity, b"%d" % seq, body_of(entity, seq))
            promised.append(f"p {entity} {seq}\n")
        if promised and random.random() < 0.9:
            store.when_durable(Promise(promised))
        store.flush()
        if random.random() < 0.2:
            store.step_compaction()
        if store.pending_bytes > 20_000:
            loop.run_until(lambda: store.pending_bytes < 10_000)
        loop.run_ready()


if __name__ == "__main__":
    main()
