"""What a choice among many endpoints costs, by who rates them. It takes microseconds, too few for
CPU time to tell, and is measured in wall time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from inferway.errors import ConfigError
from inferway.model import Adapters, Candidates, Endpoint, Prompt
from inferway.openai_api.llm_request import LLMRequest, Objectives
from inferway.openai_api.requests import ChatRequest
from inferway.scheduling.adapter_rows import AdapterRows
from inferway.scheduling.builtin import BUILTIN
from inferway.scheduling.config import build
from inferway.scheduling.document import parse_config
from inferway.scheduling.idle import idle
from inferway.scheduling.plugin import DataProducer, ProfileHandler, Scorer
from inferway.scheduling.registry import Building
from inferway_bench.director.decisions import DirectorPlan
from inferway_bench.rows import Row, Value
from inferway_bench.spread import Interval, median_interval

_WARM_UP = 20  # choices
_BLOCKS, _BLOCK_SIZE = 500, 16  # of the prompt
_GIVEN: Mapping[str, dict[str, Any]] = {
    "header-label-affinity-scorer": {"headerName": "x-zone", "labelKey": "zone"}
}
# Scorers by three. None of their weights changes what they cost.
TRIPLES: Mapping[str, Sequence[str]] = {
    "ours by weights": (
        "precise-prefix-cache-scorer",
        "relative-load-scorer",
        "recent-work-scorer",
    ),
    "llm-d's, precise": (
        *("queue-scorer", "kv-cache-utilization-scorer"),
        "precise-prefix-cache-scorer",
    ),
    "llm-d's default": ("queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer"),
    "adapters": ("lora-affinity-scorer", "no-hit-lru-scorer", "active-request-scorer"),
    "the dearest": ("latency-scorer", "context-length-aware", "relative-load-scorer"),
}


def choices(plan: DirectorPlan) -> Iterator[Row]:
    """Yield what three scorers at a time cost, and each type of scorer alone, on a fleet that is
    busy and of which some endpoints hold some of the prompt."""
    table, request = _candidates(plan.many_endpoints, plan.seed), _request()
    alone = {name: [name] for name in _scorers()}
    for kind, sets in (("three scorers", TRIPLES), ("one scorer", alone)):
        for name, types in sets.items():
            fields = {"plugins": [{"type": t, "parameters": _GIVEN.get(t)} for t in types]}
            made = build(parse_config(fields, name), name, BUILTIN)

            def produce(producers: Sequence[DataProducer] = made.producers) -> None:
                for producer in producers:
                    producer.produce(request, table)

            def choose(chooser: ProfileHandler = made.chooser) -> None:
                chooser.choose(request, table)

            # what producers bring is there before a choice
            produced = _median_us(produce, plan.repeats) if made.producers else None
            chosen = _median_us(choose, plan.repeats)
            values: dict[str, Value] = {"choice": chosen, "producers": produced}
            yield Row("choices", {"kind": kind, "scorers": name}, values)


def _scorers() -> list[str]:
    """The types of scorers that need no parameters but those of `_GIVEN`."""
    found = []
    for name, kind in BUILTIN.items():
        with contextlib.suppress(msgspec.ValidationError, ConfigError):
            parameters = msgspec.convert(_GIVEN.get(name, {}), kind.parameters)
            plugin = None if kind.is_handler else kind.build(parameters, Building(name=name))
            if isinstance(plugin, Scorer):
                found.append(name)
    return found


def _median_us(call: Callable[[], object], repeats: int) -> Interval:
    """Return the median wall time of a call, in microseconds."""
    times = []
    for repeat in range(_WARM_UP + repeats):
        started = time.perf_counter_ns()
        call()
        if repeat >= _WARM_UP:
            times.append((time.perf_counter_ns() - started) / 1e3)
    return median_interval(times)


def _candidates(size: int, seed: int) -> Candidates:
    rng = np.random.default_rng(seed)
    endpoints = [
        Endpoint(f"e{i}", f"http://e{i}", i, labels={"zone": f"z{i % 3}"}) for i in range(size)
    ]
    table = idle(endpoints, _BLOCK_SIZE)
    for column in (table.in_flight, table.running, table.others):
        column[:] = rng.integers(0, 30, size)
    table.waiting[:] = rng.integers(0, 4, size)
    table.kv_usage[:] = rng.uniform(0.1, 0.9, size)
    table.recent_prefill_tokens[:] = rng.integers(0, 100_000, size)
    table.prompt_blocks[:] = _BLOCKS
    holders = rng.integers(0, size, max(1, size // 50))
    table.matched_blocks[holders] = table.weighted_matched_blocks[holders] = rng.integers(
        1, _BLOCKS
    )
    table.adapters = AdapterRows(
        [Adapters(frozenset({f"adapter-{i % 7}"}), frozenset(), 1 + i % 3) for i in range(size)]
    )
    return table


def _request() -> LLMRequest:
    turns = [{"role": "user", "content": "Where was I? " * 250} for _ in range(9)]
    tokens = np.zeros(_BLOCKS * _BLOCK_SIZE + 5, np.uint32)
    return LLMRequest(
        request_id="",
        target_model="adapter-3",
        body=ChatRequest(model="adapter-3", messages=turns, stream=True),
        headers=((b"host", b"gateway"), (b"x-zone", b"z1"), (b"x-session-id", b"s")),
        objectives=Objectives(ttft_ms=300.0, tpot_ms=30.0),
        raw=msgspec.json.encode(turns),
        prompts={_BLOCK_SIZE: [Prompt(tokens, range(_BLOCKS))]},
    )
