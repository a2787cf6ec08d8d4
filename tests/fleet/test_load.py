"""How busy an engine is, from its /metrics."""

from __future__ import annotations

import pytest

from inferway.fleet.load import (
    MAX_ADAPTER_SAMPLES,
    MAX_LINE,
    MAX_SAMPLES,
    RankLoad,
    parse_load,
)
from inferway.model import Adapters

PAGE = """# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 5.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
"""


def lora(running: str, waiting: str, when: str) -> str:
    labels = f'running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f'vllm:lora_requests_info{{max_lora="4",{labels}}} {when}\n'


ADAPTERS = (
    lora("", "", "1.7634e+09") + lora("a,b", "c", "1.7635e+09") + lora("a", "", "1.76349e+09")
)


def rank_load(running: float, waiting: float, kv_usage: float) -> RankLoad:
    return RankLoad({"running": running, "waiting": waiting, "kv_usage": kv_usage})


def test_ranks_are_summed_and_cache_use_is_their_mean() -> None:
    load = parse_load(PAGE)

    assert (load["running"], load["waiting"], load["kv_usage"]) == (4.0, 9.0, 0.375)


def test_each_rank_has_its_own_figures() -> None:
    load = parse_load(PAGE)

    assert load.of(0, 2) == rank_load(3.0, 7.0, 0.5)
    assert load.of(1, 2) == rank_load(1.0, 2.0, 0.25)


def test_ranks_are_told_apart_by_their_numbers_over_all_nodes() -> None:
    load = parse_load(PAGE.replace('engine="1"', 'engine="9"').replace('engine="0"', 'engine="8"'))

    assert load.of(9, 2) == rank_load(1.0, 2.0, 0.25)


@pytest.mark.parametrize(
    "page",
    [PAGE.replace('engine="1",', ""), PAGE.replace('engine="1"', 'engine="0"'), PAGE[:250]],
    ids=["unnamed", "twice", "cut"],
)
def test_ranks_that_cannot_be_told_apart_share_evenly(page: str) -> None:
    load = parse_load(page)

    assert load.of(0, 2) == rank_load(load["running"] / 2, load["waiting"] / 2, load["kv_usage"])
    assert load.of(None, 1)["running"] == load["running"]


def test_the_older_name_of_cache_use_is_known() -> None:
    assert parse_load("vllm:gpu_cache_usage_perc 0.125\n")["kv_usage"] == 0.125


def test_other_engines_names_are_known() -> None:
    sglang = 'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_queue_reqs{tp_rank="0"} 3.0\n'
    trt = "trtllm_num_requests_running 4\ntrtllm_kv_cache_utilization 0.5\n"

    assert parse_load(sglang + "sglang:token_usage 0.25\n").of(None, 1) == rank_load(2.0, 3.0, 0.25)
    assert parse_load(trt).of(None, 1) == rank_load(4.0, 0.0, 0.5)


def test_an_engine_that_tells_nothing_counts_as_idle() -> None:
    assert parse_load("").of(None, 1) == rank_load(0.0, 0.0, 0.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "?", ""])
def test_what_is_no_number_is_not_counted(value: str) -> None:
    load = parse_load(f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 1")

    assert load.of(None, 1) == rank_load(0.0, 1.0, 0.0)


def test_the_last_sample_tells_the_adapters() -> None:
    adapters = parse_load(ADAPTERS).adapters

    assert adapters == Adapters(frozenset({"a", "b"}), frozenset({"c"}), 4)


def test_of_more_sets_of_adapters_than_are_read_none_is_taken_for_the_last() -> None:
    page = lora("a", "", "1.7635e+09") + lora("b", "", "1") * (MAX_ADAPTER_SAMPLES - 2)

    assert parse_load(page).adapters.running == {"a"}
    assert parse_load(page + lora("c", "", "1.7636e+09")).adapters == Adapters()


def test_no_more_is_read_of_a_name_than_an_engine_can_have() -> None:
    sample = "vllm:num_requests_running 1\n"

    assert parse_load(sample * (MAX_SAMPLES + 1))["running"] == MAX_SAMPLES
    long = f'vllm:num_requests_running{{a="{"x" * MAX_LINE}"}} 1\n'
    assert parse_load(long + sample)["running"] == 1


def test_an_engine_without_adapters_has_none() -> None:
    assert parse_load(PAGE).adapters == Adapters()


def test_who_had_a_first_token_and_has_not_ended_is_answering() -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 3\n'
        'vllm:num_requests_running{engine="1"} 1\n'
        'vllm:num_requests_waiting{engine="0"} 0\n'
        'vllm:num_requests_waiting{engine="1"} 0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0\n'
        'vllm:time_to_first_token_seconds_count{engine="0"} 12\n'
        'vllm:time_to_first_token_seconds_count{engine="1"} 7\n'
        'vllm:e2e_request_latency_seconds_count{engine="0"} 10\n'
        'vllm:e2e_request_latency_seconds_count{engine="1"} 7\n'
    )

    load = parse_load(text)

    assert load.answering == 2
    assert [load.of(rank, 2).answering for rank in (0, 1)] == [2, 0]


def test_an_engine_that_does_not_count_does_not_tell_who_is_answering() -> None:
    assert parse_load("vllm:num_requests_running 3\n").of(0, 2).answering is None
