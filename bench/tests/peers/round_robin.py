"""A peer as small as can be: `python round_robin.py PORT ENGINE_URL ...` hands each connection to
the next engine, byte for byte."""

from __future__ import annotations

import asyncio
import sys
from itertools import cycle
from urllib.parse import urlsplit


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main(port: int, engines: list[str]) -> None:
    turns = cycle([urlsplit(engine) for engine in engines])

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine = next(turns)
        back, forth = await asyncio.open_connection(engine.hostname, engine.port)
        await asyncio.gather(pipe(reader, forth), pipe(back, writer))

    server = await asyncio.start_server(carry, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
