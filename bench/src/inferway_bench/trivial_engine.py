"""The trivial engine: looks like vLLM 0.32 to a router, answers at once and with next to no CPU.

`python -m inferway_bench.trivial_engine MODEL BLOCK_SIZE COUNT [--enable-scale-out]` serves this
number of them in one process until it gets SIGTERM; when all listen, it prints their URLs as a line
of JSON. Benchmarks tell each what to do:

- `POST /bench/publish {"token_ids": [...]}` publishes BlockStored for all full blocks, so that what
  a router matches is matched for real;
- `POST /bench/churn {"tokens": 608, "seconds": 0.1}` from now on stores the blocks of so many
  tokens at each step and removes as many, as an engine with a full cache does;
- `POST /bench/streams {"tokens": 500, "seconds": 0.004}` sets how streams come: step by step, one
  token for each stream that runs, as from a real engine; with 0 seconds all at once;
- `GET /bench/written` counts the events of all streams: the role, the tokens, the usage, [DONE].
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from random import Random

import httptools
import msgspec
import uvloop
import zmq

from inferway.kv.blocks.dialects import Dialect, wire_hash
from inferway.signals import listen
from inferway_bench.conversations import EnginePrompts
from inferway_bench.templates import FOLDER, JsonTemplates

_SHORT_BYTES = 4096
_BACKLOG = 2048  # uvicorn's, which serves vLLM
_ANSWERS = "vllm_answers.json"
_SERVER = "date: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn"
_STREAM_HEAD = (
    f"HTTP/1.1 200 OK\r\n{_SERVER}\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "transfer-encoding: chunked\r\n\r\n"
).encode()
_CHATS = "/v1/chat/completions"
_RENDER = f"{_CHATS}/render"

_BATCHES = 16  # of blocks, that churn goes round

TokenIdsOf = Callable[[bytes], list[int]]
_Event = dict[str, object]


class Pace(msgspec.Struct, frozen=True):
    """The number of tokens of a stream, or of each step, and the seconds between two steps."""

    tokens: int
    seconds: float


def _answer(body: bytes, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\n{_SERVER}\r\n"
        f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n\r\n"
    )
    return head.encode() + body


def _json(value: object) -> bytes:
    return _answer(msgspec.json.encode(value))


_REFUSED = _answer(
    b'{"error":{"message":"start the server with --enable-scale-out","type":'
    b'"PermissionDeniedError","param":null,"code":403}}',
    status="403 Forbidden",
)
_NOT_FOUND = _answer(b'{"error":"not found"}', status="404 Not Found")


class TrivialEngine:
    """Answers by path, as an engine of the model in a directory. All answers are made once but
    those to /bench/… and /render.

    `render` turns a chat body into token ids; without it /render is refused, as vLLM does unless
    it was started with --enable-scale-out.
    """

    def __init__(
        self,
        model: str,
        block_size: int,
        publisher: Publisher,
        render: TokenIdsOf | None = None,
    ) -> None:
        self._words = JsonTemplates(
            _ANSWERS, model=model, root=model, block_size=block_size, endpoint=publisher.endpoint
        )
        self._publisher = publisher
        self._render = render
        self._streams = _Streams(self._words)
        paths = (_CHATS, "/v1/models", "/kv_event_sources", "/server_info")
        self._answers = {path: _json(self._words.fill(path)) for path in (*paths, "/version")}
        self._answers["/health"] = _answer(b"", "text/plain")
        metrics = (FOLDER / "vllm_metrics.txt").read_text()
        metrics = metrics.replace("$MODEL", model).replace("$BLOCK_SIZE", str(block_size))
        self._answers["/metrics"] = _answer(metrics.encode(), "text/plain; version=0.0.4")

    def answer(self, path: str, body: bytes) -> bytes:
        """Return the whole HTTP answer, head and body."""
        path = path.partition("?")[0]
        if path == "/bench/publish":
            token_ids = msgspec.json.decode(body, type=dict[str, list[int]])["token_ids"]
            return _json({"blocks": self._publisher.publish(token_ids)})
        if path == "/bench/churn":
            self._publisher.begin_churn(msgspec.json.decode(body, type=Pace))
            return _json({})
        if path == "/bench/streams":
            self._streams.pace = msgspec.json.decode(body, type=Pace)
            return _json({})
        if path == "/bench/written":
            return _json({"events": self._streams.written})
        if path == _RENDER and self._render is not None:
            return _json(self._words.fill(path, token_ids=self._render(body)))
        return self._answers.get(path, _REFUSED if path == _RENDER else _NOT_FOUND)

    def begins_stream(self, body: bytes, transport: asyncio.Transport) -> bool:
        """Begin a stream on `transport` if the body asks for one; return whether it does.

        Routers may write a body anew, its keys in another order; a long one is searched at its end
        only."""
        searched = body if len(body) < _SHORT_BYTES else body[-200:]
        if b'"stream":true' not in searched:
            return False
        self._streams.begin(transport)
        return True


class _Streams:
    """All streams of an engine, one token each at every step."""

    def __init__(self, words: JsonTemplates) -> None:
        self.pace = Pace(tokens=6, seconds=0)
        self.written = 0
        self._words = words
        self._role, self._token = _event(words.fill("role")), _event(words.fill("token"))
        self._left: dict[asyncio.Transport, int] = {}  # tokens of the streams that run
        self._is_stepping = False

    def begin(self, transport: asyncio.Transport) -> None:
        """Write a stream's head and first event now, the rest with the steps."""
        pace, self.written = self.pace, self.written + 1
        if not pace.seconds:
            transport.write(
                _STREAM_HEAD + self._role + self._token * pace.tokens + self._end(pace.tokens)
            )
            self.written += pace.tokens
            return
        transport.write(_STREAM_HEAD + self._role)
        self._left[transport] = pace.tokens
        if not self._is_stepping:
            self._is_stepping = True
            self._step_at(asyncio.get_running_loop().time() + pace.seconds)

    def _step_at(self, due: float) -> None:
        asyncio.get_running_loop().call_at(due, self._step, due)

    def _step(self, due: float) -> None:
        running, self._left = self._left, {}
        for transport, left in running.items():
            if transport.is_closing():
                continue
            self.written += 1
            if left > 1:
                transport.write(self._token)
                self._left[transport] = left - 1
            else:
                transport.write(self._token + self._end(self.pace.tokens))
        self._is_stepping = bool(self._left)
        if self._is_stepping:
            now = asyncio.get_running_loop().time()
            self._step_at(max(due + self.pace.seconds, now))

    def _end(self, tokens: int) -> bytes:
        self.written += 2
        usage = self._words.fill("usage", tokens=tokens, all_tokens=160 + tokens)
        return _event(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _event(chunk: object) -> bytes:
    return _chunk(b"data: %b\n\n" % msgspec.json.encode(chunk))


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


class Publisher:
    """A PUB socket with vLLM's frames: topic | 8-byte big-endian sequence | msgpack batch.

    The topic is empty, as vLLM's is unless configured: vllm-router 0.1.17 drops, without a
    word, what comes under another (tried).
    """

    def __init__(self, block_size: int) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:*")
        self._block_size = block_size
        self._sequence = 0

    @property
    def endpoint(self) -> str:
        """The address as vLLM says it: `*` is the engine's own host."""
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return f"tcp://*:{bound.rsplit(':', 1)[1]}"

    def publish(self, token_ids: list[int]) -> int:
        """Say that all full blocks of `token_ids` are stored; return how many they are."""
        self._send(block_stored(token_ids, self._block_size))
        return len(token_ids) // self._block_size

    def begin_churn(self, pace: Pace) -> None:
        """Publish two events at each step: blocks that no other engine has are stored, and the
        oldest of `_BATCHES` as large are removed."""
        rng = Random(self.endpoint)
        ids = (rng.choices(range(1000, 40_000), k=pace.tokens) for _ in range(_BATCHES))
        batches = [block_stored(token_ids, self._block_size) for token_ids in ids]
        self._step(pace.seconds, cycle(zip(batches, [*batches[1:], batches[0]], strict=True)))

    def _step(self, seconds: float, steps: Iterator[tuple[_Event, _Event]]) -> None:
        new, oldest = next(steps)
        removed = {name: oldest[name] for name in ("block_hashes", "medium", "group_idx")}
        self._send(new, {"type": "BlockRemoved", **removed})
        asyncio.get_running_loop().call_later(seconds, self._step, seconds, steps)

    def _send(self, *events: _Event) -> None:
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._socket.send_multipart([b"", self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1

    def close(self) -> None:
        self._socket.close()


def block_stored(token_ids: list[int], block_size: int) -> _Event:
    """Return one BlockStored event in the map form, with all full blocks of `token_ids`, hashed as
    vLLM does."""
    full = len(token_ids) // block_size * block_size
    hashes = list(map(wire_hash, Dialect().block_hashes(token_ids, block_size)))
    words = JsonTemplates(
        _ANSWERS, block_hashes=hashes, token_ids=token_ids[:full], block_size=block_size
    )
    event: _Event = words.fill("BlockStored")
    return event


class EngineConnection(asyncio.Protocol):
    """One keep-alive connection of a client."""

    def __init__(self, engine: TrivialEngine) -> None:
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
        path, body = b"".join(self._url).decode("latin-1"), b"".join(self._body)
        if not self._engine.begins_stream(body, self._transport):
            self._transport.write(self._engine.answer(path, body))
        self._url.clear()
        self._body.clear()


async def _serve(root: str, block_size: int, count: int, can_render: bool) -> None:
    """Listen on free ports of the loopback, print them as JSON, and serve until SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    listen(loop, stop.set, signal.SIGTERM)
    prompts = EnginePrompts(root) if can_render else None
    render = prompts.token_ids if prompts else None
    urls = []
    for _ in range(count):
        engine = TrivialEngine(root, block_size, Publisher(block_size), render)
        server = await loop.create_server(
            partial(EngineConnection, engine), "127.0.0.1", 0, backlog=_BACKLOG
        )
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    print(msgspec.json.encode(urls).decode(), flush=True)
    await stop.wait()
    if prompts is not None:
        prompts.close()


if __name__ == "__main__":
    _, model, block_size, count, *flags = sys.argv
    uvloop.run(_serve(model, int(block_size), int(count), "--enable-scale-out" in flags))
