"""What the record of a request costs: CPU time, bytecode instructions and bytes, by the number of
engines.

PYTHONPATH=src python scripts/record_cost.py

A request is noted when it is decided, its answer is noted at its end, and both are packed with
others, as in a gateway; the journey around it is not measured. A busy machine changes the time, and
not the instructions.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import msgspec
import numpy as np

from inferway.kv.index.protocol import MatchResult
from inferway.model import FIGURES, Candidates, Decision, Endpoint, Prompt, Reason, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest
from inferway.openai_api.usage import Usage
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.routing.objectives import objectives
from inferway.routing.record import Record
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway_console.records.recorder import TOGETHER, Recorder
from inferway_console.records.ring import RecordRing

REQUESTS = 20_000
BLOCKS = 250
HEADERS = ((b"host", b"gateway"), (b"content-type", b"application/json")) * 4
MODEL = ServedModel("org/model", NoPrompts(Reason.NO_TOKENIZER, "these are keys"), (16,))


@dataclass
class Answer:
    """extension.EndedAnswer."""

    request_id: str
    record: Record
    path: str = "/v1/chat/completions"
    status: int = 200
    outcome: str = ""
    seconds: float = 1.0


def routed(endpoints: list[Endpoint], matched: np.ndarray[Any, Any]) -> Routed:
    number = len(endpoints)
    columns: dict[str, Any] = {
        name: np.zeros(number, figure.kind) for name, figure in FIGURES.items()
    }
    rows = {each.holder: row for row, each in enumerate(endpoints)}
    candidates = Candidates(endpoints, rows, [], **columns)
    candidates.block_sizes[:] = 16
    candidates.matched_blocks = matched
    candidates.add(COST_MS, np.random.random(number) * 100 + 20)
    candidates.add(EXPECTED_TTFT_MS, np.random.random(number) * 20)
    candidates.add(TERMS_MS, np.random.random((6, number)).T)  # as they are computed
    target = Target(endpoints[0], 1.0, int(matched[0]), BLOCKS)
    body = ChatRequest(messages=[])
    request = LLMRequest(
        request_id="",
        target_model="org/model",
        body=body,
        headers=HEADERS,
        objectives=objectives(HEADERS, {}),
        tenant="team",
    )
    blocks = {row: int(held) for row, held in enumerate(matched) if held}
    prompt = Prompt(np.zeros(BLOCKS * 16, np.uint32), list(range(BLOCKS)))
    prompts = {16: [Matched(prompt, MatchResult(blocks))]}
    decision = Decision((target,), Reason.KV_AWARE)
    return Routed(request, MODEL, prompts, decision, candidates, tells_its_reuse=True)


def measure(number: int) -> tuple[float, float, float]:
    """Return microseconds, instructions and bytes of a request."""
    endpoints = [Endpoint(f"10.0.0.{i}:8000", f"http://10.0.0.{i}:8000", i) for i in range(number)]
    matched = np.floor(np.random.random(number) * BLOCKS)
    matched[0] = BLOCKS - 1.0  # what typical requests find
    ring = RecordRing(REQUESTS)
    recorder = Recorder(ring, time.monotonic)
    asked = [routed(endpoints, matched) for _ in range(TOGETHER)]
    least = float("inf")
    for start in range(0, REQUESTS, TOGETHER):
        answers = answered(asked, start)
        began = time.thread_time()
        record(recorder, asked, answers)
        least = min(least, time.thread_time() - began)
    answers = answered(asked, REQUESTS)
    counted = instructions(lambda: record(recorder, asked, answers))
    return least * 1e6 / TOGETHER, counted / TOGETHER, ring.num_bytes / len(ring)


def record(recorder: Recorder, asked: list[Routed], answers: list[Any]) -> None:
    for answer, each in zip(answers, asked, strict=True):
        recorder.on_request(msgspec.structs.replace(each, record=answer.record), 0.0)
        recorder.on_answer(answer)
    recorder.settle()


def instructions(work: Callable[[], None]) -> int:
    """Return how many bytecode instructions it takes."""
    number = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal number
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        number += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return number


def answered(asked: list[Routed], start: int) -> list[Any]:
    return [
        Answer(f"5f0c93d1a2b44e17-{start + i:x}", ended(each.decision.targets[0]))
        for i, each in enumerate(asked)
    ]


def ended(target: Target) -> Record:
    """Return what the journey of a request has written that found all that it could."""
    record = Record(time.monotonic())
    record.target, record.known_model = target, "org/model"
    record.reason, record.is_streamed, record.outcome = Reason.KV_AWARE, True, "ok"
    cached = target.matched_blocks * 16
    record.prompt_tokens, record.usage = 4000, Usage(4000, 200, cached)
    record.reused_tokens = cached
    record.first_at, record.median, record.longest = record.opened_at + 0.1, 0.02, 0.05
    return record


if __name__ == "__main__":
    gc.disable()  # its work is shared by all that a gateway does
    for number in (2, 4, 8, 16, 64, 1_000):
        microseconds, counted, size = measure(number)
        print(
            f"{number:5} engines  {microseconds:5.2f} µs  {counted:5.0f} instructions "
            f" {size:4.0f} bytes a request"
        )
