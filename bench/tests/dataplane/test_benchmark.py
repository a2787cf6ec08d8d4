"""Rows and losses of the data plane, its latencies, and what wrk prints."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.conversations import BodyTemplate
from inferway_bench.dataplane.benchmark import (
    DATAPLANE,
    DIRECT,
    LONG,
    PLAIN,
    SCORING,
    SHORT,
    SMG,
    STREAM,
    VLLM,
    arrivals,
    latencies,
    losses,
)
from inferway_bench.dataplane.testbed import Load, checked, find_wrk, parse_output, trivial_engines
from inferway_bench.processes import BenchError
from inferway_bench.routers import Inferway, RunningRouter, place_for
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
    cpu(SMG, SHORT, 100.0, 99.0, 101.0),
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
        f"{SHORT}: {SMG} takes 100 µs of CPU, `{SCORING}` 205: 2.0 (2.0 to 2.1) times as much",
        f"{LONG}: vllm-router cache_aware takes 391 µs of CPU, `{SCORING}` 405: 1.0 (1.0 to 1.1) "
        "times as much",
    ]


def test_the_tables_have_each_load_and_router() -> None:
    text = DATAPLANE.markdown(RUN)

    assert f"| {SHORT} | {PLAIN} | 41.0 (40.0 to 42.0) | 1,000 |" in text
    assert "1,000 streams of one token a second" in text
    assert "- why so many" in text


def test_arrivals_of_a_repeat_are_the_same_for_all_and_others_in_the_next() -> None:
    one, same, other = (arrivals("m", 200.0, 1.0, seed) for seed in (0, 0, 1))

    assert one == same
    assert [session.at for session in one] != [session.at for session in other]
    assert all(a.at[0] < b.at[0] <= 1.0 for a, b in pairwise(one))


@pytest.mark.slow
def test_a_router_that_answers_nothing_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with trivial_engines("m", tmp_path / "engine.log") as engines:
        place = place_for(engines, "m", tmp_path / "router")  # nobody listens there
        absent = RunningRouter(Inferway(scoring=False), place, os.getpid())

        with pytest.raises(BenchError, match=f"{place.url}: none of .* was answered: connect"):
            latencies([absent], "m", 40.0, 0.5, 2, unseen)


OUTPUT = """\
Running 1s test @ http://127.0.0.1:8080
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   580.00us   90.00us   2.00ms   75.00%
  12990 requests in 1.00s, 5.00MB read

INFERWAY {"requests":12990,"microseconds":1000500,"bad_status":0,"socket_errors":0,"p50_us":580}
"""


def test_the_result_is_read_from_between_wrks_own_lines() -> None:
    result = parse_output(OUTPUT)

    assert (result.requests, result.microseconds, result.p50_us) == (12990, 1000500, 580)


def test_output_without_a_result_is_an_error_that_shows_it() -> None:
    with pytest.raises(BenchError, match="unable to connect"):
        parse_output("unable to connect to 127.0.0.1:1 Connection refused")


@pytest.mark.parametrize(
    ("field", "value"), [('"bad_status":0', '"bad_status":3'), ('"requests":12990', '"requests":0')]
)
def test_a_run_with_a_failure_does_not_count(field: str, value: str) -> None:
    with pytest.raises(BenchError, match="all must succeed"):
        checked(parse_output(OUTPUT.replace(field, value)), "http://127.0.0.1:8080")


def test_a_missing_wrk_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(BenchError, match="apt-get install wrk"):
        find_wrk()


@pytest.mark.tools
def test_nobody_listening_is_an_error() -> None:
    load = Load([BodyTemplate(b'{"a":', b"}")], connections=1)

    with pytest.raises(BenchError, match=r"socket errors|refused"):
        load.run("http://127.0.0.1:1", seconds=1, first_number=0)
