"""A Redis that goes away, is silent, loses something or refuses to write."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.kv.index.conftest import A, B, MakeGateway, blocks, until
from tests.kv.index.redis_server import RedisServer, running_server

from inferway.errors import IndexAwayError
from inferway.kv.index.protocol import CPU, Clear, MatchResult, Remove, Store
from inferway.kv.index.redis import RedisLimits

pytestmark = pytest.mark.tools


async def test_a_restarted_empty_server_is_written_anew(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=2)
    index.apply([Store(A, [1, 2, 3]), Store(B, [1])])
    await index.flushed()
    server.kill()
    with pytest.raises(IndexAwayError):
        await index.match([1, 2, 3])
    index.apply([Store(A, [4], parent=3), Remove(B, [1])])
    server.start()
    await until(lambda: not index.away and index.num_leases == 2, "it is back")
    await index.flushed()

    assert await blocks(index, 1, 2, 3, 4) == {A: 4}


async def test_a_restarted_empty_server_is_written_anew_though_nothing_happens(
    gateway: MakeGateway, server: RedisServer
) -> None:
    """It counts from the start again: the very same lease, and nobody who writes."""
    index = await gateway(offers=1)
    index.apply([Store(A, [1, 2, 3])])
    await index.flushed()
    lease = server.ask("GET", "inferway:1:a:lease")
    server.kill()
    server.start()
    with pytest.raises(IndexAwayError):
        await index.match([1, 2, 3])
    await until(lambda: not index.away, "it is back")
    await index.keep()
    await index.flushed()

    assert server.ask("GET", "inferway:1:a:lease") == lease
    assert await blocks(index, 1, 2, 3) == {A: 3}
    assert index.stats.written.repairs == 1


async def test_while_it_is_away_matches_fail_at_once_and_operations_wait(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=1)
    server.kill()
    index.apply([Store(A, [1, 2])])
    for _ in range(2):
        with pytest.raises(IndexAwayError, match="is away"):
            await index.match([1, 2])
    with pytest.raises(IndexAwayError, match="is away"):
        await index.match_all([[1], [1, 2]])

    assert index.away
    assert index.stats.refused == 4
    assert (index.standing(A), index.shared_state(A)) == (None, None)
    assert index.num_blocks(A) == 2


async def test_a_server_that_has_never_been_late_is_not_away_at_the_start(
    gateway: MakeGateway,
) -> None:
    index = await gateway(offers=1, limits=RedisLimits(match=1e-9, lease=30.0))

    assert not index.away
    assert (index.num_leases, index.stats.outages) == (1, 0)


async def test_a_match_is_not_late_because_this_process_was_busy(gateway: MakeGateway) -> None:
    index = await gateway(offers=1, limits=RedisLimits(match=0.5, lease=30.0))
    asked = asyncio.ensure_future(index.match([1]))
    await asyncio.sleep(0)
    busy_until = time.perf_counter() + 0.8
    while time.perf_counter() < busy_until:
        pass

    assert await asked == MatchResult({})
    assert index.stats.late == 0


async def test_a_gateway_may_start_before_the_server(gateway: MakeGateway) -> None:
    with running_server() as late:
        late.kill()
        index = await gateway(offers=1, url=late.url)
        index.apply([Store(A, [1, 2])])
        assert index.away
        late.start()
        await until(lambda: index.num_leases == 1, "it writes")
        await index.flushed()

        assert await blocks(index, 1, 2) == {A: 2}
        await index.close()


async def test_an_outage_is_in_the_log_once_and_so_is_its_end(
    gateway: MakeGateway, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "inferway.index")
    index = await gateway(offers=1)
    server.kill()
    for _ in range(5):
        with pytest.raises(IndexAwayError):
            await index.match([1])
    server.start()
    await until(lambda: not index.away, "it is back")
    words = [record.getMessage().partition(server.url)[2] for record in caplog.records]

    assert len(words) == 2
    assert words[0].startswith(" is away, and requests go by load only: ")
    assert words[1] == " is back"
    assert index.stats.outages == 1


async def test_a_silent_server_holds_up_three_matches_and_no_more(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=1, limits=RedisLimits(match=0.1, retry=0.02))
    index.apply([Store(A, [1])])
    await index.flushed()
    server.fall_silent()
    for _ in range(20):
        with pytest.raises(IndexAwayError):
            await index.match([1])
    server.go_on()
    await until(lambda: not index.away, "it is back")

    assert (index.stats.late, index.stats.refused) == (3, 17)
    assert await blocks(index, 1) == {A: 1}


async def test_one_late_answer_spoils_nothing(gateway: MakeGateway, server: RedisServer) -> None:
    index, patient = await gateway(1, limits=RedisLimits(match=0.25)), await gateway()
    index.apply([Store(A, [1])])
    await index.flushed()
    server.fall_silent()
    with pytest.raises(IndexAwayError, match="no answer within"):
        await index.match([1])
    server.go_on()
    await patient.match([1])

    assert await blocks(index, 1) == {A: 1}
    assert index.stats.outages == 0


async def test_flushed_scripts_are_loaded_again(gateway: MakeGateway, server: RedisServer) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, [1])])
    await index.flushed()
    server.ask("SCRIPT", "FLUSH")
    with pytest.raises(IndexAwayError):
        await index.match([1])
    await until(lambda: not index.away, "it is back")

    assert await blocks(index, 1) == {A: 1}


async def test_a_set_that_the_server_lost_is_noticed(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, [1, 2])])
    await index.flushed()
    server.ask("DEL", "inferway:1:a:held")
    await index.keep()
    await index.flushed()

    assert await blocks(index, 1, 2) == {A: 2}
    assert index.stats.written.repairs == 1


async def test_a_lost_record_leaves_nothing_to_believe(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, [1, 2], tier=CPU)])
    await index.flushed()
    server.ask("DEL", "inferway:1:a")
    index.apply([Clear(A)])
    await index.flushed()
    assert await blocks(index, 1, 2) == {}
    index.apply([Store(A, [1, 2]), Store(A, [3], parent=2, tier=CPU)])
    await index.flushed()

    assert (await index.match([1, 2, 3])).discount == pytest.approx({A: 0.2})


async def test_a_server_that_fell_back_to_an_older_state_is_written_anew(
    gateway: MakeGateway, server: RedisServer
) -> None:
    """As after a failover to a replica that had not yet heard of the last batches."""
    index = await gateway(offers=1)
    index.apply([Store(A, [1, 2])])
    await index.flushed()
    before = int(server.ask("HGET", "inferway:1:a", "batch"))
    index.apply([Remove(A, [2])])
    await index.flushed()
    server.ask("SADD", "inferway:1:a:held", (2).to_bytes(8, "little").decode())
    server.ask("HSET", "inferway:1:a", "batch", before)
    assert await blocks(index, 1, 2) == {A: 2}
    index.apply([Store(A, [9])])
    await index.flushed()

    assert await blocks(index, 1, 2) == {A: 1}
    assert index.stats.written.repairs == 1


async def test_a_server_that_refuses_to_write_gets_no_older_than_a_lease(
    gateway: MakeGateway, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of memory: who cannot keep a picture true lets go of it, and tries again later."""
    index = await gateway(offers=1, limits=RedisLimits(match=2.0, lease=0.3, rest=0.1))
    await index.flushed()
    server.ask("CONFIG", "SET", "maxmemory", 1)
    index.apply([Store(A, [1, 2])])
    await until(lambda: index.num_leases == 0, "it lets go")
    server.ask("CONFIG", "SET", "maxmemory", 0)
    await until(lambda: index.num_leases == 1, "it tries again")
    await index.flushed()

    assert await blocks(index, 1, 2) == {A: 2}
    assert "refuses what is written" in caplog.text
