"""Real engines of the families in tiny_vision.py, one after another: the gateway's ids of chats
with pictures are the engine's, and its places of the pictures those in the keys of the engine's
blocks. Prints a row of each family.

    .venv/bin/python -m tests.engines.media_families TORCHVISION [FAMILY ...]

TORCHVISION: the folder that scripts/install_torchvision.sh makes beside the engines' environment.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image
from tests.engines import client
from tests.engines.engine import MODEL, RealEngine, last_lines, wait_until_ready
from tests.engines.kv_events import EventListener, Frames, events_in
from tests.engines.tiny_vision import FAMILIES, write_vision_model

from inferway.model import MediaSpan, Tokenized
from inferway.openai_api.requests import ChatRequest
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer

ROOT = Path(__file__).parents[2]
FLAGS = ("--load-format", "dummy", "--enable-prefix-caching", "--trust-remote-code")
MORE_FLAGS = {
    "qwen3_5": ("--dtype", "bfloat16"),  # the CPU's kernel of its states takes no other
    "phi_4": ("--limit-mm-per-prompt", '{"audio": 0}'),  # its tiny model has no code for sound
}
WHOLE = {"full_attention", "mla_attention"}  # kinds of layers that keep all blocks
NUM_CHATS = 20

Key = list[tuple[str, int]] | None


def chats(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield messages that begin alike nowhere, with pictures of drawn sizes between their texts."""
    rng = random.Random(seed)
    for number in range(NUM_CHATS):
        parts: list[dict[str, Any]] = [{"type": "text", "text": f"{number} is the number here. "}]
        for _ in range(rng.choice([1, 1, 2])):
            size = [int(2 ** rng.uniform(4, 9.5)) for _ in range(2)]
            parts += [_picture(size), {"type": "text", "text": " What is in it? " * 8}]
        yield [{"role": "user", "content": parts}]


def _picture(size: Sequence[int]) -> dict[str, Any]:
    out = io.BytesIO()
    Image.new("RGB", (size[0], size[1]), "green").save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def keys(spans: Sequence[MediaSpan], num_blocks: int, block_size: int) -> list[Key]:
    """Return the extra keys of a prompt's first blocks."""
    found: list[Key] = []
    for start in range(0, num_blocks * block_size, block_size):
        inside = [
            (span.identifier, span.offset - start)
            for span in spans
            if span.offset < start + block_size and span.offset + span.length > start
        ]
        found.append(inside or None)
    return found


def _verdict(engine: RealEngine, events: EventListener, ours: Tokenized, body: Any) -> str:
    """Return whether the engine's ids and keys of one chat are ours."""
    answer = client.post(f"{engine.url}/v1/chat/completions", body)
    if answer.status != 200:
        return f"refused ({answer.json['error']['message'][:80]})"
    [ids] = ours.token_ids
    if answer.json["prompt_token_ids"] != ids.tolist():
        return "other ids"
    stored = _stored(events, len(ids))
    tokens = [token for e in stored for token in e["token_ids"]]
    if not tokens:
        return "no blocks"
    if tokens != ids.tolist()[: len(tokens)]:
        return "other blocks"
    block_size = stored[0]["block_size"]
    theirs = [
        key and [(name, offset) for name, offset in key]
        for e in stored
        for key in e.get("extra_keys") or [None] * len(e["block_hashes"])
    ]
    same = theirs == keys(ours.media, len(theirs), block_size)
    return "equal" if same else "other keys"


def _stored(events: EventListener, num_tokens: int) -> list[dict[str, Any]]:
    """Return the events of a prompt's full blocks, those of layers that keep them all."""
    found: list[dict[str, Any]] = []

    def is_whole(messages: list[Frames]) -> bool:
        found[:] = [
            e
            for e in events_in(messages)
            if e["type"] == "BlockStored" and e["kv_cache_spec_kind"] in WHOLE
        ]
        missing = num_tokens - sum(len(e["token_ids"]) for e in found)
        return bool(found) and missing < found[0]["block_size"]

    with suppress(TimeoutError):
        events.messages(is_whole)
    return found


def judged(name: str, torchvision: Path, folder: Path) -> Counter[str]:
    """Return how many chats of a family are equal. Raises RuntimeError or OSError if its engine
    ends."""
    model = write_vision_model(name, folder / name)
    renderer = Renderer()
    key = renderer.get_or_create_tokenizer_key(
        GetOrCreateTokenizerKeyRequest(str(model), is_local=True)
    )
    prompts = ModelPrompts(renderer, key)
    # On the CPU, vLLM caches no prefixes of models with latent attention (Kimi-VL).
    environment = {"PYTHONPATH": str(torchvision), "VLLM_MLA_DISABLE": "1"}
    flags = (*FLAGS, *MORE_FLAGS.get(name, ()))
    vllm = Path(os.environ.get("INFERWAY_VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "vllm"
    engine = RealEngine(vllm, model, folder / f"{name}.log", flags, environment, alone=True)
    found: Counter[str] = Counter()
    try:
        engine.start()
        wait_until_ready([engine], lambda _said: None)
        with EventListener(engine.ports.events, engine.ports.replay) as events:
            for messages in chats(seed=48):
                ours = asyncio.run(prompts.tokenize(ChatRequest(model=MODEL, messages=messages)))
                for named in ours.names:
                    messages[named.message]["content"][named.part]["uuid"] = named.uuid
                body = {
                    "model": MODEL,
                    "messages": messages,
                    "max_tokens": 1,
                    "return_token_ids": True,
                }
                found[_verdict(engine, events, ours, body)] += 1
    finally:
        engine.kill()
    return found


def main() -> None:
    torchvision, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name in names or FAMILIES:
            try:
                found = judged(name, Path(torchvision), Path(folder))
            except (RuntimeError, OSError) as e:
                print(f"{name:16} does not start, or ends: see stderr", flush=True)
                log = Path(folder) / f"{name}.log"
                print(e, *last_lines(log, 200), sep="\n", file=sys.stderr, flush=True)
            else:
                print(f"{name:16} {dict(found)}", flush=True)


if __name__ == "__main__":
    main()
