"""How busy an engine is, from its /metrics."""

from __future__ import annotations

from inferway.fleet.load import Load, parse_load

PAGE = """# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 5.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
"""


def test_ranks_are_summed_and_cache_use_is_their_mean() -> None:
    assert parse_load(PAGE) == Load(running=4.0, waiting=7.0, kv_usage=0.375)


def test_the_older_name_of_cache_use_is_known() -> None:
    assert parse_load("vllm:gpu_cache_usage_perc 0.125\n").kv_usage == 0.125


def test_an_engine_that_tells_nothing_counts_as_idle() -> None:
    assert parse_load("") == Load(0.0, 0.0, 0.0)
