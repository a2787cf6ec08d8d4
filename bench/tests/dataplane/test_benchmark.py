"""Who is ahead in a run of `inferway bench dataplane`, and how it is shown."""

from __future__ import annotations

from bench.tests.runs import a_run

from inferway_bench.dataplane.benchmark import (
    DATAPLANE,
    DIRECT,
    LONG,
    PLAIN,
    SCORING,
    SGLANG,
    SHORT,
    STREAM,
    VLLM,
    losses,
)
from inferway_bench.rows import Findings, Row, Run, Value

OURS = (PLAIN, SCORING)
PLAN = {"held_streams": 1000}


def cpu(router: str, load: str, *cpu_us: float, did: str = "") -> Row:
    values: dict[str, Value] = {"cpu_us": list(cpu_us), "per_second": [1000.0], "did": did}
    return Row("cpu", {"load": load, "router": router}, values, router in OURS)


def latency(router: str, p50: list[float], p99: list[float], failed: float = 0.0) -> Row:
    values: dict[str, Value] = {"added_p50_us": p50, "added_p99_us": p99, "failed": [failed, 0.0]}
    return Row("latency", {"router": router}, values, router in OURS)


ROWS = [
    cpu(PLAIN, SHORT, 40.0, 42.0, 41.0),
    cpu(SCORING, SHORT, 200.0, 210.0, 205.0),
    cpu(VLLM, SHORT, 90.0, 92.0, 91.0),
    cpu(SGLANG, SHORT, 100.0, 99.0, 101.0),
    cpu(SCORING, LONG, 400.0, 410.0, 405.0),
    cpu("vllm-router cache_aware", LONG, 390.0, 392.0, 391.0),
    cpu(
        "vllm-router kv_aware",
        LONG,
        1200.0,
        1210.0,
        1190.0,
        did="2.0 calls of the engines' /render",
    ),
    cpu(PLAIN, STREAM, 5.0, 5.1, 4.9),
    cpu(VLLM, STREAM, 9.0, 9.1, 8.9),
    Row("latency", {"router": DIRECT}, {"p50_us": [100.0], "failed": [0.0]}, is_ours=False),
    latency(PLAIN, [200.0, 200.0, 200.0], [400.0, 450.0, 500.0]),
    latency(VLLM, [190.0, 220.0, 180.0], [200.0, 220.0, 210.0], failed=0.1),
    Row("memory", {"router": PLAIN}, {"at_start": [100.0], "growth": [20.0]}),
    Row("memory", {"router": VLLM}, {"at_start": [80.0], "growth": [30.0]}, is_ours=False),
]


def run_of(rows: list[Row]) -> Run:
    found = Findings(rows=rows, facts={"rate": 1000.0}, notes={"latency": ["why so many"]})
    return a_run("dataplane", found, plan=PLAN)


RUN = run_of(ROWS)


def test_peers_that_take_less_cpu_than_ours_with_all_it_does_are_losses() -> None:
    assert losses(RUN) == [
        f"{SHORT}: {VLLM} takes 91 µs of CPU, `{SCORING}` 205: 2.3 (2.2 to 2.3) times as much",
        f"{SHORT}: {SGLANG} takes 100 µs of CPU, `{SCORING}` 205: 2.0 (2.0 to 2.1) times as much",
        f"{LONG}: vllm-router cache_aware takes 391 µs of CPU, `{SCORING}` 405: 1.0 (1.0 to 1.1) "
        "times as much",
    ]


def test_the_tables_have_each_load_and_router() -> None:
    text = DATAPLANE.markdown(RUN)

    assert f"| {SHORT} | {PLAIN} | 41.0 (40.0 to 42.0) | 1,000 |" in text
    assert "1,000 streams of one token a second" in text
    assert "- why so many" in text
