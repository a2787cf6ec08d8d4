"""How real engines are chosen: by the milliseconds that are learned of them, and as llm-d's
configurations say."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, Message, assistant, chat, user
from tests.engines.conftest import serve
from tests.engines.engine import MODEL, RealEngine
from tests.engines.gateway import cached, engine_of, send, wait_until_believed
from tests.engines.waiting import wait_until

TEXT = "glass violin yeast zero tide chess paper bee river lamp stone bread sail clock seed"
WORDS = TEXT.split()
LENGTHS = (40, 120, 300)  # of prompts, in words; each is about one token

# What llm-d does when nothing is configured (field notes 3.3).
BY_DEFAULT = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  - type: max-score-picker
  - type: single-profile-handler
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
      - {pluginRef: max-score-picker}
"""

# One that llm-d publishes: the caches by KV events, kvcache-aware routing's guide.
PRECISE = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: tokenizer
    parameters: {modelName: hf-repo/model-name}
  - type: endpoint-notification-source
  - type: single-profile-handler
  - type: decode-filter
  - type: precise-prefix-cache-scorer
    parameters:
      tokenProcessorConfig: {blockSize: 64, hashSeed: "42"}
      indexerConfig:
        tokenizersPoolConfig: {modelName: hf-repo/model-name}
        kvBlockIndexConfig: {enableMetrics: true}
  - type: kv-cache-utilization-scorer
  - type: queue-scorer
  - type: max-score-picker
dataLayer:
  sources:
    - pluginRef: endpoint-notification-source
      extractors:
        - pluginRef: precise-prefix-cache-scorer
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: decode-filter
      - pluginRef: tokenizer
      - {pluginRef: precise-prefix-cache-scorer, weight: 2.0}
      - {pluginRef: kv-cache-utilization-scorer, weight: 1.0}
      - {pluginRef: queue-scorer, weight: 1.0}
      - pluginRef: max-score-picker
