"""What requests take on their way through a gateway: bytecode instructions, calls and files.

    python -m tests.budgets.requests

A gateway with simulated engines runs in this process, and its event loop alone in the main thread:
engines and clients have threads of their own, which are not counted. Its clock stands still
(`clock`), so that a busy machine changes no instructions. Printed is one JSON object: for each kind
of work its instructions, calls of functions and files, and the types of ours that a request keeps
alive while an engine has it.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

import msgspec
import uvloop
from hpack import Encoder
from tests.budgets import clock  # before the gateway is imported
from tests.llmd.ext_proc.pods import rqb, rqh, rsb, rsh

from inferway.app import Gateway
from inferway.config import (
    EngineSettings,
    ModelSettings,
    PickerSettings,
    ProbeSettings,
    ServeSettings,
)
from inferway.fleet.event_source import EventSource
from inferway.fleet.subscriber import Subscription
from inferway.fleet.zmq_subscriber import ZmqSubscriber
from inferway.fleet.zmtp import ZmtpConnection
from inferway.kv.index.memory import MemoryIndex
from inferway.prompts.files.prepare import prepare_smollm2
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_llmd.ext_proc.messages import METHOD, SERVICE
from inferway_llmd.ext_proc.wire.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    message_frame,
    window_update,
)
from inferway_llmd.extension import picker_of
from inferway_sim.config import SimulatorConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.rendered import RenderedModel

LOOP = str(Path(asyncio.__file__).parent)
SRC = str(Path(__file__).parents[2] / "src")
MODEL = "smollm2"
NO_PROBES = ProbeSettings(join=False, one_in=0)  # an engine is seen with nothing to do
# The last turn, which is new in each request, lies in the last block, which is not full.
BLOCK_SIZE = 64
REQUESTS = 32  # of a window: what is done for many at a time is shared by them
WINDOWS = 8
BLOCKS = 8  # of a batch of events
EVENTS = 40  # of a stream
QUESTION = "What does it charge for a used copy?"
PATH = "/v1/chat/completions"
REQUEST_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nuser-agent: budgets\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","model":"smollm2","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Four euros."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":114,"completion_tokens":4,"total_tokens":118}}'
)
MODELS = b'{"data":[{"id":"smollm2","root":"/nowhere"}]}'
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1780000000,'
    b'"model":"smollm2","choices":[{"index":0,"delta":{"content":" token"},'
    b'"finish_reason":null}]}\n\n'
)
WORDS = "The shop by the harbour sells used books, maps and old prints of ships. "


class Counted:
    """Counts what this thread does."""

    def __init__(self) -> None:
        self._is_on = False
        self._instructions = 0
        self._calls: Counter[CodeType] = Counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the frames that begin or go on in this thread."""
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, _: str, __: object) -> Any:
        if not self._is_on or frame.f_code.co_filename.startswith(LOOP):
            return None
        self._calls[frame.f_code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._instruction

    def _instruction(self, _: FrameType, event: str, __: object) -> Any:
        self._instructions += event == "opcode"
        return self._instruction if self._is_on else None

    def begin(self) -> None:
        """Count from here on."""
        self._instructions = 0
        self._calls.clear()
        self._is_on = True

    def end(self, shared_by: int) -> dict[str, Any]:
        """Count no more. Return the figures of one of so many requests."""
        self._is_on = False
        ours = {code: n for code, n in self._calls.items() if code.co_filename.startswith(SRC)}
        each = {code: n / shared_by for code, n in ours.items() if n >= shared_by}
        return {
            "instructions": self._instructions / shared_by,
            "calls": sum(each.values()),
            "files": sorted({code.co_filename[len(SRC) + 1 :] for code in each}),
        }


class Engines:
    """Simulated engines with an event loop in a thread of their own."""

    def __init__(self, configs: list[SimulatorConfig]) -> None:
        self.urls: list[str] = []
        self._configs = configs
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    def __enter__(self) -> Engines:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        renderer = Renderer()
        async with AsyncExitStack() as stack:
            for config in self._configs:
                asked = GetOrCreateTokenizerKeyRequest(config.model)
                key = renderer.get_or_create_tokenizer_key(asked)
                engine = SimulatedEngine(config, RenderedModel(renderer, key, config.max_model_len))
                await stack.enter_async_context(engine)
                self.urls.append(engine.url)
            self._ready.set()
            await self._over.wait()
        renderer.close()


class InStep:
    """An engine that streams: it sends an event when the one before it has reached the client."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._next = threading.Semaphore(0)
        self.events = 0  # of each stream
        threading.Thread(target=self._accept, daemon=True).start()

    def arrived(self) -> None:
        """Tell that an event has reached the client."""
        self._next.release()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            while line := requests.readline():
                length = 0
                while (header := requests.readline()) != b"\r\n":
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                if b'"stream": true' in requests.read(length):
                    self._stream(connection)
                else:
                    is_list = line.startswith(b"GET /v1/models ")
                    body = MODELS if is_list else b"{}"
                    head = b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n"
                    connection.sendall(head % (200 if is_list else 404, len(body)) + body)

    def _stream(self, connection: socket.socket) -> None:
        connection.sendall(STREAM_HEAD)
        for event in [EVENT] * self.events + [b"data: [DONE]\n\n"]:
            connection.sendall(b"%x\r\n%b\r\n" % (len(event), event))
            self._next.acquire()
        connection.sendall(b"0\r\n\r\n")


def chat(number: int, history: str = WORDS * 5, **fields: Any) -> bytes:
    """Return the body of a chat whose last turn nobody has sent before."""
    messages = [
        {"role": "system", "content": history},
        {"role": "user", "content": f"{QUESTION} {number:09}"},
    ]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 4, **fields}).encode()


class Proxy:
    """Asks a picker where a request goes, and shows it the answer, as Envoy does; each way in one
    piece, so that the picker reads it in one."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._heard = self._socket.makefile("rb")
        self._encoder = Encoder()
        self._stream = -1
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0) + window_update(0, 1 << 30))

    def send(self, body: bytes) -> None:
        """Take one request there and back."""
        self._stream += 2
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", "picker")]
        fields += [(":path", f"/{SERVICE}/{METHOD}"), ("content-type", "application/grpc")]
        head = frame(HEADERS, END_HEADERS, self._stream, bytes(self._encoder.encode(fields)))
        asked = rqh((":path", PATH), ("content-type", "application/json")), rqb(body, eos=True)
        self._socket.sendall(head + b"".join(map(self._message, asked)))
        self._hear(b"x-gateway-destination-endpoint")
        told = rsh((":status", "200"), ("content-type", "application/json")), rsb(ANSWER, eos=True)
        end = frame(DATA, END_STREAM, self._stream)
        self._socket.sendall(b"".join(map(self._message, told)) + end)
        self._hear(b"", END_STREAM)

    def _message(self, message: Any) -> bytes:
        return message_frame(self._stream, message.SerializeToString())

    def _hear(self, words: bytes, flag: int = 0) -> None:
        """Read until a frame of the call has these words, and this flag."""
        while True:
            head = self._heard.read(9)
            payload = self._heard.read(int.from_bytes(head[:3]))
            is_ours = int.from_bytes(head[5:9]) == self._stream
            if is_ours and words in payload and head[4] & flag == flag:
                return

    def close(self) -> None:
        self._heard.close()
        self._socket.close()


