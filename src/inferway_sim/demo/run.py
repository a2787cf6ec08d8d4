"""The phases, and the live server after them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
import zmq
import zmq.asyncio
from rich.console import Console
from rich.text import Text

from inferway.app import Gateway
from inferway.errors import ConfigError, InferwayError
from inferway.extension import EndedAnswer, Extension
from inferway.openai_api.requests import parse_chat
from inferway.prompts.renderer import Renderer
from inferway.signals import ENDING, listen
from inferway.telemetry.access_log import line_of
from inferway_sim.demo import table
from inferway_sim.demo.fleet import (
    LATENCY,
    NUM_ENGINES,
    SHORT_NAME,
    DemoModel,
    by_turns,
    load_model,
    ours,
    start_engine,
)
from inferway_sim.demo.measure import MeasuredAnswer, ask
from inferway_sim.demo.settings import DemoSettings
from inferway_sim.demo.table import Row
from inferway_sim.demo.traffic import DemoTraffic, is_of_traffic
from inferway_sim.demo.workload import PROMPTS, SYSTEM_PROMPT, TURNS

EVENT_POLL_SECONDS = 0.02
ANSWER_TOKENS = 24


class PublishedTopics:
    """A subscriber of its own: counts what the gateway publishes, by topic."""

    def __init__(self, endpoint: str) -> None:
        self.counts: Counter[str] = Counter()
        self._socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            topic, _, _ = await self._socket.recv_multipart()
            self.counts[topic.decode()] += 1

    async def close(self) -> None:
        """Stop counting what is published."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close(linger=0)


async def run_demo(settings: DemoSettings, console: Console, *, exit_after: bool) -> None:
    """Run the phases, then the server until SIGINT or SIGTERM. Raises ConfigError at start only."""
    stop = asyncio.Event()
    listen(asyncio.get_running_loop(), stop.set, *ENDING)
    if settings.port and not exit_after:
        console.print(_page_at(settings.port), soft_wrap=True)
    async with AsyncExitStack() as stack:
        demo = await Demo.start(settings, console, stack)
        for phase in (demo.score_prompts, demo.complete_chats):
            if not stop.is_set():
                await phase()
        if not exit_after and not stop.is_set():
            demo.serve_on(stack)
            await stop.wait()
            demo.end()
    _done(console, "All components shut down successfully")


