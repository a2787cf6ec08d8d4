"""A gateway in a process of its own, to be killed: `python -m tests.kv.index.redis_gateway URL`.

Writes the holder "a" with the blocks 1, 2, 3; says "writes" when Redis has them. Each line on
standard input is a key to store below the last one; what became of it is said in turn.
"""

from __future__ import annotations

import asyncio
import sys

from inferway.kv.index.protocol import LastReport, Store
from inferway.kv.index.redis import RedisIndex, RedisLimits

LEASE_SECONDS = 1.0


async def main(url: str) -> None:
    index = RedisIndex(url, gateway="killed", limits=RedisLimits(lease=LEASE_SECONDS))
    index.introduce(0, "a")
    index.tell(0, LastReport("exact", seq=3))
    index.apply([Store(0, [1, 2, 3])])
    await index.start()
    await index.flushed()
    print("writes", flush=True)
    parent = 3
    while line := await asyncio.to_thread(sys.stdin.readline):
        index.apply([Store(0, [int(line)], parent=parent)])
        parent = int(line)
        await index.flushed()
        print("fenced" if index.stats.written.fenced else "written", flush=True)
    await index.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
