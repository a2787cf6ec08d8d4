"""A trivial engine: looks like vLLM to a router, answers at once and with next to no CPU.

`python -m inferway_bench.upstream --model NAME --root DIR` prints one JSON line with its url
when it listens, and serves until it gets SIGTERM. It publishes KV events when it is asked to
(`POST /bench/publish {"token_ids": [...]}`), so that what a router matches is matched for real, and
streams step by step if it is told to (`POST /bench/streams {"tokens": 500, "seconds": 0.004}`).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence

import httptools
import msgspec
import uvloop

from inferway_bench.engine_answers import (
    NOT_FOUND,
    REFUSED,
    chat_stream,
    fixed_answers,
    json_answer,
)
from inferway_bench.engine_events import Publisher, ZmqPublisher
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.engine_streams import Pace, PacedStreams

_SHORT_BYTES = 4096
_BACKLOG = 2048  # uvicorn's, which serves vLLM

TokenIdsOf = Callable[[bytes], list[int]]


class Engine:
    """Answers by path. All answers are made once but those to /bench/publish and /render.

    `render` turns a chat body into token ids; without it /render is refused, as vLLM does unless
    it was started with --enable-scale-out.
    """

    def __init__(
        self,
        model: str,
        root: str,
        block_size: int,
        publisher: Publisher,
        render: TokenIdsOf | None = None,
    ) -> None:
        self._model = model
        self._publisher = publisher
        self._render = render
        self._answers = fixed_answers(model, root, block_size, publisher.endpoint)
        self._stream = chat_stream(model)
        self._streams = PacedStreams(model)

    def answer(self, path: str, body: bytes) -> bytes:
        """The whole HTTP answer, head and body."""
        path = path.partition("?")[0]
        if path == "/bench/publish":
            token_ids = msgspec.json.decode(body, type=dict[str, list[int]])["token_ids"]
            return json_answer({"blocks": self._publisher.publish(token_ids)})
        if path == "/bench/streams":
            self._streams.pace = msgspec.json.decode(body, type=Pace)
            return json_answer({})
        if path == "/bench/written":
            return json_answer({"events": self._streams.written})
        if path == "/v1/chat/completions/render":
            return REFUSED if self._render is None else self._rendered(self._render(body))
        if path == "/v1/chat/completions" and _wants_stream(body):
            return self._stream
        return self._answers.get(path, NOT_FOUND)

    def streams(self, body: bytes, transport: asyncio.Transport) -> bool:
        """Whether it is a stream that comes step by step; it has begun then."""
        if self._streams.pace is None or not _wants_stream(body):
            return False
        self._streams.begin(transport)
        return True

    def _rendered(self, token_ids: list[int]) -> bytes:
        return json_answer(
            {
                "request_id": "chatcmpl-5d6e1a0f7c2b4f0f9a4b3c2d1e0f9a8b",
                "token_ids": token_ids,
                "features": None,
                "sampling_params": {"temperature": 0.7, "max_tokens": 64},
                "model": self._model,
                "stream": False,
            }
        )


def _wants_stream(body: bytes) -> bool:
    """Routers may write a body anew, its keys in another order; a long one is searched at its end
    only."""
    return b'"stream":true' in (body if len(body) < _SHORT_BYTES else body[-200:])


class EngineConnection(asyncio.Protocol):
    """One keep-alive connection of a client."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._url: list[bytes] = []
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url.append(url)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = b"".join(self._url).decode("latin-1")
        body = b"".join(self._body)
        if not self._engine.streams(body, self._transport):
            self._transport.write(self._engine.answer(path, body))
        self._url.clear()
        self._body.clear()


async def serve(engine: Engine, stop: asyncio.Event) -> None:
    """Listen on a free port of the loopback, print it as JSON, and serve until `stop`."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: EngineConnection(engine), "127.0.0.1", 0, backlog=_BACKLOG
    )
    port = server.sockets[0].getsockname()[1]
    print(f'{{"url":"http://127.0.0.1:{port}"}}', flush=True)
    async with server:
        await stop.wait()


async def _serve_until_signal(arguments: Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    publisher = ZmqPublisher(arguments.block_size)
    prompts = EnginePrompts(arguments.root) if arguments.enable_scale_out else None
    engine = Engine(
        arguments.model,
        arguments.root,
        arguments.block_size,
        publisher,
        prompts.token_ids if prompts else None,
    )
    try:
        await serve(engine, stop)
    finally:
        publisher.close()
        if prompts:
            prompts.close()


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(prog="python -m inferway_bench.upstream")
    parser.add_argument("--model", required=True)
    parser.add_argument("--root", required=True, help="the model's directory")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--enable-scale-out", action="store_true", help="serve /render")
    uvloop.run(_serve_until_signal(parser.parse_args(argv)))


if __name__ == "__main__":
    main(sys.argv[1:])
