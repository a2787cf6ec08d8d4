"""Streams of two real engines, one of which is lost again and again: how many end whole, and is
their text that of an undisturbed answer?

INFERWAY_VLLM_VENV=/path .venv/bin/python -m tests.engines.continued [MINUTES]

Each minute one of the engines is killed, loses the process that computes, or is drained with
`--hand-over` and ended, in turn; then it is started again. All answers are greedy, so that each has
one right text, but for numbers that are as good as equal: a prompt is computed in other steps than
an answer is. So an answer that differs is told apart by where it begins to: before the seam or at
it, tokens would be doubled or missing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import cycle, takewhile
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION, user
from tests.engines.conftest import ROOT, serve
from tests.engines.engine import MODEL, RealEngine, wait_until_ready
from tests.engines.small_model import first_layers

from inferway_sim.prepare import prepare_smollm2

RESULTS = ROOT / "docs" / "results" / "continued.json"
MINUTES = 30
CLIENTS = 3
ANSWER_TOKENS = 150
QUESTIONS = 12
TROUBLE_SECONDS = 60

_SEAM = re.compile(rb": x-inferway-continued engine=(\S+) tokens=(\d+)")


@dataclass(frozen=True)
class Question:
    path: str
    body: dict[str, Any]
    texts: Sequence[str]  # of each token of the right answer
    usage: dict[str, int]


@dataclass
class Tally:
    """What came of the streams."""

    streams: int = 0
    undisturbed: int = 0
    continued: int = 0
    equal: int = 0  # of those that were continued
    differ_later: int = 0  # behind the seam: numbers as good as equal
    differ_at_seam: list[str] = field(default_factory=list)
    wrong_usage: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)


def asked(number: int) -> tuple[str, dict[str, Any]]:
    random = Random(number)
    words = " ".join(random.choices(["sea", "lamp", "stone", "bread", "river", "night"], k=40))
    more = {"model": MODEL, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
    more |= {"stream": True, "stream_options": {"include_usage": True}}
    if number % 3 == 0:
        return COMPLETION, {**more, "prompt": f"{number}: {words}"}
    return CHAT, {**more, "messages": [user(f"Tell me a story {number} of {words}.")]}


def events_of(lines: Sequence[bytes]) -> list[Any]:
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def text_of(event: Any) -> str:
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        for choice in event["choices"]
    )


def question(url: str, number: int) -> Question:
    """What one engine answers alone."""
    path, body = asked(number)
    with client.open_stream(url + path, body) as stream:
        events = events_of([*stream])
    texts = [text_of(event) for event in events if event["choices"]]
    return Question(path, body, texts if path == COMPLETION else texts[1:], events[-1]["usage"])


def judge(question: Question, lines: Sequence[bytes], tally: Tally) -> None:
    if not lines or lines[-1].strip() != b"data: [DONE]":
        said = lines[-1][:120].decode(errors="replace") if lines else "nothing"
        raise ValueError(f"the stream ends with {said}")
    events = events_of(lines)
    text, right = "".join(map(text_of, events)), "".join(question.texts)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    tally.wrong_usage += any(events[-1]["usage"][n] != question.usage[n] for n in counts)
    seams = [int(found[2]) for line in lines if (found := _SEAM.match(line))]
    if not seams:
        tally.undisturbed += 1
        return
    tally.continued += 1
    if text == right:
        tally.equal += 1
        return
    common = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, right, strict=False))
    )
    if common > len("".join(question.texts[: seams[0]])):
        tally.differ_later += 1
    else:
        at = max(0, common - 30)
        tally.differ_at_seam.append(f"{text[at : common + 30]!r} for {right[at : common + 30]!r}")


def stream(url: str, question: Question, tally: Tally) -> None:
    tally.streams += 1
    try:
        with client.open_stream(url + question.path, question.body) as answer:
            judge(question, [line for line in answer if line.strip()], tally)
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as e:
        tally.failed[f"{type(e).__name__}: {e}"[:160]] += 1


def lose(engine: RealEngine, how: str, gateway: str) -> None:
    """Have the engine end while it streams."""
    if how == "kill":
        engine.kill()
    elif how == "kill core":
        engine.kill_core()
    else:
        path = f"{gateway}/admin/engines/{engine.name}/drain?seconds=0&streams_after=0"
        client.post(path, b"")
        os.kill(engine.session, signal.SIGTERM)
    while not engine.has_ended:
        time.sleep(0.1)
    engine.kill()


@contextmanager
def troubled(gateway: str, engines: Sequence[RealEngine], tally: Tally) -> Iterator[None]:
    """Have an engine lost each minute, and come back."""
    over = threading.Event()
    turns = zip(cycle(engines), cycle(["kill", "kill core", "drain"]), strict=False)

    def trouble() -> None:
        while not over.wait(TROUBLE_SECONDS):
            engine, how = next(turns)
            lose(engine, how, gateway)
            tally.troubles[how] += 1
            engine.start()
            while not engine.answers():  # beside other engines, that may take minutes
                time.sleep(0.5)
            if how == "drain":
                client.post(f"{gateway}/admin/engines/{engine.name}/resume", b"")
            print(f"{how}: {vars(tally)}", flush=True)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(trouble)
        try:
            yield
        finally:
            over.set()
            running.result()


def measure(gateway: str, engines: Sequence[RealEngine], minutes: float) -> Tally:
    questions = [question(engines[0].url, number) for number in range(QUESTIONS)]
    tally, until = Tally(), time.monotonic() + 60 * minutes

    def asking(first: int) -> None:
        numbers = cycle(range(first, QUESTIONS, CLIENTS))
        while time.monotonic() < until:
            stream(gateway, questions[next(numbers)], tally)

    with troubled(gateway, engines, tally), ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(asking, first) for first in range(CLIENTS)]:
            done.result()
    return tally


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES
    vllm = Path(os.environ["INFERWAY_VLLM_VENV"]) / "bin" / "vllm"
    with TemporaryDirectory() as name:
        directory = Path(name)
        model = first_layers(prepare_smollm2(weights=True), directory / "model")
        engines = [RealEngine(vllm, model, directory / f"engine-{i}.log") for i in range(2)]
        try:
            for engine in engines:
                engine.start()
            wait_until_ready(engines, print)
            with serve(engines, directory / "gateway.log") as program:
                tally = measure(program.url, engines, minutes)
                print(program.log.read_text()[-4000:] if tally.failed else "no stream failed")
        finally:
            for engine in engines:
                engine.kill()
    print(json.dumps(vars(tally), indent=1))
    if minutes >= MINUTES:
        RESULTS.write_text(json.dumps({"minutes": minutes, **vars(tally)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
