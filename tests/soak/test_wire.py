"""The wire that breaks connections passes bytes on until then."""

from __future__ import annotations

import asyncio

import pytest
from tests.soak.engines import Wire
from tests.upstream.engines import answer, in_loop, running

REQUEST = b"GET / HTTP/1.1\r\nhost: e\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@in_loop
async def test_bytes_go_through_until_the_reset() -> None:
    async with running(answer(b"ok")) as engine:
        wire = Wire(int(engine.url.rpartition(":")[2]))
        await wire.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        writer.write(REQUEST)

        assert await reader.readexactly(len(ANSWER)) == ANSWER
        assert wire.reset() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()

        writer.transport.abort()
        await wire.close()


@in_loop
async def test_a_wire_that_refuses_lets_in_again_when_it_is_opened() -> None:
    async with running(answer(b"ok")) as engine:
        wire = Wire(int(engine.url.rpartition(":")[2]))
        await wire.open()
        wire.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", wire.port)

        await wire.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
        writer.write(REQUEST)

        assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.transport.abort()
        await wire.close()
