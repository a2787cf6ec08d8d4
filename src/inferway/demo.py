"""Seed 003 as a program: an embedded fleet, three phases, then a live server.

Everything in it is real but the engines' arithmetic: three simulated engines with paged caches
and KV events on real sockets, the gateway on a real port, a real tokenizer and chat template,
and a subscriber that sees what the gateway publishes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import msgspec
import zmq
import zmq.asyncio
from rich.console import Console

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings
from inferway.errors import ConfigError, InferwayError
from inferway.openai_api.requests import parse_chat
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.prepare import prepare_smollm2
from inferway.prompts.renderer import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.simulator.config import Latency, SimulatorConfig
from inferway.simulator.engine import SimulatedEngine
from inferway.simulator.rendered import RenderedModel
from inferway.simulator.replies import SimRequest

log = logging.getLogger("inferway.demo")

SEED_MODEL = "ibm-granite/granite-3.3-2b-instruct"  # the name in seed 003's curl commands
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
NUM_ENGINES = 3
DEFAULT_BLOCK_SIZE = 16
DEFAULT_PORT = 8080
MODEL_SECONDS = 3.0  # a MODEL_NAME that cannot be had must not hold the demo up
EVENT_POLL_SECONDS = 0.02
MAX_MODEL_LEN = 8192
CACHE_TOKENS = 65_536  # of each engine
PUBLISHED = "tcp://127.0.0.1:*"  # a free port; the line that names it says how to follow it

# Long enough to fill a block of 256 tokens (BLOCK_SIZE=256, the seed's default).
SYSTEM_PROMPT = (
    "You are the assistant of a platform team that runs large language models for a whole "
    "company. Answer briefly and precisely, name the assumption you make, and say so when you do "
    "not know. The engines keep the keys and values of every token they have seen in a paged "
    "cache: a prompt is cut into blocks of equal size, each block is known by a hash over its "
    "tokens and over all blocks before it, and a block that is still in the cache is not "
    "computed again. A request is therefore answered soonest by the engine that already holds "
    "the longest part of its beginning, unless that engine has more to do than the others. "
    "Conversations grow at their end only, so each turn begins with all turns before it; a long "
    "system prompt such as this one is shared by every conversation of a team. When somebody "
    "asks why an answer was slow, look first at how much of the prompt was computed again, then "
    "at the queue of the engine, then at the length of the answer. When somebody asks what to "
    "buy, ask how many tokens their prompts share. Never guess a number that a metric could "
    "tell: the gateway counts prompt tokens, tokens believed to be cached, and tokens that the "
    "engines say they took from their caches, for each engine apart. If the second and the third "
    "differ, the gateway's picture of that engine is wrong, and it says so in its log. Keep "
    "these rules in mind, use plain words, and do not repeat the question."
)
PROMPTS = (
    "Hello, how are you today?",
    "What is the weather like?",
    "Can you help me with a programming question?",
    "Tell me about machine learning",
)
CONVERSATIONS: tuple[tuple[Mapping[str, str], ...], ...] = (
    (
        {"role": "system", "content": SYSTEM_PROMPT},
        {
            "role": "user",
            "content": "Hello! Can you help me understand how KV-cache works?",
        },
    ),
    (
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "What are the benefits of using template rendering?"},
    ),
    (
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "Explain the concept of attention mechanisms."},
        {
            "role": "assistant",
            "content": "Attention lets each token weigh all tokens before it.",
        },
        {"role": "user", "content": "Can you give me a practical example?"},
    ),
)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the environment says: MODEL_NAME, BLOCK_SIZE, HTTP_PORT; HF_TOKEN goes to the hub."""

    model: str | None
    block_size: int
    port: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> DemoSettings:
        """Raises ConfigError naming the variable."""
        return cls(
            model=environ.get("MODEL_NAME") or None,
            block_size=_number(environ, "BLOCK_SIZE", DEFAULT_BLOCK_SIZE, 1, 4096),
            port=_number(environ, "HTTP_PORT", DEFAULT_PORT, 0, 65535),
        )


