"""Several gateways share one Redis: who writes, who takes over, what the others see."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kv.index.conftest import PATIENT, QUICK, A, B, MakeGateway, blocks, until
from tests.kv.index.redis_server import (
    RedisServer,
)

from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import CPU, Clear, LastReport, MatchResult, Op, Store, Window
from inferway.kv.index.redis import RedisIndex, RedisLimits
from inferway.kv.index.redis.lease_keeper import STATES

pytestmark = pytest.mark.tools


async def test_what_one_gateway_writes_another_matches(gateway: MakeGateway) -> None:
    writes, reads = await gateway(offers=2), await gateway()
    writes.apply([Store(A, [1, 2, 3]), Store(B, [1, 2])])
    await writes.flushed()

    assert await blocks(reads, 1, 2, 3, 4) == {A: 3, B: 2}


async def test_gateways_number_holders_as_they_like(
    gateway: MakeGateway, server: RedisServer
) -> None:
    writes = await gateway(offers=2)
    writes.apply([Store(B, [1, 2])])
    await writes.flushed()
    reads = RedisIndex(server.url, limits=PATIENT)
    reads.introduce(700, "b")
    await reads.start()

    assert await blocks(reads, 1, 2) == {700: 2}
    await reads.close()


async def test_each_holder_has_one_writer(gateway: MakeGateway) -> None:
    first, second = await gateway(offers=3), await gateway(offers=3)
    for index in (first, second):
        index.apply([Store(A, [1])])
        await index.flushed()

    assert (first.num_leases, second.num_leases) == (3, 0)
    assert second.stats.written.batches == 0


async def test_two_gateways_write_different_holders(gateway: MakeGateway) -> None:
    first, second = await gateway(offers=1), await gateway(offers=2)
    for index, holder in ((first, A), (second, B)):
        index.apply([Store(holder, [1, 2])])
        await index.flushed()

    assert (first.num_leases, second.num_leases) == (1, 1)
    assert await blocks(first, 1, 2) == await blocks(second, 1, 2) == {A: 2, B: 2}


async def test_readers_see_how_far_a_picture_goes(gateway: MakeGateway) -> None:
    writes, reads = await gateway(offers=1, gateway="w"), await gateway()
    writes.apply([Store(A, [1, 2])])
    writes.tell(A, LastReport("partial", seq=41, digest="abc"))
    await writes.flushed()
    await reads.keep()
    standing = reads.standing(A)
    assert standing is not None

    assert (standing.state, standing.gateway) == ("partial", "w")
    assert (standing.seq, standing.digest) == (41, "abc")
    assert standing.num_blocks == reads.num_blocks(A) == 2


async def test_whose_state_counts_is_who_writes(gateway: MakeGateway) -> None:
    """A reader goes by what the writer tells; the writer knows better itself."""
    writes, reads = await gateway(offers=1), await gateway()
    writes.tell(A, LastReport("partial"))
    await writes.flushed()
    for index in (writes, reads):
        await index.keep()

    assert (writes.shared_state(A), reads.shared_state(A)) == (None, "partial")
    assert (writes.shared_state(B), reads.shared_state(B)) == ("stale", "stale")
    assert reads.shared_state(700) is None


async def test_a_state_that_nobody_knows_is_stale(
    gateway: MakeGateway, server: RedisServer
) -> None:
    """As from a gateway of another version."""
    writes, reads = await gateway(offers=1), await gateway()
    await writes.flushed()
    server.ask("HSET", "inferway:1:a", "state", "splendid")
    await reads.keep()

    assert reads.shared_state(A) == "stale"
    assert set(StreamState) == STATES


async def test_an_engine_that_starts_anew_begins_a_new_epoch(gateway: MakeGateway) -> None:
    index = await gateway(offers=1)
    epochs = []
    each: list[list[Op]] = [[Store(A, [1])], [Clear(A), Store(A, [2])], [Store(A, [3], parent=2)]]
    for ops in each:
        index.apply(ops)
        await index.flushed()
        await index.keep()
        standing = index.standing(A)
        assert standing is not None
        epochs.append(standing.epoch)

    assert epochs[0] < epochs[1] == epochs[2]


async def test_nothing_of_before_comes_back_with_a_tier_or_a_group(gateway: MakeGateway) -> None:
    """Sets that a new picture has no use for at first must not be found full later."""
    first, second = await gateway(offers=1), await gateway(offers=1)
    before: list[Op] = [Store(A, [1, 2], tier=CPU), Store(A, [1, 2], group=2), Window(A, 2, 1)]
    first.apply(before)
    await first.flushed()
    again: list[list[Op]] = [
        [Clear(A), Store(A, [1, 2])],
        [Store(A, [3], parent=2, tier=CPU), Store(A, [1], group=2), Window(A, 2, 1)],
    ]
    for ops in again:
        first.apply(ops)
        await first.flushed()
    assert await first.match([1, 2, 3]) == MatchResult({A: 1})

    first.apply([Clear(A), *before])
    await first.close()
    second.apply([Store(A, [1, 2])])
    await second.keep()
    await second.flushed()
    second.apply([Store(A, [3], parent=2, tier=CPU), Store(A, [1], group=2), Window(A, 2, 1)])
    await second.flushed()
    assert await second.match([1, 2, 3]) == MatchResult({A: 1})


async def test_who_has_lost_its_engine_leaves_it_to_another(gateway: MakeGateway) -> None:
    """And the other's picture takes the place of the first one's."""
    first, second = await gateway(offers=1), await gateway(offers=1)
    first.apply([Store(A, [1, 2])])
    second.apply([Store(A, [1, 2, 3])])
    await first.flushed()
    assert await blocks(second, 1, 2, 3) == {A: 2}

    first.tell(A, LastReport("stale", fit=False))
    await first.keep()
    await second.keep()
    await second.flushed()

    assert (first.num_leases, second.num_leases) == (0, 1)
    assert await blocks(first, 1, 2, 3) == {A: 3}


async def test_a_picture_that_nobody_confirms_is_stale(gateway: MakeGateway) -> None:
    index = await gateway(offers=1)
    await index.flushed()
    index.tell(A, LastReport("blind", fit=False))
    await index.keep()
    standing = index.standing(A)
    assert standing is not None

    assert (standing.state, standing.gateway) == ("stale", None)


async def test_who_closes_leaves_its_holders_to_others_at_once(gateway: MakeGateway) -> None:
    first, second = await gateway(offers=1), await gateway(offers=1)
    first.apply([Store(A, [1, 2])])
    await first.close()
    await second.keep()

    assert second.num_leases == 1


async def test_what_is_queued_when_a_gateway_closes_is_written(gateway: MakeGateway) -> None:
    writes, reads = await gateway(offers=1), await gateway()
    writes.apply([Store(A, list(range(1, 5000)))])
    await writes.close()

    assert await blocks(reads, *range(1, 5000)) == {A: 4999}


async def test_a_holder_that_is_gone_for_good_leaves_nothing(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, [1, 2]), Store(A, [1, 2], tier=CPU), Store(A, [1], group=2)])
    await index.flushed()
    index.retire(A)

    await until(lambda: server.keys() == {"inferway:1:fence"}, "its keys are gone")
    assert await blocks(index, 1, 2) == {}
    assert index.num_blocks(A) == 0


async def test_a_number_may_be_given_to_another_holder(gateway: MakeGateway) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, [1, 2])])
    await index.flushed()
    index.retire(A)
    index.introduce(A, "another")
    index.tell(A, LastReport("exact"))
    index.apply([Store(A, [1])])
    await index.keep()
    await index.flushed()

    assert await blocks(index, 1, 2) == {A: 1}


# killed and paused writers


@pytest.fixture
async def killed(server: RedisServer) -> AsyncIterator[subprocess.Popen[str]]:
    """Another process that writes the holder A."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kv.index.redis_gateway", server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "writes\n"
    yield process
    process.kill()
    process.communicate()


