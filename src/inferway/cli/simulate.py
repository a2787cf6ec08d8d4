"""`inferway simulate`. Flags are llm-d-inference-sim's and vLLM's; what is not listed is not
accepted."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Any

import click

from inferway.blocks.dialects import DEFAULT_SEED
from inferway.cli.logs import refuse, set_up
from inferway.config import ModelSettings
from inferway.errors import ConfigError, InferwayError
from inferway.prompts.prepare import prepare_smollm2
from inferway.prompts.renderer import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.simulator.config import EventsConfig, Latency, SimulatorConfig
from inferway.simulator.engine import SimulatedEngine
from inferway.simulator.rendered import RenderedModel

DEFAULT_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1e-3}


def duration(text: str) -> float:
    """Seconds, from `250ms`, `1.5s`, `40us`, or a bare number of milliseconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|)", text)
    if match is None:
        raise click.BadParameter(f"{text!r}: expected a duration like 250ms, 1.5s or 40us")
    return float(match[1]) * _UNITS[match[2]]


@click.command(context_settings={"show_default": True})
@click.option("--model", help="Directory or hub id; unset: SmolLM2.")
@click.option("--tokenizer", help="Directory or hub id of its tokenizer; unset: the model's own.")
@click.option("--chat-template", metavar="PATH", help="Instead of the model's own.")
@click.option("--served-model-name", multiple=True, help="What clients call it; repeat for more.")
@click.option("--lora-modules", multiple=True, metavar="NAME=PATH", help="An adapter; repeatable.")
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=8000, help="0 takes a free one.")
@click.option("--block-size", default=16, help="Tokens per KV block.")
@click.option("--kv-cache-size", default=1024, help="KV blocks, vLLM's null block among them.")
@click.option("--max-model-len", type=int, help="Unset: 8192, or what the cache holds if less.")
@click.option("--max-num-seqs", default=256, help="Requests that run at once; others wait.")
@click.option("--max-waiting-queue-length", default=1000, help="More are refused with 429.")
@click.option("--mode", type=click.Choice(["echo", "random"]), default="random")
@click.option("--seed", default=0, help="Of the random mode's replies.")
@click.option("--hash-seed", envvar="PYTHONHASHSEED", default=DEFAULT_SEED, help="Of block hashes.")
@click.option("--time-to-first-token", type=duration, default="0", help="Whatever the prompt.")
@click.option("--prefill-overhead", type=duration, default="0", help="Of each prefill.")
@click.option("--prefill-time-per-token", type=duration, default="0", help="Of uncached tokens.")
@click.option("--inter-token-latency", type=duration, default="0")
@click.option("--time-factor-under-load", default=1.0, help="Times are so much longer when full.")
@click.option("--prefill-in-turn", is_flag=True, help="One prefill after the other.")
@click.option("--enable-scale-out", is_flag=True, help="It renders for others: …/render.")
@click.option("--structured", is_flag=True, help="It seems to have our structured output.")
@click.option("--zmq-endpoint", default="tcp://*:0", help="Where KV events go; none: nowhere.")
@click.option("--kv-events-replay-endpoint", default="tcp://*:0", help="none: no replay.")
@click.option("--kv-events-replay-queue-size", default=10_000, help="Batches kept for replay.")
@click.option("--kv-events-topic", default="", help="Topic of the events.")
@click.option("--event-format", type=click.Choice(["map", "array"]), default="map")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Write the log as text, or as one JSON object a line.",
)
def simulate(**flags: Any) -> None:
    """Run a simulated vLLM engine: OpenAI endpoints, a paged KV cache and its events."""
    import uvloop

    set_up("info", log_format=flags["log_format"])
    try:
        uvloop.run(_run(flags))
    except InferwayError as e:
        refuse("simulate", e)


async def _run(flags: dict[str, Any]) -> None:
    """Until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    config = make_config(flags)
    renderer = Renderer()
    try:
        wanted = GetOrCreateTokenizerKeyRequest(flags["tokenizer"] or config.model)
        key = await renderer.get_or_create_tokenizer_key_async(wanted)
        shaping = ModelSettings(chat_template=flags["chat_template"])
        model = RenderedModel(renderer, key, config.max_model_len, shaping)
        async with SimulatedEngine(config, model) as engine:
            click.echo(_ready(engine))
            await stop.wait()
    finally:
        renderer.close()


def make_config(flags: dict[str, Any]) -> SimulatorConfig:
    """Raises ConfigError."""
    model, names = _model(flags["model"], flags["served_model_name"])
    room = (flags["kv_cache_size"] - 1) * flags["block_size"]
    return SimulatorConfig(
        model=model,
        served_model_names=names,
        lora_modules=dict(_pair(text) for text in flags["lora_modules"]),
        max_model_len=flags["max_model_len"] or min(8192, room),
        latency=Latency(**_same(flags, Latency)),
        events=EventsConfig(
            endpoint=_endpoint(flags["zmq_endpoint"]),
            replay_endpoint=_endpoint(flags["kv_events_replay_endpoint"]),
            topic=flags["kv_events_topic"],
            buffer_steps=flags["kv_events_replay_queue_size"],
            format=flags["event_format"],
        ),
        **{
            name: value
            for name, value in _same(flags, SimulatorConfig).items()
            if name not in ("model", "lora_modules", "max_model_len")
        },
    )


def _same(flags: dict[str, Any], kind: type) -> dict[str, Any]:
    """The flags that are called like a field of `kind`."""
    return {name: value for name, value in flags.items() if name in kind.__annotations__}


def _model(model: str | None, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The model's place, and the names that clients may use."""
    if model is not None:
        return model, names
    return str(prepare_smollm2()), names or (DEFAULT_NAME,)


def _pair(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ConfigError(f"--lora-modules {text!r}: expected NAME=PATH")
    return name, path


def _endpoint(value: str) -> str | None:
    return None if value in ("", "none") else value


def _ready(engine: SimulatedEngine) -> str:
    config = engine.config
    return (
        f"simulated engine {engine.url} serves {', '.join(config.names)}"
        f" · block size {config.block_size}"
        f" · KV events {engine.events_endpoint or 'off'}"
        f" · replay {engine.replay_endpoint or 'off'}"
    )