class Client:
    """Sends one request after the other from its own thread, each in one piece."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def send(self, body: bytes, arrived: Callable[[], None] = lambda: None) -> None:
        """Send a chat, and read its answer; `arrived` is called for each event of a stream."""
        self._socket.sendall(REQUEST_HEAD % len(body) + body)
        with http.client.HTTPResponse(self._socket, method="POST") as answer:
            answer.begin()
            for line in answer:
                if line.startswith(b"data: "):
                    arrived()
        assert answer.status == 200

    def close(self) -> None:
        self._socket.close()


class Running:
    """A gateway that is counted, and a client of it."""

    def __init__(self, settings: ServeSettings, renderer: Renderer, *, picks: bool = False) -> None:
        self._gateway = Gateway(settings, renderer, picks=picks)
        self._counter = Counted()
        self._stack = ExitStack()

    async def __aenter__(self) -> Running:
        self._stack.enter_context(self._counter.watching())
        await self._gateway.start()
        picker = picker_of(self._gateway)
        client = Client(self._gateway.port) if picker is None else Proxy(picker.port)
        self._send_chat = self._stack.enter_context(closing(client)).send
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stack.close()
        await self._gateway.close()

    async def figures(self, *what: Any, **more: Any) -> dict[str, Any]:
        """Return the figures of a chat, the least of some windows: what is done by the clock can
        only add to them."""
        found: list[dict[str, Any]] = []
        clock.stand_still()
        for window in range(WINDOWS):
            numbers = range(window * REQUESTS, (window + 1) * REQUESTS)
            await clock.pass_a_second()
            self._counter.begin()
            await asyncio.to_thread(self._send, numbers, *what, **more)
            await clock.pass_a_second()
            found.append(self._counter.end(REQUESTS))
        return min(found, key=lambda each: each["instructions"])

    async def alive(self, engine: InStep) -> list[str]:
        """Return the types of ours of which a stream that is under way keeps objects alive."""
        loop = asyncio.get_running_loop()
        held, go_on = asyncio.Event(), threading.Event()

        def hold() -> None:
            loop.call_soon_threadsafe(held.set)
            go_on.wait()
            engine.arrived()

        before = types_of_ours()
        sending = asyncio.create_task(asyncio.to_thread(self._send, [0], hold, stream=True))
        await held.wait()
        during = types_of_ours()
        go_on.set()
        await sending
        return sorted(f"{k.__module__}.{k.__qualname__}" for k in during if during[k] > before[k])

    def _send(self, numbers: Iterable[int], *arrived: Callable[[], None], **more: Any) -> None:
        for number in numbers:
            clock.pass_time(0.01)
            self._send_chat(chat(number, **more), *arrived)


async def measure(urls: list[str], renderer: Renderer, directory: Path) -> dict[str, Any]:
    """Return the figures of each kind of work."""
    found: dict[str, Any] = {}
    settings = partial(
        ServeSettings,
        port=0,
        scrape_seconds=3600.0,
        probe=NO_PROBES,
        access_log=str(directory / "access.log"),
    )
    engines = [EngineSettings(url=url) for url in urls]
    async with Running(settings(engines=engines, scoring=False), renderer) as running:
        found["short chat, unread"] = await running.figures()
    async with Running(settings(engines=engines), renderer) as running:
        found["short chat, scored"] = await running.figures()
        found["long chat, scored"] = await running.figures(history=WORDS * 501)
    picker = PickerSettings(grpc_port=0, grpc_health_port=0, secure=False)
    async with Running(settings(engines=engines, picker=picker), renderer, picks=True) as running:
        found["pick behind a proxy, short chat"] = await running.figures()
    assert not renderer.num_off_loop  # what threads do is not counted
    with closing(InStep()) as engine:
        engines = [EngineSettings(url=engine.url, block_size=BLOCK_SIZE)]
        models = {MODEL: ModelSettings(tokenizer=str(prepare_smollm2()))}
        async with Running(settings(engines=engines, models=models), renderer) as running:
            streams = []
            for engine.events in (EVENTS, 2 * EVENTS):
                streams.append(await running.figures(engine.arrived, stream=True))
            alive = await running.alive(engine)
    few, many = [each["instructions"] for each in streams]
    found["streamed chunk"] = {"instructions": (many - few) / EVENTS}
    found["batch of KV events"] = event_batch()
    found["short chat, scored"]["types alive"] = alive
    return found


def event_batch() -> dict[str, Any]:
    """Return the figures of a batch from the socket to the index: as many blocks stored as
    removed, in the form of vLLM 0.32."""
    counter, index = Counted(), MemoryIndex()
    subscription = Subscription(EventSource(0, "tcp://127.0.0.1:1", None), 0, 16, index)
    subscriber = ZmqSubscriber(subscription, clock=lambda: 0.0)
    link = cast(ZmtpConnection, object())  # it is compared, and nothing else
    subscriber.connected(link)
    messages = [[b"", seq.to_bytes(8, "big"), _batch(seq)] for seq in range(2 * REQUESTS)]
    with counter.watching():
        for seq, message in enumerate(messages):
            if seq == REQUESTS:
                counter.begin()
            subscriber.received(link, [message])
    figures = counter.end(REQUESTS)
    assert index.num_blocks(0) == BLOCKS
    return figures


def _batch(seq: int) -> bytes:
    first = seq * BLOCKS
    place = {"medium": "GPU", "group_idx": 0}
    gone = [{"type": "BlockRemoved", "block_hashes": [1 + n], **place} for n in range(first)]
    stored = {
        "type": "BlockStored",
        "block_hashes": [1 + first + n for n in range(BLOCKS)],
        "parent_block_hash": None,
        "token_ids": list(range(1000 + first, 1000 + first + 16 * BLOCKS)),
        "block_size": 16,
        "lora_id": None,
        "lora_name": None,
        "kv_cache_spec_kind": "full_attention",
        **place,
    }
    return msgspec.msgpack.encode([1.5, [*gone[-BLOCKS:], stored], 0])


def types_of_ours() -> Counter[type]:
    """Return the number of objects of each type of ours that are alive in this process."""
    gc.collect()
    seen: dict[int, object] = {}
    stack: list[object] = gc.get_objects()
    while stack:
        one = stack.pop()
        if id(one) not in seen:
            seen[id(one)] = one
            stack += [each for each in gc.get_referents(one) if not gc.is_tracked(each)]
    kinds = Counter(map(type, seen.values()))
    return Counter({k: n for k, n in kinds.items() if k.__module__.startswith("inferway")})


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    config = SimulatorConfig(
        str(prepare_smollm2()), served_model_names=(MODEL,), block_size=BLOCK_SIZE
    )
    with Engines([config, config]) as engines, tempfile.TemporaryDirectory() as directory:
        renderer = Renderer()
        with closing(renderer):
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                found = runner.run(measure(engines.urls, renderer, Path(directory)))
            print(json.dumps(found))


if __name__ == "__main__":
    main()
