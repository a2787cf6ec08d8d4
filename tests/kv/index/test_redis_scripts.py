"""What the server does with a batch, beyond what gateways let it see."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.kv.index.redis_server import RedisServer

from inferway.kv.index.protocol import LastReport, Remove, Store
from inferway.kv.index.redis.connection_health import PipelinedConnection
from inferway.kv.index.redis.scripts import MATCH, WRITE
from inferway.kv.index.redis.writer import HolderWriter, WriteAnswer, WriterStats

pytestmark = pytest.mark.tools

NAME = "inferway:1:a"
LEASE = "1 us"


@pytest.fixture
async def lane(server: RedisServer) -> AsyncIterator[PipelinedConnection]:
    server.ask("SET", f"{NAME}:lease", LEASE)
    made = PipelinedConnection(server.url, WRITE, MATCH)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def writer() -> HolderWriter:
    return new_writer()


def new_writer() -> HolderWriter:
    made = HolderWriter(WriterStats(), 1000, 60_000, name=NAME)
    made.tell(LastReport("exact"))
    made.leased(LEASE)
    return made


async def send(lane: PipelinedConnection, writer: HolderWriter, limit: int = 100) -> WriteAnswer:
    """The next batch, or the last one again; it stays unanswered."""
    write = writer.next_write(limit)
    assert write is not None
    answer = await lane.ask(WRITE, (write.name, "inferway:1:fence"), write.args)
    return WriteAnswer(answer.decode())


async def send_all(lane: PipelinedConnection, writer: HolderWriter) -> None:
    while writer.busy:
        writer.answered(await send(lane, writer))


async def matched(lane: PipelinedConnection, *keys: int) -> bytes:
    prompt = b"".join(key.to_bytes(8, "little") for key in keys)
    answer: bytes = await lane.ask(MATCH, (NAME,), (prompt,))
    return answer


async def test_a_batch_whose_answer_was_lost_is_not_done_twice(
    lane: PipelinedConnection, writer: HolderWriter
) -> None:
    writer.apply(Store(0, [1, 2]))
    await send_all(lane, writer)
    writer.apply(Remove(0, [2]))

    assert [await send(lane, writer) for _ in range(3)] == ["ok", "done", "done"]
    assert await matched(lane, 1, 2) == b"0 1 0"


async def test_a_picture_that_was_never_finished_leaves_nothing_in_the_next(
    lane: PipelinedConnection, writer: HolderWriter
) -> None:
    writer.apply(Store(0, [1, 2, 3, 4]))
    assert await send(lane, writer, limit=3) == "ok"
    assert await matched(lane, 1) == b""

    after = new_writer()
    after.apply(Store(0, [1, 2]))
    await send_all(lane, after)

    assert await matched(lane, 1, 2, 3) == b"0 2 0"


async def test_a_batch_after_one_that_never_came_is_refused(
    lane: PipelinedConnection, writer: HolderWriter
) -> None:
    await send_all(lane, writer)
    for key in (1, 2):
        writer.apply(Store(0, [key]))
        writer.next_write(100)
        if key == 1:
            writer.answered(WriteAnswer.OK)  # as if it had

    assert await send(lane, writer) == "step"
    assert await matched(lane, 2) == b""


async def test_without_its_lease_nothing_is_written(
    lane: PipelinedConnection, writer: HolderWriter, server: RedisServer
) -> None:
    server.ask("SET", f"{NAME}:lease", "2 another")
    writer.apply(Store(0, [1]))

    assert await send(lane, writer) == "fenced"
    assert server.keys() == {f"{NAME}:lease"}
