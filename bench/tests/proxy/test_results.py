"""What a run of `inferway bench proxy` is held against, and how it is kept and shown."""

from __future__ import annotations

from pathlib import Path

import msgspec

from inferway_bench.machine import this_machine
from inferway_bench.proxy.plan import QUICK
from inferway_bench.proxy.report import PROXY, sheets
from inferway_bench.proxy.results import (
    DIRECT,
    LONG,
    PLAIN,
    SCORING,
    SGLANG,
    SHORT,
    STREAM,
    VLLM,
    VLLM_CACHE,
    VLLM_KV,
    Cost,
    Latency,
    Memory,
    ProxyRun,
)

DOCS = Path(__file__).parents[3] / "docs"


def cost(router: str, case: str, *cpu_us: float, note: str = "") -> Cost:
    return Cost(router, case, list(cpu_us), [1000.0] * len(cpu_us), note)


COSTS = [
    cost(PLAIN, SHORT, 40.0, 42.0, 41.0),
    cost(VLLM, SHORT, 90.0, 92.0, 91.0),
    cost(SGLANG, SHORT, 100.0, 99.0, 101.0),
    cost(SCORING, LONG, 400.0, 410.0, 405.0),
    cost(VLLM_CACHE, LONG, 390.0, 392.0, 391.0),
    cost(VLLM_KV, LONG, 1200.0, 1210.0, 1190.0, note="2.0 calls of the engines' /render"),
    cost(PLAIN, STREAM, 5.0, 5.1, 4.9),
    cost(VLLM, STREAM, 9.0, 9.1, 8.9),
]
RUN = ProxyRun(
    machine=this_machine(),
    command="inferway bench proxy",
    plan=QUICK,
    versions={"inferway": "0.1", "vllm-router": "0.1.17"},
    bodies={SHORT: "short chats"},
    costs=COSTS,
    rate=1000.0,
    latencies=[
        Latency(DIRECT, [100.0, 110.0, 100.0], [500.0, 500.0, 500.0], [0.0] * 3),
        Latency(PLAIN, [300.0, 310.0, 300.0], [900.0, 950.0, 1000.0], [0.0] * 3),
        Latency(VLLM, [290.0, 330.0, 280.0], [700.0, 720.0, 710.0], [0.1, 0.0, 0.0]),
    ],
    memory=[Memory(PLAIN, [100.0], [20.0]), Memory(VLLM, [80.0], [30.0])],
    load_after=1.0,
)


def met(run: ProxyRun) -> dict[tuple[str, str], bool]:
    return {(goal.what.partition(",")[0], goal.asked): goal.is_met for goal in run.goals()}


def test_each_bar_is_held_against_the_medians() -> None:
    found = met(RUN)

    assert found[SHORT, f"≤ 0.5 × {VLLM}"]
    assert not found[SHORT, f"≤ 0.4 × {SGLANG}"]
    assert not found[STREAM, f"≤ 0.5 × {VLLM}"]


def test_the_long_chat_is_compared_with_who_tokenized() -> None:
    guessing = [c for c in COSTS if c.router != VLLM_KV]
    without = msgspec.structs.replace(RUN, costs=guessing)

    assert met(RUN)[LONG, f"≤ 1 × {VLLM_KV}"]
    assert not met(without)[LONG, f"≤ 1 × {VLLM_CACHE}"]


def test_latencies_are_compared_repeat_by_repeat() -> None:
    by_name = {goal.what.split(" at ")[0]: goal for goal in RUN.goals()}

    assert by_name["added latency p50"].is_met
    assert not by_name["added latency p99"].is_met


def test_who_fails_requests_has_not_met_the_bar_of_latency() -> None:
    ours = msgspec.structs.replace(RUN.latencies[1], failed=[0.0, 0.01, 0.0])
    failing = msgspec.structs.replace(RUN, latencies=[RUN.latencies[0], ours, RUN.latencies[2]])

    assert not {goal.what.split(" at ")[0]: goal for goal in failing.goals()}[
        "added latency p50"
    ].is_met


def test_memory_is_compared_with_each_peer_that_was_measured() -> None:
    by_name = {goal.what: goal for goal in RUN.goals()}

    assert not by_name["memory at start, no tokenizer"].is_met
    assert by_name[f"memory, growth to {QUICK.held_streams:,} streams"].found == "20 MiB beside 30"


def test_a_run_without_peers_has_no_goals() -> None:
    ours = (PLAIN, SCORING)
    alone = msgspec.structs.replace(
        RUN,
        costs=[c for c in COSTS if c.router in ours],
        latencies=RUN.latencies[:2],
        memory=RUN.memory[:1],
    )

    assert alone.goals() == []
    assert "no router" in PROXY.markdown(alone)


def test_a_router_that_answers_nothing_is_named_and_the_others_are_compared() -> None:
    without = msgspec.structs.replace(
        RUN, half_of_the_slowest=4000.0, dropped={SGLANG: "repeat 2, all of 9: status 503"}
    )
    latency = next(sheet for sheet in sheets(without) if sheet.title.startswith("Latency"))

    assert latency.notes == [f"{SGLANG} answered nothing in repeat 2, all of 9: status 503"]
    assert "two fifths of a core; half of what the slowest router carries is 4,000" in latency.title
    assert len(latency.rows) == 3
