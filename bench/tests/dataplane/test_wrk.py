"""The load generator: its output, its script, and what does not count."""

from __future__ import annotations

import pytest

from inferway_bench.conversations import BodyTemplate
from inferway_bench.dataplane.testbed import Load, checked, find_wrk, parse_output
from inferway_bench.processes import BenchError

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
