"""What a choice among many endpoints costs, by who rates them.

Times are medians of wall time: a choice takes microseconds, and its CPU time cannot be told.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from inferway.model import Adapters, Candidates, Endpoint, Prompt
from inferway.openai_api.llm_request import LLMRequest, Objectives
from inferway.openai_api.requests import ChatRequest
from inferway.scheduling.adapter_rows import AdapterRows
from inferway.scheduling.builtin import BUILTIN
from inferway.scheduling.config import build, parse_config
from inferway.scheduling.idle import idle
from inferway.scheduling.plugin import Scorer
from inferway.scheduling.registry import Building
from inferway_bench.spread import Quartiles, quartiles

MOST_US = 60.0  # of a choice with three scorers

# None of their weights changes what they cost.
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
_GIVEN: Mapping[str, dict[str, Any]] = {
    "header-label-affinity-scorer": {"headerName": "x-zone", "labelKey": "zone"}
}
_BLOCKS, _BLOCK_SIZE = 500, 16
_TOKENS = _BLOCKS * _BLOCK_SIZE + 5
_WARM_UP = 20


class Cost(msgspec.Struct, frozen=True):
    """Microseconds: of the choice, and of what plugins bring to the table before it."""

    name: str
    choose: float
    produce: float
    quartiles: tuple[float, float] | None = None  # of the choice

    @property
    def shown(self) -> str:
        if self.quartiles is None:
            return f"{self.choose:.1f}"
        low, high = self.quartiles
        return Quartiles(low, self.choose, high).shown("{:.1f}")


class ManyEndpoints(msgspec.Struct, frozen=True):
    """Each type of scorer alone, and some three at a time."""

    endpoints: int
    scorers: list[Cost]
    triples: list[Cost]


def measure(endpoints: int, repeats: int, seed: int) -> ManyEndpoints:
    """On a fleet that is busy, and of which some hold some of the prompt."""
    table, request = _table(endpoints, seed), _request()

    def cost(name: str, types: Sequence[str]) -> Cost:
        fields = {"plugins": [{"type": t, "parameters": _GIVEN.get(t)} for t in types]}
        made = build(parse_config(fields, name), name, BUILTIN)

        def produce() -> None:
            for producer in made.producers:
                producer.produce(request, table)

        produced = _microseconds(produce, repeats)
        chosen = _microseconds(lambda: made.chooser.choose(request, table), repeats)
        produced_us = produced.median if made.producers else 0.0
        return Cost(name, chosen.median, produced_us, (chosen.low, chosen.high))

    return ManyEndpoints(
        endpoints,
        [cost(name, [name]) for name in _scorers()],
        [cost(name, types) for name, types in TRIPLES.items()],
    )


def _scorers() -> list[str]:
    """Types that need no parameters but those of `_GIVEN`."""
    found = []
    for name, kind in BUILTIN.items():
        with contextlib.suppress(msgspec.ValidationError):
            parameters = msgspec.convert(_GIVEN.get(name, {}), kind.parameters)
            plugin = None if kind.is_handler else kind.build(parameters, Building(name=name))
            if isinstance(plugin, Scorer):
                found.append(name)
    return found


def _microseconds(call: Callable[[], object], repeats: int) -> Quartiles:
    for _ in range(_WARM_UP):
        call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - started) / 1e3)
    return quartiles(times)


def _table(size: int, seed: int) -> Candidates:
    rng = np.random.default_rng(seed)
    endpoints = [
        Endpoint(f"e{i}", f"http://e{i}", i, labels={"zone": f"z{i % 3}"}) for i in range(size)
    ]
    table = idle(endpoints, _BLOCK_SIZE)
    for column in (table.in_flight, table.running, table.others):
        column[:] = rng.integers(0, 30, size)
    table.waiting[:] = rng.integers(0, 4, size)
    table.kv_usage[:] = rng.uniform(0.1, 0.9, size)
    table.recent_tokens[:] = rng.integers(0, 100_000, size)
    table.prompt_blocks[:] = _BLOCKS
    holders = rng.integers(0, size, max(1, size // 50))
    table.matched_blocks[holders] = table.matched_value[holders] = rng.integers(1, _BLOCKS)
    table.adapters = AdapterRows(
        [Adapters(frozenset({f"adapter-{i % 7}"}), frozenset(), 1 + i % 3) for i in range(size)]
    )
    return table


def _request() -> LLMRequest:
    turns = [{"role": "user", "content": "Where was I? " * 250} for _ in range(9)]
    return LLMRequest(
        request_id="",
        target_model="adapter-3",
        body=ChatRequest(model="adapter-3", messages=turns, stream=True),
        headers=((b"host", b"gateway"), (b"x-zone", b"z1"), (b"x-session-id", b"s")),
        objectives=Objectives(ttft_ms=300.0, tpot_ms=30.0),
        raw=msgspec.json.encode(turns),
        prompts={_BLOCK_SIZE: [Prompt(np.zeros(_TOKENS, np.uint32), range(_BLOCKS))]},
    )