async def test_a_killed_writer_is_replaced_and_its_picture_too(
    gateway: MakeGateway, killed: subprocess.Popen[str]
) -> None:
    """The survivor knows that block 3 is gone: the dead one's belief must not stay."""
    survivor = await gateway(offers=1, limits=QUICK)
    survivor.apply([Store(A, [1, 2, 9])])
    assert survivor.num_leases == 0
    assert await blocks(survivor, 1, 2, 3) == {A: 3}

    killed.kill()
    await until(lambda: survivor.num_leases == 1, "the survivor writes")
    await survivor.flushed()

    assert await blocks(survivor, 1, 2, 3) == {A: 2}
    assert await blocks(survivor, 1, 2, 9) == {A: 3}


async def test_until_then_its_picture_is_stale(
    gateway: MakeGateway, killed: subprocess.Popen[str]
) -> None:
    reads = await gateway(limits=QUICK)
    standing = reads.standing(A)
    assert standing is not None
    assert (standing.gateway, standing.state, standing.seq) == ("killed", "exact", 3)

    killed.kill()

    def is_stale() -> bool:
        standing = reads.standing(A)
        return standing is not None and standing.state == "stale"

    await until(is_stale, "its picture is stale")
    assert await blocks(reads, 1, 2, 3) == {A: 3}


