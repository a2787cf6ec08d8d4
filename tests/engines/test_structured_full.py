"""What takes engines of its own settings: `make fleet-full`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.engines import client
from tests.engines.chats import CHAT
from tests.engines.conftest import ROOT, Say
from tests.engines.engine import RealEngine, wait_until_ready
from tests.engines.shaped import COMPACT, DATE, FILE_SEP, chat, matches, said, streamed, text_of

COMPILE_SECONDS = 3.0
NUM_DRAFTS = 8
DRAFTING = {
    "method": "ngram",
    "num_speculative_tokens": NUM_DRAFTS,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
FIXED = {
    "type": "object",
    "properties": {
        f"property_number_{i}": {"const": f"a value that is always the same, of property {i}"}
        for i in range(4)
    },
    "required": [f"property_number_{i}" for i in range(4)],
    "additionalProperties": False,
}


@contextmanager
def serving(
    vllm: Path, model_dir: Path, log: Path, say: Say, flags: Mapping[str, object]
) -> Iterator[str]:
    words = [
        word if isinstance(word, str) else json.dumps(word)
        for pair in flags.items()
        for word in pair
    ]
    engine = RealEngine(vllm, model_dir, log, words, {"PYTHONPATH": str(ROOT)}, alone=True)
    try:
        engine.start()
        wait_until_ready([engine], say)
        yield engine.url
    finally:
        engine.kill()


NewLog = Callable[[str], Path]


@pytest.fixture(scope="module")
def slow(vllm: Path, model_dir: Path, new_log: NewLog, say: Say) -> Iterator[str]:
    """Every compile takes three seconds more."""
    settings = {"inferway": {"structured": True, "compile_delay_seconds": COMPILE_SECONDS}}
    flags = {"--additional-config": settings}
    with serving(vllm, model_dir, new_log("engine-slow"), say, flags) as url:
        yield url


def first_token(url: str, body: Mapping[str, object]) -> float:
    """Seconds until the first text."""
    began = time.perf_counter()
    found = None
    for line in streamed(url, body):
        if found is None and line.startswith("data: {"):
            choices = json.loads(line[6:])["choices"]
            if any(choice["delta"].get("content") for choice in choices):
                found = time.perf_counter() - began
    assert found is not None
    return found


def long_prompt(seed: int) -> str:
    """Of which nothing is cached: two seconds and more of prefill."""
    drawn = random.Random(seed)
    return " ".join(f"{drawn.choice('abcdefgh')}{drawn.randrange(1000)}" for _ in range(500))


def regex_of(seed: int) -> dict[str, object]:
    return {"structured_outputs": {"regex": f"[a-z]{{3}}{seed:06d}"}}


def test_a_cold_shape_compiles_under_the_prompts_prefill(slow: str, say: Say) -> None:
    prefill = min(first_token(slow, chat(long_prompt(i), max_tokens=4)) for i in (1, 2))
    compiling = min(first_token(slow, chat("hi", max_tokens=4, **regex_of(i))) for i in (3, 4))

    both = min(
        first_token(slow, chat(long_prompt(i), max_tokens=20, **regex_of(i))) for i in (5, 6, 7)
    )

    say(f"prefill {prefill:.2f} s, compile {compiling:.2f} s, both {both:.2f} s")
    assert compiling >= COMPILE_SECONDS
    assert both <= 1.1 * max(prefill, compiling)
    counts = client.get(f"{slow}/v1/structured/stats").json["counts"]
    assert counts["compile_hidden_seconds"]["sum"] > 0


def test_a_prompt_that_is_cached_waits_for_its_shape_and_holds_nobody_up(slow: str) -> None:
    prompt = long_prompt(8)
    first_token(slow, chat(prompt, max_tokens=4))

    text = text_of(list(streamed(slow, chat(prompt, max_tokens=20, **regex_of(9)))))

    assert text.endswith("000009")


def test_more_cold_shapes_than_can_be_compiled_are_told_to_come_again(slow: str) -> None:
    """Two threads, three seconds each, and nobody waits for longer than ten."""

    def ask(number: int) -> client.Answer:
        return client.post(slow + CHAT, chat("hi", max_tokens=12, **regex_of(100 + number)))

    with ThreadPoolExecutor(24) as pool:
        asking = [pool.submit(ask, number) for number in range(24)]
        healthy = client.get(f"{slow}/health", seconds=5).status
        answers = [each.result() for each in asking]

    kept = [answer for answer in answers if answer.status == 200]
    busy = [answer for answer in answers if answer.status == 429]
    assert healthy == 200
    assert kept
    assert len(kept) + len(busy) == 24
    assert "grammars are compiled or wait for it" in busy[0].json["error"]["message"]


@pytest.fixture(scope="module")
def drafting(vllm: Path, model_dir: Path, new_log: NewLog, say: Say) -> Iterator[str]:
    flags = {
        "--additional-config": {"inferway": {"structured": True}},
        "--speculative-config": DRAFTING,
    }
    with serving(vllm, model_dir, new_log("engine-drafting"), say, flags) as url:
        yield url


@pytest.fixture(scope="module")
def plain(vllm: Path, model_dir: Path, new_log: NewLog, say: Say) -> Iterator[str]:
    flags = {"--additional-config": {"inferway": {"structured": True}}}
    with serving(vllm, model_dir, new_log("engine-plain"), say, flags) as url:
        yield url


def steps(url: str) -> float:
    """Of the engine, all so far."""
    page = client.get(f"{url}/metrics").raw.decode()
    name = "vllm:iteration_tokens_total_count"
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def test_forced_tokens_save_steps_and_change_nothing(drafting: str, plain: str, say: Say) -> None:
    body = chat("Go.", max_tokens=300, structured_outputs={"json": FIXED, **COMPACT})

    texts, taken = [], []
    for url in (plain, drafting):
        before = steps(url)
        texts.append(said(client.post(url + CHAT, body)))
        taken.append(steps(url) - before)

    say(f"{taken[0]:.0f} steps, {taken[1]:.0f} with forced tokens as drafts")
    assert texts[0] == texts[1]
    assert taken[0] >= 2.5 * taken[1]


def test_drafts_and_shapes_go_together(drafting: str) -> None:
    body = chat("When?", structured_outputs={"regex": f"({DATE}, ){{8}}{DATE}"}, max_tokens=200)

    assert matches(f"({DATE}, ){{8}}{DATE}")(said(client.post(drafting + CHAT, body)))


@pytest.fixture(scope="module")
def reasoning(vllm: Path, model_dir: Path, new_log: NewLog, say: Say) -> Iterator[str]:
    flags: dict[str, object] = {
        "--additional-config": {"inferway": {"structured": True}},
        "--logits-processors": "tests.engines.steering:Steering",
        "--reasoning-parser-plugin": str(ROOT / "tests" / "engines" / "steering.py"),
        "--reasoning-parser": "file-sep",
    }
    with serving(vllm, model_dir, new_log("engine-reasoning"), say, flags) as url:
        yield url


def test_the_shape_begins_where_reasoning_ends(reasoning: str) -> None:
    body = chat(
        "When?",
        structured_outputs={"regex": DATE},
        vllm_xargs={"force": [FILE_SEP, 8]},
        skip_special_tokens=False,
    )

    message = client.post(reasoning + CHAT, body).json["choices"][0]["message"]

    thought = message.get("reasoning") or message.get("reasoning_content")
    assert thought
    assert not matches(DATE)(thought)
    assert matches(DATE)(message["content"].removesuffix("<|im_end|>")), message
