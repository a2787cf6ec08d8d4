"""Records what a real engine publishes into tests/golden/vllm, so that other tests use real bytes.

    .venv/bin/python -m tests.engines.record_golden [name of a recording …]

Needs `make fleet`'s environment; the xxhash recordings also want `pip install xxhash` there.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.engines import client
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine, wait_until_ready
from tests.engines.kv_events import EventListener, Frames

from inferway_sim.prepare import prepare_smollm2

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "vllm"
QUIET_SECONDS = 0.7  # an engine publishes within a tenth of a second of its answer


@dataclass(frozen=True)
class Request:
    name: str
    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Recording:
    """One engine's life. `algorithm` and `hash_seed` are vLLM's for block hashes."""

    name: str
    requests: Sequence[Request]
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def chat(name: str, *texts: str, **more: Any) -> Request:
    """`texts` are spoken by user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"messages": messages, "max_tokens": 1, "return_token_ids": True, **more}
    return Request(name, "/v1/chat/completions", body)


def completion(name: str, prompt: str | list[str] | list[int], **more: Any) -> Request:
    body = {"prompt": prompt, "max_tokens": 1, "return_token_ids": True, **more}
    return Request(name, "/v1/completions", body)


def numbers(first: int, num: int) -> list[int]:
    """A prompt of token ids that no other prompt begins with."""
    return [1000 + (first * 613 + i * 7) % 40_000 for i in range(num)]


TURNS = (
    "Describe the water cycle for a ten year old child, in plain words and without formulas, and "
    "name each of its steps in the order in which a drop of rain would pass through them.",
    "The sun warms the sea and some water becomes vapour. High up it is cold, so the vapour turns "
    "into tiny drops: clouds. When they grow heavy it rains. The rain runs into rivers, and back.",
    "Where in this cycle does the snow on a mountain stand, and how long can it stay there before "
    "it moves on? Please give two examples, one of a few weeks and one of many thousand years.",
    "Snow waits between falling and running off: in a garden a few weeks, in a glacier for ages.",
    "你能用中文再说一遍吗？请尽量简单，让孩子也能听懂，并且把每一步都按顺序列出来。",
)

CONVERSATION = (
    chat("first turn", *TURNS[:1]),
    chat("second turn", *TURNS[:3]),
    chat("third turn", *TURNS[:5]),
    chat("the third turn again", *TURNS[:5]),
    chat("first turn with a salt", *TURNS[:1], cache_salt="tenant-a"),
    chat("second turn with the salt", *TURNS[:3], cache_salt="tenant-a"),
    chat("first turn with another salt", *TURNS[:1], cache_salt="tenant-b"),
    completion("shorter than a block", "Once upon a time"),
    completion("text", TURNS[0] + " " + TURNS[2]),
    completion("exactly two blocks", numbers(1, 2 * BLOCK_SIZE)),
    completion("exactly two blocks again", numbers(1, 2 * BLOCK_SIZE)),
    completion("one token more", [*numbers(1, 2 * BLOCK_SIZE), 77]),
    completion("two prompts", [TURNS[1], TURNS[2]]),
    completion("an answer of two blocks", numbers(2, 40), max_tokens=64, ignore_eos=True),
    completion("two answers to one prompt", numbers(3, 70), n=2, max_tokens=2, seed=1),
    Request("reset", "/reset_prefix_cache", {}),
    chat("first turn after the reset", *TURNS[:1]),
)

# 8 blocks, of which one is vLLM's null block: every prompt drives out older blocks.
EVICTION = (
    completion("four blocks", numbers(1, 4 * BLOCK_SIZE + 5)),
    completion("two other blocks", numbers(2, 2 * BLOCK_SIZE + 5)),
    completion("the four blocks again", numbers(1, 4 * BLOCK_SIZE + 5)),
    completion("three more blocks", numbers(3, 3 * BLOCK_SIZE + 5)),
    completion("the two other blocks again", numbers(2, 2 * BLOCK_SIZE + 5)),
    completion("six blocks", numbers(4, 6 * BLOCK_SIZE + 5)),
    completion("the first four blocks, once more", numbers(1, 4 * BLOCK_SIZE + 5)),
)

SHORT = (CONVERSATION[0], CONVERSATION[1], CONVERSATION[4])


def algorithm(name: str) -> Sequence[str]:
    return ("--prefix-caching-hash-algo", name)


