"""The trivial engine, but for streams: their events come one by one, as a real engine's do.

`python -m inferway_bench.epp.engine --model NAME --root DIR --events N` prints its url as a JSON
line, and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

import uvloop

from inferway_bench.engine_answers import chat_stream
from inferway_bench.engine_events import ZmqPublisher
from inferway_bench.upstream import Engine, EngineConnection

GAP_SECONDS = 0.004  # between two events: far enough that each is a piece of its own


class PacedConnection(EngineConnection):
    """Answers at once, but for streams."""

    def __init__(self, engine: Engine, events: int, stream: bytes) -> None:
        super().__init__(engine)
        head, blank, rest = stream.partition(b"\r\n\r\n")
        size, line_end, _ = rest.partition(b"\r\n")
        self._head = head + blank
        self._event = rest[: len(size) + len(line_end) + int(size, 16) + 2]
        self._end = rest[rest.rindex(b"\r\n", 0, rest.rindex(b"\r\ndata: [DONE]")) + 2 :]
        self._events = events

    def on_message_complete(self) -> None:
        if b'"stream":true' not in b"".join(self._body)[-200:]:
            super().on_message_complete()
            return
        self._url.clear()
        self._body.clear()
        self._transport.write(self._head)
        self._write_next(self._events)

    def _write_next(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if not left:
            self._transport.write(self._end)
            return
        self._transport.write(self._event)
        asyncio.get_running_loop().call_later(GAP_SECONDS, self._write_next, left - 1)


async def _serve(model: str, root: str, events: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    publisher = ZmqPublisher(16)
    engine, stream = Engine(model, root, 16, publisher), chat_stream(model)
    server = await loop.create_server(
        lambda: PacedConnection(engine, events, stream), "127.0.0.1", 0
    )
    print(f'{{"url":"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}}', flush=True)
    async with server:
        await stop.wait()
    publisher.close()


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(prog="python -m inferway_bench.epp.engine")
    parser.add_argument("--model", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--events", type=int, default=50)
    given = parser.parse_args(argv)
    uvloop.run(_serve(given.model, given.root, given.events))


if __name__ == "__main__":
    main(sys.argv[1:])
