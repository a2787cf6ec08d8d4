"""The command `inferway simulate`. Flags are llm-d-inference-sim's and vLLM's; what is not listed
is not accepted."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import click

from inferway.cli.command import ServerCommand, section, warnings_of
from inferway.cli.flag import Number, OneOf, Whole, option
from inferway.cli.logs import refuse, set_up
from inferway.config import ModelSettings
from inferway.errors import ConfigError, InferwayError
from inferway.kv.blocks.dialects import DEFAULT_SEED
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.signals import ENDING, listen
from inferway_sim.cli.kv_groups import groups_section, make_groups
from inferway_sim.config import EventsConfig, LatencyModel, SimulatorConfig, TransferConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel

log = logging.getLogger("inferway.simulate")

DEFAULT_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1e-3}


class Duration(click.ParamType[float]):
    """A flag's time in seconds, from `250ms`, `1.5s`, `40us`, or a bare number of milliseconds."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|)", str(value))
        if match is None:
            self.fail(f"{value!r}: expected a time like 250ms, 1.5s or 40us", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


_ABOVE_0 = Whole(min=1)
_FROM_0 = Whole(min=0)


@click.command(cls=ServerCommand, context_settings={"show_default": True})
@section(
    "Model",
    option(
        "--model",
        metavar="MODEL",
        help="Serve this model: a directory with tokenizer and chat template, or a hub id. "
        "SmolLM2's files are installed with Inferway.  "
        "[default: SmolLM2]",
    ),
    option(
        "--tokenizer",
        metavar="PATH",
        help="Use this tokenizer, a directory or a hub id, instead of the model's own.",
    ),
    option(
        "--chat-template",
        type=click.Path(),
        metavar="FILE",
        help="Use this chat template instead of the model's own. The engine tells nobody.",
    ),
    option(
        "--served-model-name",
        multiple=True,
        metavar="NAME",
        help="Answer to this model name. Repeat the flag for more; answers carry the first.",
    ),
    option(
        "--lora-modules",
        multiple=True,
        metavar="NAME=PATH",
        help="Offer this LoRA adapter. Repeat the flag for more.",
    ),
    option(
        "--max-model-len",
        type=_ABOVE_0,
        metavar="TOKENS",
        help="Take prompts with their answers up to this length.  [default: 8192, or what the "
        "cache holds if that is less]",
    ),
    example="inferway simulate --model org/model --served-model-name small",
)
@section(
    "Listening",
    option("--host", default="127.0.0.1", metavar="HOST", help="Listen on this address."),
    option(
        "--port",
        type=Whole(min=0, max=65535),
        default=8000,
        metavar="PORT",
        help="Listen on this port; 0 takes a free one, which the first line names.",
    ),
    example="inferway simulate --port 8001",
)
@section(
    "KV cache and queue",
    option(
        "--block-size",
        type=_ABOVE_0,
        default=16,
        metavar="TOKENS",
        help="Keep this number of tokens in each KV block.",
    ),
    option(
        "--kv-cache-size",
        type=Whole(min=2),
        default=1024,
        metavar="BLOCKS",
        help="Keep this number of KV blocks, one of which is vLLM's null block.",
    ),
    option(
        "--hash-seed",
        envvar="PYTHONHASHSEED",
        default=DEFAULT_SEED,
        metavar="SEED",
        help="Hash blocks with this seed, as vLLM does with PYTHONHASHSEED.",
    ),
    option(
        "--max-num-seqs",
        type=_ABOVE_0,
        default=256,
        metavar="N",
        help="Run at most this number of requests at a time; others wait.",
    ),
    option(
        "--max-waiting-queue-length",
        type=_FROM_0,
        default=1000,
        metavar="N",
        help="Let at most this number of requests wait; further ones are answered with status 429.",
    ),
    example="inferway simulate --block-size 16 --kv-cache-size 4096",
)
@groups_section
@section(
    "Answers and their times",
    option(
        "--mode",
        type=OneOf(["echo", "random", "recite"]),
        default="random",
        help="Answer with random words, or with an echo of the prompt.",
    ),
    option(
        "--seed", type=int, default=0, metavar="SEED", help="Draw random answers with this seed."
    ),
    option(
        "--time-to-first-token",
        type=Duration(),
        default="0",
        metavar="TIME",
        help="Take this time for the first token of every answer, whatever the prompt.",
    ),
    option(
        "--prefill-overhead",
        type=Duration(),
        default="0",
        metavar="TIME",
        help="Take this time for each prefill, in addition to its tokens' time.",
    ),
    option(
        "--prefill-time-per-token",
        type=Duration(),
        default="0",
        metavar="TIME",
        help="Take this time for each prompt token that is not in the cache.",
    ),
    option(
        "--inter-token-latency",
        type=Duration(),
        default="0",
        metavar="TIME",
        help="Take this time between two tokens of an answer.",
    ),
    option(
        "--time-factor-under-load",
        type=Number(min=1),
        default=1.0,
        metavar="FACTOR",
        help="Multiply all times by up to this factor, reached when --max-num-seqs requests run.",
    ),
    option(
        "--prefill-in-turn",
        is_flag=True,
        help="Compute one prompt after the other, as where one prompt fills the device.",
    ),
    example="inferway simulate --prefill-time-per-token 40us --inter-token-latency 5ms",
)
@section(
    "KV events",
    option(
        "--zmq-endpoint",
        default="tcp://*:0",
        metavar="tcp://…|none",
        help="Publish KV events at this ZMQ address; none publishes none.",
    ),
    option(
        "--kv-events-replay-endpoint",
        default="tcp://*:0",
        metavar="tcp://…|none",
        help="Let missed events be asked for at this ZMQ address; none lets nobody.",
    ),
    option(
        "--kv-events-replay-queue-size",
        type=_ABOVE_0,
        default=10_000,
        metavar="BATCHES",
        help="Keep this number of batches of events for replay.",
    ),
    option(
        "--kv-events-topic", default="", metavar="TOPIC", help="Publish events under this topic."
    ),
    option(
        "--event-format",
        type=OneOf(["map", "array"]),
        default="map",
        help="Write events as maps, as vLLM 0.32 does, or as arrays, as older versions do.",
    ),
    example="inferway simulate --zmq-endpoint tcp://*:5557",
)
@section(
    "KV transfer",
    option(
        "--kv-transfer",
        type=OneOf(["nixl", "nixl-push", "mooncake", "sglang"]),
        help="Hand KV blocks to other simulated engines and take theirs, as engines with this "
        "connector do.  [default: hand blocks to nobody]",
    ),
    option(
        "--kv-role",
        type=OneOf(["producer", "consumer", "both"]),
        default="both",
        help="Compute prompts for others, decode what others have computed, or both.",
    ),
    option(
        "--kv-transfer-port",
        type=Whole(min=0, max=65535),
        default=0,
        metavar="PORT",
        help="Let other engines fetch blocks at this port; 0 takes a free one. For mooncake and "
        "sglang it is the bootstrap port.",
    ),
    option(
        "--kv-lease",
        type=Duration(),
        default="30s",
        metavar="TIME",
        help="Keep blocks this long for an engine that fetches them.",
    ),
    option(
        "--kv-transfer-overhead",
        type=Duration(),
        default="0",
        metavar="TIME",
        help="Take this time for each transfer, in addition to its blocks' time.",
    ),
    option(
        "--kv-transfer-time-per-block",
        type=Duration(),
        default="0",
        metavar="TIME",
        help="Take this time for each KV block that is fetched.",
    ),
    option(
        "--kv-load-failure-policy",
        type=OneOf(["fail", "recompute"]),
        default="fail",
        help="Answer with status 500 when blocks cannot be fetched, or compute them.",
    ),
    example="inferway simulate --kv-transfer nixl --kv-transfer-time-per-block 100us",
)
@section(
    "Abilities of other engines",
    option(
        "--enable-scale-out",
        is_flag=True,
        help="Render prompts for others at …/render, as vLLM does with this flag.",
    ),
    option(
        "--dev-mode",
        is_flag=True,
        help="Can be paused and put to sleep, as vLLM with VLLM_SERVER_DEV_MODE=1: /pause, /resume,"
        " /sleep, /wake_up.",
    ),
    option(
        "--structured",
        is_flag=True,
        help="Act as an engine with Inferway's structured output: take what is said of shapes, and "
        "answer with any text.",
    ),
    example="inferway simulate --enable-scale-out",
)
@section(
    "Log",
    option(
        "--log-format",
        type=OneOf(["text", "json"]),
        default="text",
        help="Write the log as text, or as one JSON object a line.",
    ),
    example="inferway simulate --log-format json",
)
def simulate(**flags: Any) -> None:
    """Run a simulated vLLM engine: OpenAI endpoints, a paged KV cache and its events.

    It has no weights and makes up its answers; cache, events and times are as vLLM's. A TIME is
    written 250ms, 1.5s or 40us; a bare number is milliseconds.
    """
    import uvloop

    set_up("info", log_format=flags["log_format"])
    for warning in warnings_of(click.get_current_context()):
        log.warning("%s", warning)
    try:
        uvloop.run(_run(flags))
    except InferwayError as e:
        refuse("simulate", e)


async def _run(flags: dict[str, Any]) -> None:
    """Until SIGINT or SIGTERM."""
    config = make_config(flags)
    renderer = Renderer()
    try:
        wanted = GetOrCreateTokenizerKeyRequest(
            flags["tokenizer"] or config.model, follows_links=True
        )
        key = await renderer.get_or_create_tokenizer_key_async(wanted)
        shaping = ModelSettings(chat_template=flags["chat_template"])
        model = RenderedModel(renderer, key, config.max_model_len, shaping)
        stop = asyncio.Event()
        listen(asyncio.get_running_loop(), stop.set, *ENDING)
        async with SimulatedEngine(config, model) as engine:
            click.echo(_ready(engine))
            await stop.wait()
    finally:
        renderer.close()


def make_config(flags: dict[str, Any]) -> SimulatorConfig:
    """Return the configuration that the flags describe. Raises ConfigError."""
    model, names = _model(flags["model"], flags["served_model_name"])
    groups = make_groups(flags)
    room = (flags["kv_cache_size"] - 1) * flags["block_size"]
    if groups is not None:
        room = groups.most_tokens(flags["kv_cache_size"] - 1)
    return SimulatorConfig(
        model=model,
        served_model_names=names,
        lora_modules=dict(_pair(text) for text in flags["lora_modules"]),
        max_model_len=flags["max_model_len"] or min(8192, room),
        latency=LatencyModel(**_same(flags, LatencyModel)),
        events=EventsConfig(
            endpoint=_endpoint(flags["zmq_endpoint"]),
            replay_endpoint=_endpoint(flags["kv_events_replay_endpoint"]),
            topic=flags["kv_events_topic"],
            buffer_steps=flags["kv_events_replay_queue_size"],
            format=flags["event_format"],
        ),
        kv_transfer=_transfer(flags),
        kv_groups=groups,
        **{
            name: value
            for name, value in _same(flags, SimulatorConfig).items()
            if name not in ("model", "lora_modules", "max_model_len", "kv_transfer", "kv_groups")
        },
    )


def _same(flags: dict[str, Any], kind: type) -> dict[str, Any]:
    """The flags that are called like a field of `kind`."""
    return {name: value for name, value in flags.items() if name in kind.__annotations__}


def _model(model: str | None, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The model's place, and the names that clients may use. SmolLM2 is installed with us."""
    if model not in (None, DEFAULT_NAME):
        return model, names
    return str(prepare_smollm2()), names or (DEFAULT_NAME,)


def _transfer(flags: dict[str, Any]) -> TransferConfig | None:
    if flags["kv_transfer"] is None:
        return None
    return TransferConfig(
        connector=flags["kv_transfer"],
        role=flags["kv_role"],
        lease_seconds=flags["kv_lease"],
        overhead=flags["kv_transfer_overhead"],
        time_per_block=flags["kv_transfer_time_per_block"],
        load_failure_policy=flags["kv_load_failure_policy"],
        host=flags["host"],
        port=flags["kv_transfer_port"],
    )


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
        f" · block size {config.cache_config['block_size']}"
        f" · KV events {engine.events_endpoint or 'off'}"
        f" · replay {engine.replay_endpoint or 'off'}"
        f"{_transfer_note(engine)}"
    )


def _transfer_note(engine: SimulatedEngine) -> str:
    transfer = engine.transfer
    if transfer is None:
        return ""
    return f" · KV transfer {transfer.config.connector} at {transfer.host}:{transfer.port}"
