"""The parts that the demo runs: the model, simulated engines, and the gateways before them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from inferway.config import EngineSettings, RecordSettings, ServeSettings
from inferway.errors import InferwayError
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.config import LatencyModel, SimulatorConfig
from inferway_sim.demo.settings import DemoSettings
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel
from inferway_sim.replies import SimRequest

SEED_MODEL = "ibm-granite/granite-3.3-2b-instruct"  # the name in seed 003's curl commands
SHORT_NAME = "demo"  # for commands that are typed
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
NUM_ENGINES = 3
MODEL_SECONDS = 3.0  # a MODEL_NAME that cannot be had must not hold the demo up
MAX_MODEL_LEN = 8192
CACHE_TOKENS = 65_536  # of each engine
PUBLISHED = "tcp://127.0.0.1:*"  # a free port; the line that names it says how to follow it

# About what an 8B model takes on one GPU: 5,000 prompt tokens a second.
LATENCY = LatencyModel(prefill_time_per_token=0.0002, inter_token_latency=0.0005)


@dataclass(frozen=True, slots=True)
class DemoModel:
    """The model that the engines simulate, with its real tokenizer and template."""

    name: str
    root: str  # hub id or directory
    prompts: ModelPrompts
    text: RenderedModel


async def load_model(settings: DemoSettings, renderer: Renderer, console: Console) -> DemoModel:
    """MODEL_NAME's tokenizer and template; SmolLM2's where those cannot be had."""
    if settings.model is not None:
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


async def start_engine(number: int, settings: DemoSettings, model: DemoModel) -> SimulatedEngine:
    """Start one engine of the demo. The caller stops it."""
    config = SimulatorConfig(
        model=model.root,
        served_model_names=tuple(dict.fromkeys((model.name, SEED_MODEL, SHORT_NAME))),
        block_size=settings.block_size,
        kv_cache_size=2 + CACHE_TOKENS // settings.block_size,
        max_model_len=MAX_MODEL_LEN,
        seed=number,
        latency=LATENCY,
    )
    engine = SimulatedEngine(config, model.text, reply=partial(_reply, settings.block_size))
    await engine.start()
    return engine


def _reply(block_size: int, request: SimRequest) -> str:
    """The seed's words, with a real score in them."""
    score = request.num_cached_tokens // block_size
    return (
        f"Based on the rendered template and KV-cache analysis (total score: {score}), "
        f"{request.num_cached_tokens} of {len(request.prompt_ids)} prompt tokens came from the "
        "cache; a simulated engine has nothing else to say."
    )


def ours(settings: DemoSettings, engines: Sequence[SimulatedEngine], records: str) -> ServeSettings:
    """Return the settings of the gateway that the demo shows; it records requests in a folder."""
    return ServeSettings(
        engines=_listed(engines),
        port=settings.port,
        publish=PUBLISHED,
        publish_text=True,
        records=RecordSettings(directory=records),
        scrape_seconds=0.2,
        access_log=None,
    )


def by_turns(engines: Sequence[SimulatedEngine]) -> ServeSettings:
    """Return the settings of the gateway that the demo compares with: it sends requests to the same
    kind of engines in turns."""
    return ServeSettings(
        engines=_listed(engines),
        port=0,
        policy="round-robin",
        scrape_seconds=0.2,
        access_log=None,
    )


def _listed(engines: Sequence[SimulatedEngine]) -> list[EngineSettings]:
    return [EngineSettings(url=engine.url, name=f"pod-{i}") for i, engine in enumerate(engines, 1)]
