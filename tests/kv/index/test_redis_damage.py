"""Keys in Redis that no gateway has written so: they harm their engine, and nobody else."""

from __future__ import annotations

import logging

import pytest
from tests.kv.index.conftest import A, B, MakeGateway, blocks
from tests.kv.index.redis_server import RedisServer

from inferway.kv.index.protocol import CPU, Clear, Store, Window

pytestmark = pytest.mark.tools

NAME, FENCE = "inferway:1:a", "inferway:1:fence"
DAMAGE: dict[str, list[tuple[str | bytes, ...]]] = {
    "a record that is text": [("SET", NAME, "x")],
    "a record that is a list": [("DEL", NAME), ("LPUSH", NAME, "x")],
    "a record of odd fields": [
        ("HSET", NAME, *("batch", "x", "epoch", "9" * 40, "seq", "?", "state", b"\xff")),
    ],
    "blocks that are text": [("SET", f"{NAME}:held", "x")],
    "blocks that are a hash": [("DEL", f"{NAME}:held"), ("HSET", f"{NAME}:held", "a", "b")],
    "a lower tier that is text": [("SET", f"{NAME}:t1", "x")],
    "a window that is text": [("SET", f"{NAME}:g1", "x")],
    "a lease that is a list": [("DEL", f"{NAME}:lease"), ("LPUSH", f"{NAME}:lease", "x")],
    "a lease without a gateway": [("SET", f"{NAME}:lease", "12", "PX", "3600000")],
    "a lease of words": [("SET", f"{NAME}:lease", b"\xff nobody \xfe", "PX", "3600000")],
    "a lease without an end": [("SET", f"{NAME}:lease", "12 nobody")],
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_it_harms_its_engine_alone_and_is_written_anew(
    gateway: MakeGateway, server: RedisServer, damage: str
) -> None:
    writer, reader = await gateway(offers=2), await gateway()
    writer.apply([Window(A, 1, 1)])
    writer.apply([Store(A, [1, 2, 3]), Store(A, [3], parent=2, tier=CPU)])
    writer.apply([Store(A, [1, 2, 3], group=1), Store(B, [1, 2])])
    await writer.flushed()
    expected = await blocks(reader, 1, 2, 3)
    assert expected == {A: 3, B: 2}

    for command in DAMAGE[damage]:
        server.ask(*command)

    assert (await blocks(reader, 1, 2, 3))[B] == 2
    for index in (writer, reader):
        await index.keep()
        assert not index.away
    writer.apply([Store(A, [4], parent=3), Store(B, [3], parent=2)])
    await writer.flushed()

    assert await blocks(reader, 1, 2, 3) == {A: 3, B: 3}
    await reader.keep()
    assert reader.shared_state(A) == "exact"


async def test_the_key_is_named_once_with_the_cure(
    gateway: MakeGateway, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    reader = await gateway()
    server.ask("SET", f"{NAME}:held", "x")

    with caplog.at_level(logging.WARNING, "inferway.index"):
        for _ in range(3):
            await reader.keep()

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"the key {NAME}:held is not as gateways write it" in caplog.text
    assert f"redis-cli UNLINK {NAME}:held" in caplog.text
    assert "away" not in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        ("LPUSH", "x"),
        ("SET", "x"),
        ("SET", ""),
        ("SET", "-3"),
        ("SET", "9" * 30),
    ],
)
async def test_a_damaged_fence_begins_anew(
    gateway: MakeGateway, server: RedisServer, damage: tuple[str, str]
) -> None:
    """Every lease needs a number of it: no gateway could write."""
    writer = await gateway(offers=1)
    writer.apply([Store(A, [1, 2])])
    await writer.flushed()
    server.ask("DEL", FENCE)
    server.ask(damage[0], FENCE, damage[1])

    other = await gateway(offers=2)
    writer.apply([Clear(A), Store(A, [1, 2, 3])])  # another picture has a number, too
    other.apply([Store(B, [1])])
    for index in (writer, other):
        await index.flushed()

    assert (writer.num_leases, other.num_leases) == (1, 1)
    assert await blocks(other, 1, 2, 3) == {A: 3, B: 1}
    assert not writer.away
    assert not other.away


async def test_a_damaged_lease_is_left_alone_by_who_cannot_write(
    gateway: MakeGateway, server: RedisServer
) -> None:
    reader = await gateway()
    server.ask("SET", f"{NAME}:lease", "12 nobody")

    await reader.keep()

    assert server.ask("GET", f"{NAME}:lease") == "12 nobody"
    assert not reader.away
