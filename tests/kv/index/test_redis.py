"""The Redis index beyond the contract (tests/contract/test_index.py): how much it takes, and how
to get there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.kv.index.conftest import A, B, C, MakeGateway, blocks, until
from tests.kv.index.redis_server import RedisServer, make_certificates, running_on_a_port

from inferway.errors import IndexAwayError
from inferway.kv.index.protocol import CPU, Clear, Remove, Store, Window
from inferway.kv.index.redis import RedisIndex, RedisLimits
from inferway.kv.index.redis.channel import RedisChannel
from inferway.kv.index.redis.reader import TOGETHER

pytestmark = pytest.mark.tools

DOCS = Path(__file__).parents[3] / "docs" / "redis.md"

# how much


async def test_a_long_prompt_is_one_round_trip(gateway: MakeGateway, server: RedisServer) -> None:
    index = await gateway(offers=3)
    prompt = [key * 0x9E3779B97F4A7C15 % 2**64 for key in range(1, 8193)]
    index.apply([Store(A, prompt), Store(B, prompt[:5000]), Store(C, prompt[:1])])
    await index.flushed()
    server.ask("CONFIG", "RESETSTAT")

    assert await blocks(index, *prompt) == {A: 8192, B: 5000, C: 1}
    calls = server.ask("INFO", "commandstats")["cmdstat_evalsha"]["calls"]
    assert calls == 1


async def test_many_matches_at_once_each_get_their_own_answer(gateway: MakeGateway) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, list(range(1, 101)))])
    await index.flushed()
    found = await asyncio.gather(*(blocks(index, *range(1, n)) for n in range(2, 200)))

    assert found == [{A: min(n - 1, 100)} for n in range(2, 200)]


async def test_prompts_of_one_request_share_round_trips(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=1)
    index.apply([Store(A, list(range(1, 101)))])
    await index.flushed()

    def reads() -> int:
        return int(server.ask("INFO", "stats")["total_reads_processed"])

    before, between = reads(), reads()
    found = await index.match_all([range(1, n) for n in range(1, 2 * TOGETHER + 2)])

    assert [dict(each.blocks) for each in found] == [
        {},
        *({A: n} for n in range(1, 2 * TOGETHER + 1)),
    ]
    assert reads() - between == 3 + (between - before)


async def test_too_long_a_queue_is_dropped_and_written_from_scratch(
    gateway: MakeGateway,
) -> None:
    limits = RedisLimits(match=2.0, retry=0.02, lease=30.0, pending=10)
    index = await gateway(offers=1, limits=limits)
    index.apply([Store(A, [1, 2, 3])])
    await index.flushed()
    for key in range(100, 200):
        index.apply([Store(A, [key]), Remove(A, [key])])
        assert index.num_pending <= 11
    index.apply([Remove(A, [3])])
    await index.flushed()

    assert await blocks(index, 1, 2, 3) == {A: 2}
    assert index.stats.written.pictures == 2


async def test_lower_tiers_weigh_less(gateway: MakeGateway) -> None:
    index = await gateway(offers=2)
    index.apply([Store(A, [1, 2, 3]), Store(B, [1]), Store(B, [2, 3], parent=1, tier=CPU)])
    index.apply([Store(B, [4], parent=3, tier=7)])
    await index.flushed()

    found = await index.match([1, 2, 3, 4])

    assert found.blocks == {A: 3, B: 4}
    assert found.discount == pytest.approx({B: 2 * 0.2 + 0.5})


def numbers(index: RedisIndex) -> dict[str, float]:
    """What /metrics shows of it."""
    return {each.name: each.value for family in index.families() for each in family.samples}


async def test_what_it_says_of_itself(gateway: MakeGateway, server: RedisServer) -> None:
    index = await gateway(offers=2)
    nothing = numbers(index)["inferway_index_bytes"]
    index.apply([Store(A, range(1, 10_001))])
    await index.flushed()
    await index.match([1, 2])
    at_rest = numbers(index)
    server.kill()
    with pytest.raises(IndexAwayError):
        await index.match([1, 2])
    index.apply([Store(A, [20_000])])
    away = numbers(index)

    def of(told: dict[str, float], *names: str) -> list[float]:
        return [told[f"inferway_index_{name}"] for name in names]

    assert 80 < (at_rest["inferway_index_bytes"] - nothing) / 10_000 < 200
    assert of(at_rest, "away", "leases", "pictures_total") == [0, 2, 2]
    assert of(at_rest, "written_keys_total", "pending_keys") == [10_000, 0]
    assert of(away, "away", "outages_total", "pending_keys") == [1, 1, 1]
    assert of(away, "matches_total", "refused_total", "late_total") == [2, 1, 0]
    assert of(away, "match_seconds_count") == [1]
    assert 0 < away["inferway_index_match_seconds_sum"] < 2


# how to get there


async def test_all_keys_begin_with_the_prefix_and_lapse(
    gateway: MakeGateway, server: RedisServer
) -> None:
    index = await gateway(offers=2, prefix="{fleet}")
    index.apply([Store(A, [1], tier=CPU), Store(A, [1], group=2), Window(A, 2, 1)])
    await index.flushed()
    keys = server.keys()

    assert len(keys) > 5
    assert all(key.startswith("{fleet}:1:") for key in keys)
    assert [k for k in keys if server.ask("PTTL", k) < 0] == ["{fleet}:1:fence"]


async def test_fleets_with_different_prefixes_or_databases_know_nothing_of_each_other(
    gateway: MakeGateway, server: RedisServer
) -> None:
    writes = await gateway(offers=1)
    writes.apply([Store(A, [1])])
    await writes.flushed()
    apart = [await gateway(prefix="other"), await gateway(url=f"{server.url}?db=3")]

    assert [await blocks(index, 1) for index in apart] == [{}, {}]


async def test_tls_with_a_ca_of_ones_own(gateway: MakeGateway, tmp_path: Path) -> None:
    tls = make_certificates(tmp_path)
    with running_on_a_port(tls) as port:
        index = await gateway(1, url=f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tls.ca}")
        index.apply([Store(A, [1, 2])])
        await index.flushed()

        assert await blocks(index, 1, 2) == {A: 2}
        await index.close()


async def test_a_server_that_cannot_prove_who_it_is_is_away(
    gateway: MakeGateway, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    tls, other = make_certificates(tmp_path), make_certificates(tmp_path / "other")
    with running_on_a_port(tls) as port:
        index = await gateway(1, url=f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={other.ca}")

        assert index.away
        assert index.num_leases == 0


def documented_rights() -> list[str]:
    """What docs/redis.md tells to grant."""
    [told] = re.findall(r"^ACL SETUSER gw on >secret (.*?)```", DOCS.read_text(), re.M | re.S)
    return [word for word in told.split() if word]


async def test_an_acl_user_needs_the_documented_rights_and_no_more(
    gateway: MakeGateway, server: RedisServer
) -> None:
    rights = documented_rights()
    server.ask("ACL", "SETUSER", "gw", "on", ">p%ss", *rights)
    server.ask("CONFIG", "RESETSTAT")
    index = await gateway(3, url=f"unix://gw:p%25ss@{server.socket}?db=1")
    index.apply([Store(A, [1, 2], tier=CPU), Store(A, [1, 2], group=2), Window(A, 2, 1)])
    await index.flushed()
    assert await blocks(index, 1, 2) == {A: 2}
    index.apply([Remove(A, [2], tier=CPU)])
    await index.keep()
    await index.flushed()
    index.apply([Clear(A), Store(A, [1])])
    await index.flushed()

    assert await blocks(index, 1, 2) == {A: 1}
    index.retire(A)
    await until(lambda: server.ask("EXISTS", "inferway:1:a", db=1) == 0, "its keys are gone")
    assert not index.away
    heard: list[bytes] = []
    channel = RedisChannel(f"unix://gw:p%25ss@{server.socket}?db=1", "inferway", heard.append)
    channel.open()
    while not heard:
        channel.say(b"hello")
        await asyncio.sleep(0.01)
    await channel.close()
    needed = {right[1:] for right in rights if right.startswith("+")}
    called = {name.removeprefix("cmdstat_") for name in server.ask("INFO", "commandstats")}
    assert needed - called == set()


async def test_with_the_documented_rights_a_lease_without_an_end_is_taken(
    gateway: MakeGateway, server: RedisServer
) -> None:
    server.ask("ACL", "SETUSER", "gw", "on", ">secret", *documented_rights())
    server.ask("SET", "inferway:1:a:lease", "12 nobody")

    index = await gateway(1, url=f"unix://gw:secret@{server.socket}")

    assert (index.away, index.num_leases) == (False, 1)


async def test_a_wrong_password_is_an_outage_that_does_not_show_it(
    gateway: MakeGateway, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("ACL", "SETUSER", "gw", "on", ">right", *documented_rights())
    index = await gateway(1, url=f"unix://gw:geheim@{server.socket}")

    assert index.away
    assert "geheim" not in caplog.text
    assert "invalid username-password" in caplog.text


async def test_valkeys_own_scheme_is_understood(gateway: MakeGateway) -> None:
    with running_on_a_port() as port:
        index = await gateway(1, url=f"valkey://127.0.0.1:{port}/2")

        assert not index.away
        await index.close()