class Demo:
    """The running parts, and the phases that use them."""

    def __init__(
        self,
        console: Console,
        model: DemoModel,
        gateway: Gateway,
        beside: Gateway,
        engine_url: str,
        published: PublishedTopics,
        http: aiohttp.ClientSession,
        live: LiveLines,
    ) -> None:
        """`beside`: the gateway that takes turns; `engine_url`: one of its engines."""
        self._console = console
        self._model = model
        self._gateway = gateway
        self._beside = f"http://127.0.0.1:{beside.port}"
        self._engine = engine_url
        self._published = published
        self._http = http
        self._live = live
        self._base = f"http://127.0.0.1:{gateway.port}"
        self._rows: list[Row] = []
        self._salts = count()

    @classmethod
    async def start(cls, settings: DemoSettings, console: Console, stack: AsyncExitStack) -> Demo:
        """Start phase 1: tokenizer, engines, index, server. The stack closes them in reverse."""
        console.rule("Phase 1: initialization")
        renderer = Renderer()
        stack.callback(renderer.close)
        model = await load_model(settings, renderer, console)
        _done(console, "Chat template wrapper initialized successfully")
        engines = [await start_engine(i, settings, model) for i in range(NUM_ENGINES)]
        for number, engine in enumerate(engines, 1):
            stack.push_async_callback(_closing, console, engine.stop, f"pod-{number} stopped")
        milliseconds = LATENCY.prefill_time_per_token * 1000
        _done(
            console,
            f"{NUM_ENGINES} simulated engines started: block size {settings.block_size},"
            f" {milliseconds:g} ms for each prompt token",
        )
        live = LiveLines(console)
        records = stack.enter_context(TemporaryDirectory(prefix="inferway-demo-"))
        gateway = Gateway(ours(settings, engines, records), renderer, extensions=[live])
        try:
            await gateway.start()
        except ConfigError as e:
            raise ConfigError(f"{e}; --port, or the variable HTTP_PORT, sets it") from e
        stack.push_async_callback(_closing, console, gateway.close, "HTTP server stopped")
        _done(console, f"Created Indexer: it follows the KV events of {NUM_ENGINES} engines")
        assert gateway.publish_endpoint is not None
        published = PublishedTopics(gateway.publish_endpoint)
        stack.push_async_callback(_closing, console, published.close, "subscriber stopped")
        others = [await start_engine(i, settings, model) for i in range(NUM_ENGINES)]
        for engine in others:
            stack.push_async_callback(engine.stop)
        beside = Gateway(by_turns(others), renderer)
        await beside.start()
        stack.push_async_callback(beside.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        demo = cls(console, model, gateway, beside, others[0].url, published, http, live)
        await demo._warm_up()
        _done(console, f"HTTP endpoints exposed port={gateway.port}")
        return demo

    async def score_prompts(self) -> None:
        """Phase 2: each prompt is completed, and then scored."""
        self._begin(
            "Phase 2: prompt scoring",
            "Four prompts that begin alike. Each is sent three times: through Inferway, by\n"
            "round-robin to three other engines, and to one that holds nothing of it.",
        )
        scores: Mapping[str, int] = {}
        for question in PROMPTS:
            prompt = f"{SYSTEM_PROMPT}\n\n{question}"
            body = {"model": self._model.name, "prompt": prompt}
            row = await self._measured(question, "/v1/completions", body)
            scores = await self._scored("/score_completions", body, row.ours)
        _done(self._console, f"{len(PROMPTS)} prompts scored successfully")
        self._console.print(_held(scores))

    async def complete_chats(self) -> None:
        """Phase 3: each chat's template is rendered, the chat answered and scored."""
        self._begin(
            "Phase 3: chat completions",
            "Three chats with one system prompt; their second turns come in another order.",
            self._show_template,
        )
        chats: dict[str, list[Mapping[str, str]]] = {}
        scores: Mapping[str, int] = {}
        for turn in TURNS:
            messages = chats.setdefault(turn.chat, [{"role": "system", "content": SYSTEM_PROMPT}])
            messages.append({"role": "user", "content": turn.text})
            body = {"model": self._model.name, "messages": messages}
            name = f"{turn.chat}: {turn.text}"
            row = await self._measured(name, "/v1/chat/completions", body)
            scores = await self._scored("/score_chat_completions", body, row.ours)
            messages.append({"role": "assistant", "content": row.ours.text})
        for line in table.totals(self._rows):
            self._console.print(line, soft_wrap=True)
        _done(self._console, "KV-cache scoring integrated with the template")
        self._console.print(_held(scores))
        counts = self._published.counts
        chats_topic = next((topic for topic in counts if topic.startswith("kv.chat.")), "no topic")
        _done(self._console, f"{counts.total()} events published, chats on {chats_topic}")

    def serve_on(self, stack: AsyncExitStack) -> None:
        """Start phase 4: the server lives, with some traffic until the stack is closed; say what to
        try on it."""
        self._console.rule("Phase 4: live server")
        for line in self._invitation():
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._live.begin()
        traffic = DemoTraffic(self._http, self._base, self._model.name)
        traffic.start()
        stack.push_async_callback(traffic.close)

    def end(self) -> None:
        """Print what the demo has to say when Ctrl-C ends it."""
        self._live.pause()
        self._console.print("\n Received shutdown signal")

    def _invitation(self) -> list[Text | str]:
        base = f"localhost:{self._gateway.port}"
        where = Text(f" http://{base}", style="bold green")
        where.append("  answers as OpenAI's API does. In another terminal:", style="default")
        return [
            _page_at(self._gateway.port),
            Text(" Some conversations go on, so that there is something to look at.", style="dim"),
            where,
            Text(" Ask with a long system prompt, twice: then its blocks are held.", style="dim"),
            f"""curl -si {base}/v1/chat/completions -d '{{"model":"{SHORT_NAME}","messages":""",
            """ [{"role":"system","content":"'"$(seq -s, 500)"'"},""",
            """ {"role":"user","content":"Hello!"}]}' | grep -i blocks:""",
            Text(" Watch the engines, and every decision as it is made.", style="dim"),
            f"{_command()} top http://{base}",
            f"{_command()} tail {self._gateway.publish_endpoint}",
            Text(" Press Ctrl+C to stop the server...", style="bold"),
        ]

    def _begin(self, title: str, about: str, first: Callable[[], None] | None = None) -> None:
        self._console.print()
        self._console.rule(title)
        if first is not None:
            first()
        for sentence in about.splitlines():
            self._console.print(Text(f" {sentence}"), soft_wrap=True)
        for line in table.heads():
            self._console.print(line, soft_wrap=True)

    async def _measured(self, name: str, path: str, body: Mapping[str, Any]) -> Row:
        """Sends it three times: by us, in turns, and to an engine that knows nothing of it."""
        asked = {**body, "max_tokens": ANSWER_TOKENS}
        salted = {**asked, "cache_salt": f"demo-{next(self._salts)}"}
        row = Row(
            name,
            await ask(self._http, self._base + path, asked),
            await ask(self._http, self._beside + path, asked),
            await ask(self._http, self._engine + path, salted),
        )
        self._rows.append(row)
        self._console.print(table.line_of(row), soft_wrap=True)
        return row

    async def _scored(
        self, path: str, body: Mapping[str, Any], answer: MeasuredAnswer
    ) -> Mapping[str, int]:
        """The score once the engine's events have arrived: it holds all full blocks by then."""
        async with asyncio.timeout(10):
            while True:
                async with self._http.post(self._base + path, json=body) as response:
                    scored = await response.json()
                    if response.status != 200:
                        raise InferwayError(f"{path} answered {response.status}: {scored}")
                scores: Mapping[str, int] = scored["pod_scores"]
                if scores[answer.engine] >= answer.prompt_blocks:
                    return scores
                await asyncio.sleep(EVENT_POLL_SECONDS)

    def _show_template(self) -> None:
        """Show how the first chat looks to the engine."""
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": TURNS[0].text},
        ]
        raw = msgspec.json.encode({"model": self._model.name, "messages": messages})
        text = self._model.prompts.rendered_text(parse_chat(raw)) or ""
        _done(self._console, "template fetched and rendered successfully:")
        lines = text.split("\n")
        shown = "\n".join(f"   {table.shortened(line, 76)}" for line in lines if line)
        self._console.print(Text(shown, style="dim"), soft_wrap=True)

    async def _warm_up(self) -> None:
        """Both gateways render once before anything is measured: no first row pays for that."""
        body = {"model": self._model.name, "prompt": "Hello!", "max_tokens": 1}
        for base in (self._base, self._beside):
            await ask(self._http, f"{base}/v1/completions", body)