async def test_a_paused_writer_cannot_write_after_it_was_replaced(
    gateway: MakeGateway, killed: subprocess.Popen[str]
) -> None:
    survivor = await gateway(offers=1, limits=QUICK)
    survivor.apply([Store(A, [1, 2])])
    killed.send_signal(signal.SIGSTOP)
    await until(lambda: survivor.num_leases == 1, "the survivor writes")
    await survivor.flushed()
    assert killed.stdin is not None
    assert killed.stdout is not None
    killed.stdin.write("4\n")
    killed.stdin.flush()
    killed.send_signal(signal.SIGCONT)
    said = await asyncio.to_thread(killed.stdout.readline)

    assert said in ("fenced\n", "written\n")  # "written": it had heard of its loss before
    assert survivor.num_leases == 1
    assert await blocks(survivor, 1, 2, 3, 4) == {A: 2}


async def test_a_late_batch_is_refused(gateway: MakeGateway, server: RedisServer) -> None:
    """The lease goes while a writer believes that it has it."""
    first, second = await gateway(offers=1), await gateway(offers=1)
    first.apply([Store(A, [1])])
    second.apply([Store(A, [1])])
    await first.flushed()
    server.ask("DEL", "inferway:1:a:lease")
    await second.keep()
    await second.flushed()
    first.apply([Store(A, [2], parent=1)])
    await first.flushed()

    assert first.stats.written.fenced == 1
    assert (first.num_leases, second.num_leases) == (0, 1)
    assert await blocks(first, 1, 2) == {A: 1}


async def test_tokens_only_rise(gateway: MakeGateway, server: RedisServer) -> None:
    index = await gateway(offers=1)
    tokens = []
    for _ in range(3):
        await index.keep()
        tokens.append(int(server.ask("GET", "inferway:1:a:lease").split()[0]))
        server.ask("DEL", "inferway:1:a:lease")

    assert tokens == sorted(set(tokens))


async def test_what_nobody_confirms_is_forgotten(gateway: MakeGateway, server: RedisServer) -> None:
    limits = RedisLimits(match=2.0, lease=0.3, forget=1.0)
    index, reads = await gateway(offers=1, limits=limits), await gateway()
    index.apply([Store(A, [1, 2], tier=CPU), Store(A, [1, 2], group=2), Window(A, 2, 1)])
    await index.flushed()
    assert await blocks(reads, 1, 2) == {A: 2}
    index.tell(A, LastReport("stale", fit=False))

    await until(lambda: server.keys() == {"inferway:1:fence"}, "all has lapsed")
    assert await blocks(reads, 1, 2) == {}


async def test_what_its_writer_confirms_stays(gateway: MakeGateway, server: RedisServer) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, [1], tier=CPU), Store(A, [1], group=2)])
    await index.flushed()
    keys = ["inferway:1:a", *(f"inferway:1:a:{of}" for of in ("lease", "held", "t1", "g2"))]
    for key in keys:
        server.ask("PEXPIRE", key, 10_000)
    await index.keep()

    assert all(server.ask("PTTL", key) > 10_000 for key in keys)