def _number(environ: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise ConfigError(f"{name}={text!r}: expected a whole number from {least} to {most}")
    return int(text)


async def run_demo(settings: DemoSettings, console: Console, *, exit_after: bool) -> None:
    """The phases, then the server until SIGINT or SIGTERM. Raises ConfigError at start only."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    async with AsyncExitStack() as stack:
        demo = await Demo.start(settings, console, stack)
        for phase in (demo.score_prompts, demo.complete_chats):
            if not stop.is_set():
                await phase()
        demo.show_published()
        if not exit_after and not stop.is_set():
            demo.show_endpoints()
            await stop.wait()
            log.info("Received shutdown signal")
        log.info("Shutting down the demo...")
    log.info("All components shut down successfully")


class Demo:
    """The running parts, and the phases that use them."""

    def __init__(
        self,
        settings: DemoSettings,
        console: Console,
        model: DemoModel,
        gateway: Gateway,
        published: PublishedTopics,
        http: aiohttp.ClientSession,
    ) -> None:
        self._settings = settings
        self._console = console
        self._model = model
        self._gateway = gateway
        self._published = published
        self._http = http
        self._base = f"http://127.0.0.1:{gateway.port}"

    @classmethod
    async def start(cls, settings: DemoSettings, console: Console, stack: AsyncExitStack) -> Demo:
        """Phase 1: tokenizer, engines, index, server. The stack closes them in reverse."""
        console.rule("Phase 1: initialization")
        log.info(
            "Starting the unified KV-cache demo: %d simulated engines, block size %d",
            NUM_ENGINES,
            settings.block_size,
        )
        renderer = Renderer()
        stack.callback(renderer.close)
        model = await _load_model(settings, renderer, console)
        log.info("Chat template wrapper initialized successfully: %s", model.name)
        engines = [await _engine(i, settings, model, stack) for i in range(NUM_ENGINES)]
        gateway = Gateway(_gateway_settings(settings, engines), renderer)
        try:
            await gateway.start()
        except ConfigError as e:
            raise ConfigError(f"{e}; the environment variable HTTP_PORT sets it") from e
        stack.push_async_callback(gateway.close)
        log.info("Created Indexer: in memory, fed by %d KV-event streams", NUM_ENGINES)
        assert gateway.publish_endpoint is not None
        published = PublishedTopics(gateway.publish_endpoint)
        stack.push_async_callback(published.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        log.info("HTTP endpoints exposed port=%d", gateway.port)
        return cls(settings, console, model, gateway, published, http)

    async def score_prompts(self) -> None:
        """Phase 2: each prompt is scored, completed, and scored again."""
        self._console.rule("Phase 2: prompt scoring")
        for question in PROMPTS:
            body = {"model": self._model.name, "prompt": f"{SYSTEM_PROMPT}\n\n{question}"}
            before = await self._post("/score_completions", body)
            answer = await self._post("/v1/completions", {**body, "max_tokens": 24})
            after = await self._scored("/score_completions", body, answer)
            self._console.print(f'[green]✓[/] prompt "{question}" scored successfully')
            self._show_scores(before, answer, after)

    async def complete_chats(self) -> None:
        """Phase 3: each conversation's template is shown, the chat answered and scored."""
        self._console.rule("Phase 3: chat completions")
        for conversation in CONVERSATIONS:
            body = {"model": self._model.name, "messages": conversation, "max_tokens": 24}
            raw = msgspec.json.encode(body)
            text = self._model.prompts.rendered_text(parse_chat(raw)) or ""
            self._console.print("[green]✓[/] template fetched and rendered successfully:")
            self._console.print(
                _indent(_shortened(text)), style="dim", markup=False, soft_wrap=True
            )
            before = await self._post("/score_chat_completions", body)
            answer = await self._post("/v1/chat/completions", body)
            after = await self._scored("/score_chat_completions", body, answer)
            self._console.print("[green]✓[/] KV-cache scoring integrated with the template")
            self._show_scores(before, answer, after)

    def show_published(self) -> None:
        """What a subscriber has seen of all this."""
        topics = ", ".join(f"{topic} {n}" for topic, n in sorted(self._published.counts.items()))
        self._console.print(f"[green]✓[/] events published: {topics or 'none'}", soft_wrap=True)

    def show_endpoints(self) -> None:
        """Phase 4: the server lives; what to try on it."""
        self._console.rule("Phase 4: live server")
        base, model = f"http://localhost:{self._gateway.port}", SEED_MODEL
        lines = (
            f"POST {base}/score_completions       what each engine holds of a prompt",
            f"POST {base}/v1/chat/completions     routed chat completions",
            f"GET  {base}/metrics   {base}/ready",
            "",
            f"curl -X POST {base}/v1/chat/completions -H 'Content-Type: application/json' -d '"
            + json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
            + "'",
            f"{_command()} tail {self._gateway.publish_endpoint}",
            "",
            f"{model} is answered by {self._model.name}: the answer's `model` says so.",
            "Press Ctrl+C to stop the server...",
        )
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._http.post(self._base + path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            if response.status != 200:
                raise InferwayError(f"{path} answered {response.status}: {answer}")
            answer["headers"] = dict(response.headers)
            return answer

    async def _scored(
        self, path: str, body: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The score once the engine's events have arrived: it holds all full blocks by then."""
        blocks = int(answer["headers"]["x-inferway-prompt-blocks"])
        engine = answer["headers"]["x-inferway-engine"]
        async with asyncio.timeout(10):
            while True:
                scored = await self._post(path, body)
                if scored["pod_scores"][engine] >= blocks:
                    return scored
                await asyncio.sleep(EVENT_POLL_SECONDS)

    def _show_scores(
        self, before: Mapping[str, Any], answer: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        headers = answer["headers"]
        self._console.print(
            f"  pod_scores before {before['pod_scores']}  ->  {headers['x-inferway-engine']}"
            f" (held {headers['x-inferway-matched-blocks']} of"
            f" {headers['x-inferway-prompt-blocks']} blocks,"
            f" {_cached(answer)} of {answer['usage']['prompt_tokens']} tokens from its cache)"
            f"  ->  after {after['pod_scores']}",
            highlight=False,
            soft_wrap=True,
        )


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
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close(linger=0)
        log.info("Subscriber stopped")


@dataclass(frozen=True, slots=True)
class DemoModel:
    """The model that the engines simulate, with its real tokenizer and template."""

    name: str
    root: str  # hub id or directory
    prompts: ModelPrompts
    text: RenderedModel


async def _load_model(settings: DemoSettings, renderer: Renderer, console: Console) -> DemoModel:
    """MODEL_NAME's tokenizer and template; SmolLM2's where those cannot be had."""
    if settings.model is None:
        log.info("MODEL_NAME is not set: using %s (the seed has %s)", SMOLLM2, SEED_MODEL)
    else:
        try:
            async with asyncio.timeout(MODEL_SECONDS):
                return await _demo_model(renderer, settings.model, settings.model)
        except (InferwayError, TimeoutError) as e:
            reason = str(e) or f"not there within {MODEL_SECONDS:g} s"
            line = f"MODEL_NAME={settings.model} cannot be had ({reason}); going on with {SMOLLM2}"
            console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    directory = await asyncio.to_thread(prepare_smollm2)
    return await _demo_model(renderer, SMOLLM2, str(directory))


async def _demo_model(renderer: Renderer, name: str, root: str) -> DemoModel:
    """Raises RenderError."""
    request = GetOrCreateTokenizerKeyRequest(root, token=os.environ.get("HF_TOKEN") or None)
    key = await renderer.get_or_create_tokenizer_key_async(request)
    prompts = ModelPrompts(renderer, key, MAX_MODEL_LEN)
    return DemoModel(name, root, prompts, RenderedModel(renderer, key, MAX_MODEL_LEN))


async def _engine(
    number: int, settings: DemoSettings, model: DemoModel, stack: AsyncExitStack
) -> SimulatedEngine:
    names = (model.name,) if model.name == SEED_MODEL else (model.name, SEED_MODEL)
    config = SimulatorConfig(
        model=model.root,
        served_model_names=names,
        block_size=settings.block_size,
        kv_cache_size=2 + CACHE_TOKENS // settings.block_size,
        max_model_len=MAX_MODEL_LEN,
        seed=number,
        latency=Latency(prefill_time_per_token=0.00002, inter_token_latency=0.0005),
    )
    engine = SimulatedEngine(config, model.text, reply=partial(_reply, settings.block_size))
    await engine.start()

    async def stop() -> None:
        await engine.stop()
        log.info("Simulated engine pod-%d stopped", number + 1)

    stack.push_async_callback(stop)
    return engine


def _reply(block_size: int, request: SimRequest) -> str:
    """The seed's words, with a real score in them."""
    score = request.num_cached_tokens // block_size
    return (
        f"Based on the rendered template and KV-cache analysis (total score: {score}), "
        f"{request.num_cached_tokens} of {len(request.prompt_ids)} prompt tokens came from the "
        "cache; a simulated engine has nothing else to say."
    )


def _gateway_settings(settings: DemoSettings, engines: Sequence[SimulatedEngine]) -> ServeSettings:
    return ServeSettings(
        engines=[
            EngineSettings(url=engine.url, name=f"pod-{i}") for i, engine in enumerate(engines, 1)
        ],
        port=settings.port,
        publish=PUBLISHED,
        publish_text=True,
        scrape_seconds=0.2,
    )


def _command() -> str:
    """How this very program was called: after `make demo` it is not on the PATH."""
    return "inferway" if shutil.which("inferway") else os.path.relpath(sys.argv[0])


def _cached(answer: Mapping[str, Any]) -> int:
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _shortened(text: str, most: int = 420) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - most} characters…] {text[-half:]}"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