RECORDINGS = (
    Recording("conversation", CONVERSATION),
    Recording("eviction", EVICTION, ("--num-gpu-blocks-override", "8", "--max-model-len", "224")),
    Recording(
        "sha256_cbor_bytes",
        SHORT,
        algorithm("sha256_cbor"),
        {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0", "PYTHONHASHSEED": "42"},
    ),
    Recording("xxhash", SHORT, algorithm("xxhash"), {"PYTHONHASHSEED": "0"}),
    Recording("xxhash_cbor", SHORT, algorithm("xxhash_cbor")),
)


def main(names: Sequence[str]) -> None:
    vllm = Path(os.environ.get("INFERWAY_VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "vllm"
    model_dir = prepare_smollm2(weights=True)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for recording in RECORDINGS:
        if names and recording.name not in names:
            continue
        with tempfile.TemporaryDirectory() as logs:
            log = Path(logs) / "engine.log"
            flags, environment = recording.flags, recording.environment
            engine = RealEngine(vllm, model_dir, log, flags, environment, alone=True)
            engine.start()
            try:
                wait_until_ready([engine], print)
                made = {**_origin(vllm, engine, recording), **_record(engine, recording)}
            finally:
                engine.kill()
        path = GOLDEN / f"{recording.name}.json"
        path.write_text(_layout(made))
        print(f"wrote {path}")


def _origin(vllm: Path, engine: RealEngine, recording: Recording) -> dict[str, Any]:
    version = subprocess.run([vllm, "--version"], capture_output=True, text=True, check=True)
    flags = dict(zip(recording.flags[::2], recording.flags[1::2], strict=True))
    integers = recording.environment.get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1") == "1"
    return {
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}, tests/engines/record_golden.py",
        "engine": f"vLLM {version.stdout.split()[-1]} on the CPU",
        "model": "SmolLM2-135M-Instruct (Apache-2.0), served as smollm2",
        "flags": list(recording.flags),
        "environment": dict(recording.environment),
        "block_size": BLOCK_SIZE,
        "hash_algorithm": flags.get("--prefix-caching-hash-algo", "sha256"),
        "hash_seed": recording.environment.get("PYTHONHASHSEED"),
        "integer_hashes": integers,
        "kv_event_sources": client.get(f"{engine.url}/kv_event_sources").json,
        "models": client.get(f"{engine.url}/v1/models").json,
        "cache_config_info": _cache_config_info(engine),
    }


def _cache_config_info(engine: RealEngine) -> str:
    metrics = client.get(f"{engine.url}/metrics").raw.decode()
    return next(line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{"))


def _record(engine: RealEngine, recording: Recording) -> dict[str, Any]:
    with EventListener(engine.ports.events, engine.ports.replay) as listener:
        requests = [_send(engine, request, listener) for request in recording.requests]
        return {
            "requests": requests,
            # As a DEALER gets it: empty, topic, sequence, payload; the end marker last.
            "replay_from_0": list(map(_base64, listener.replay(0))),
            "replay_from_3": list(map(_base64, listener.replay(3))),
            "replay_from_the_future": list(map(_base64, listener.replay(10_000))),
        }


def _send(engine: RealEngine, request: Request, listener: EventListener) -> dict[str, Any]:
    body = {"model": MODEL, **request.body} if request.body else {}
    answer = client.post(engine.url + request.path, body)
    if answer.status != 200:
        raise RuntimeError(f"{request.name}: {answer.status} {answer.raw.decode()}")
    return {
        "name": request.name,
        "path": request.path,
        "body": body,
        **_tokens(answer.json),
        "messages": list(map(_base64, listener.messages_until_quiet(QUIET_SECONDS))),
    }


def _tokens(answer: dict[str, Any]) -> dict[str, Any]:
    """Prompts and answers as token ids, and what came from the cache."""
    if "choices" not in answer:
        return {}
    choices = answer["choices"]
    chat_prompt = answer.get("prompt_token_ids")
    prompts = [chat_prompt] if chat_prompt else [c["prompt_token_ids"] for c in choices]
    return {
        "prompt_token_ids": prompts,
        "token_ids": [choice["token_ids"] for choice in choices],
        "cached_tokens": answer["usage"]["prompt_tokens_details"]["cached_tokens"],
    }


def _base64(frames: Frames) -> list[str]:
    return [base64.b64encode(frame).decode() for frame in frames]


def _layout(made: Mapping[str, Any]) -> str:
    """JSON, one line for each request and each message: readable, and small in a diff."""
    return "{\n" + ",\n".join(_entries(made)) + "\n}\n"


def _entries(made: Mapping[str, Any]) -> Iterator[str]:
    for key, value in made.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value and not isinstance(value[0], str):
            items = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
            text = f"[\n{items}\n ]"
        yield f" {json.dumps(key)}: {text}"


if __name__ == "__main__":
    main(sys.argv[1:])