class LiveLines(Extension):
    """Leaves a line for each answered request once it has started."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_on = False

    def begin(self) -> None:
        """Leave lines from here on, below a line of heads."""
        self._console.print(table.live_heads(), soft_wrap=True)
        self._is_on = True

    def pause(self) -> None:
        """Leave no more lines."""
        self._is_on = False

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        for answer in answers:
            self._tell(answer)

    def _tell(self, answer: EndedAnswer) -> None:
        if not self._is_on or answer.record is None or is_of_traffic(answer.request_id):
            return
        line = line_of(answer)
        if not line.model:
            return
        taken = line.ttft_ms if line.ttft_ms is not None else line.total_ms
        outcome = line.outcome if line.status == 200 else f"{line.status} {line.outcome}"
        held = (line.matched_blocks or 0, line.prompt_blocks or 0)
        shown = table.live_line(
            *(time.strftime("%H:%M:%S"), line.model, line.engine, held, taken, outcome)
        )
        self._console.print(shown, soft_wrap=True)


def _done(console: Console, what: str) -> None:
    console.print(Text(" ✓ ", style="green").append(what, style="default"), soft_wrap=True)


async def _closing(console: Console, close: Callable[[], Awaitable[object]], what: str) -> None:
    await close()
    _done(console, what)


def _held(scores: Mapping[str, int]) -> str:
    """A line of its own: with three holders it would not fit behind another sentence."""
    holders = [f"{name} holds {blocks}" for name, blocks in scores.items() if blocks]
    return f"   {', '.join(holders)} blocks of the last prompt"


def _page_at(port: int) -> Text:
    """Return where the page is that shows all of it."""
    where = Text(f" http://localhost:{port}/", style="bold green")
    return where.append("  the page: open it in a browser and look on", style="default")


def _command() -> str:
    """Return how this very program was called: after `make demo` it is not on the PATH."""
    return "inferway" if shutil.which("inferway") else os.path.relpath(sys.argv[0])