"""


@dataclass(frozen=True)
class Streamed:
    """An answer that has streamed by: who gave it, and milliseconds to its first piece."""

    engine: str
    expected: float
    took: float


def stream(gateway: str, text: str) -> Streamed:
    body = {
        "model": MODEL,
        "messages": [user(text)],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    with client.open_stream(gateway + CHAT, body) as answer:
        next(line for line in answer if line.startswith(b"data:"))
        took = (time.monotonic() - started) * 1000
        answer.read()
        expected = float(answer.headers["x-inferway-expected-ttft-ms"])
        return Streamed(answer.headers["x-inferway-engine"], expected, took)


def unrelated(count: int, seed: int) -> Iterator[str]:
    """Prompts that share no beginning."""
    random = Random(seed)
    for _ in range(count):
        yield " ".join(random.choices(WORDS, k=random.choice(LENGTHS)))


def metric(gateway: str, name: str, **labels: str) -> list[float]:
    """The values of all samples with these labels."""
    lines = client.get(f"{gateway}/metrics").raw.decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return [
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(name + "{") and all(label in line for label in wanted)
    ]


def talk(gateway: str, subject: str) -> list[str]:
    """A session of three turns; the engines that answered them."""
    messages: list[Message] = []
    visited = []
    for text in (f"{subject}: " + " ".join(WORDS * 8), "Go on. " * 20, "And then? " * 20):
        messages.append(user(text))
        request = chat(subject, messages)
        answer = send(gateway, request, max_tokens=8)
        visited.append(engine_of(answer))
        wait_until_believed(gateway, request, visited[-1], cached(answer).prompt_blocks)
        messages.append(assistant(answer.json["choices"][0]["message"]["content"]))
    return visited


@contextmanager
def slowed(engine: RealEngine) -> Iterator[None]:
    """It computes a tenth of the time, as cpulimit(1) would have it."""
    core, over = engine.core(), Event()

    def say(number: int) -> None:
        for pid in core:
            os.kill(pid, number)

    def limit() -> None:
        while not over.is_set():
            say(signal.SIGSTOP)
            over.wait(0.45)
            say(signal.SIGCONT)
            over.wait(0.05)

    thread = Thread(target=limit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def learned(
    engines: Sequence[RealEngine], new_log: Callable[[str], Path]
) -> Iterator[tuple[str, list[Streamed]]]:
    """A gateway that nobody has configured, and the answers that have streamed through it."""
    with serve(engines, new_log("default-scheduling")) as program:
        yield program.url, [stream(program.url, text) for text in unrelated(30, seed=1)]


def test_what_is_expected_is_what_it_takes(learned: tuple[str, list[Streamed]]) -> None:
    """Within what busy cores leave of it: the same prompt takes 70 ms there, or 600."""
    ratios = [answer.took / answer.expected for answer in learned[1][-15:]]

    assert 0.5 < median(ratios) < 2


def test_metrics_have_what_was_learned(
    learned: tuple[str, list[Streamed]], engines: Sequence[RealEngine]
) -> None:
    gateway, answers = learned
    for engine in engines:
        took = [answer.took for answer in answers if answer.engine == engine.name]
        assert len(took) >= 5
        assert metric(gateway, "inferway_ttft_prediction_error_count", engine=engine.name) == [
            len(took)
        ]
        fixed, token = (
            metric(gateway, "inferway_expected_cost_seconds", engine=engine.name, of=of)[0]
            for of in ("ttft_fixed", "ttft_own_token")
        )
        # about as long as the longest of the prompts
        assert min(took) / 2 < 1000 * (fixed + 300 * token) < 2 * max(took)


def test_sessions_grow_where_they_are(learned: tuple[str, list[Streamed]]) -> None:
    gateway, _ = learned
    with ThreadPoolExecutor(2) as threads:
        visited = list(threads.map(talk, [gateway] * 4, ("rain", "salt", "wool", "tin")))

    assert [len(set(engines)) for engines in visited].count(1) >= 3


def test_an_engine_that_becomes_slow_gets_less(
    learned: tuple[str, list[Streamed]], engines: Sequence[RealEngine]
) -> None:
    gateway, _ = learned
    slow = engines[0]
    with slowed(slow), ThreadPoolExecutor(2) as threads:
        prompts = list(unrelated(36, seed=2))
        answers = list(threads.map(stream, [gateway] * len(prompts), prompts))

    visited = [answer.engine for answer in answers]
    assert visited[-18:].count(slow.name) <= 6


@pytest.fixture(scope="module", params=[BY_DEFAULT, PRECISE], ids=["default", "precise"])
def as_llm_d(
    request: pytest.FixtureRequest,
    engines: Sequence[RealEngine],
    new_log: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A gateway that chooses as an EndpointPickerConfig says."""
    path = tmp_path_factory.mktemp("epp") / "epp.yaml"
    path.write_text(request.param)
    with serve(engines, new_log("llm-d-scheduling"), "--scheduling", str(path)) as program:
        yield program.url


def test_llm_ds_configuration_routes_by_caches_and_by_load(
    as_llm_d: str, engines: Sequence[RealEngine]
) -> None:
    for subject in ("moss", "brass"):
        assert len(set(talk(as_llm_d, subject))) == 1

    busy, idle = engines
    with occupied(busy):
        wait_until(
            lambda: metric(as_llm_d, "inferway_engine_kv_usage", engine=busy.name)[0] > 0.2,
            "the gateway sees how full the engine is",
            lambda: metric(as_llm_d, "inferway_engine_kv_usage"),
        )
        running = metric(as_llm_d, "inferway_engine_running", engine=busy.name)
        answers = [send(as_llm_d, chat("new", [user(text)])) for text in unrelated(4, seed=3)]

    assert running == [1.0]
    assert {engine_of(answer) for answer in answers} == {idle.name}


@contextmanager
def occupied(engine: RealEngine) -> Iterator[None]:
    """Somebody else's long answer is being written there."""
    text = " ".join(Random(4).choices(WORDS, k=1500))
    body = {"model": MODEL, "messages": [user(text)], "max_tokens": 2000, "ignore_eos": True}
    with client.open_stream(engine.url + CHAT, {**body, "stream": True}) as answer:
        next(line for line in answer if line.startswith(b"data:"))
        yield
