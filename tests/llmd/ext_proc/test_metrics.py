"""What the picker counts, and what of it a client may name."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.llmd.ext_proc.pods import Stream, rqb, rqh, rsb, rsh

from inferway.config import ModelRewrite, RewriteTarget
from inferway.fleet.load import Load
from inferway.routing.rewrite import Rewrites
from inferway_llmd.ext_proc.metrics import picker_families

PODS: dict[str, dict[str, Any]] = {"10.0.0.1:8000": {}}
ANSWER = b'{"usage":{"prompt_tokens":32,"completion_tokens":10,"total_tokens":42}}'


def asked(model: str) -> list[Any]:
    head = rqh((":path", "/v1/completions"))
    return [head, rqb(b'{"model":"%b","prompt":"p"}' % model.encode(), eos=True)]


def answered(body: bytes = ANSWER, status: str = "200", **meta: Any) -> list[Any]:
    head = rsh((":status", status), ("content-type", "application/json"), **meta)
    return [head, rsb(body, eos=True)]


def samples(stream: Stream) -> dict[tuple[str, ...], float]:
    """(name, label values in order) -> value, of what is not 0."""
    families = picker_families(stream.picker.counts, [], "pool")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.value
    }


def rewriting(models: Sequence[str]) -> Rewrites:
    return Rewrites([ModelRewrite(models=list(models), targets=[RewriteTarget(model="v2")])])


async def test_an_answered_request_is_counted_under_the_references_names() -> None:
    stream = Stream(PODS)

    await stream.send(*asked("m"), *answered())

    found = samples(stream)
    objective = "inference_objective_"
    assert found[objective + "request_total", "m", "m"] == 1
    assert found[objective + "request_sizes_sum", "m", "m"] == len(asked("m")[1].request_body.body)
    assert found[objective + "response_sizes_sum", "m", "m"] == len(ANSWER)
    assert found[objective + "input_tokens_sum", "m", "m"] == 32
    assert found[objective + "output_tokens_sum", "m", "m"] == 10
    assert found[objective + "request_duration_seconds_count", "m", "m"] == 1
    assert found[objective + "normalized_time_per_output_token_seconds_count", "m", "m"] == 1
    assert (objective + "running_requests", "m") not in found


async def test_a_request_under_way_is_running_and_one_that_is_left_is_an_error() -> None:
    stream = Stream(PODS)
    await stream.send(*asked("m"))
    running = samples(stream)["inference_objective_running_requests", "m"]

    stream.exchange.close()

    found = samples(stream)
    assert running == 1
    assert ("inference_objective_running_requests", "m") not in found
    assert found["inference_objective_request_error_total", "m", "m", "ClientDisconnect"] == 1


async def test_a_rewritten_name_is_a_label_if_a_rule_has_it() -> None:
    stream = Stream(PODS, rewrites=rewriting(["v1"]))

    await stream.send(*asked("v1"))

    assert samples(stream)["inference_objective_request_total", "v1", "v2"] == 1


async def test_a_name_that_a_client_made_up_is_no_label() -> None:
    stream = Stream(PODS, rewrites=rewriting([]))

    await stream.send(*asked("made-up"))

    assert samples(stream)["inference_objective_request_total", "", "v2"] == 1


async def test_refusals_are_counted_by_status() -> None:
    stream = Stream(PODS, max_body_bytes=10)

    await stream.send(*asked("m"))

    assert samples(stream)["inferway_picker_refusals_total", "413"] == 1


async def test_what_carries_no_prompt_is_counted_apart() -> None:
    stream = Stream(PODS)

    await stream.send(rqh((":path", "/v1/models"), eos=True))

    found = samples(stream)
    assert found["inferway_picker_unread_total",] == 1
    assert not any(name[0].startswith("inference_objective_request") for name in found)


async def test_an_answer_from_elsewhere_is_counted() -> None:
    stream = Stream(PODS)
    served = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.9:1"}}

    await stream.send(*asked("m"), *answered(meta=served))

    assert samples(stream)["inferway_picker_served_elsewhere_total",] == 1


TWINS = {
    "request_total": "request_total",
    "request_sizes_sum": "request_size_bytes_sum",
    "response_sizes_sum": "response_size_bytes_sum",
    "input_tokens_sum": "request_input_tokens_sum",
    "output_tokens_sum": "request_output_tokens_sum",
    "prompt_cached_tokens_sum": "request_cached_tokens_sum",
    "request_duration_seconds_count": "request_duration_seconds_count",
    "request_ttft_seconds_count": "request_ttft_seconds_count",
    "normalized_time_per_output_token_seconds_count": "request_ntpot_seconds_count",
}


async def test_llm_ds_names_say_the_same() -> None:
    stream = Stream(PODS)
    cached = b'{"usage":{"prompt_tokens":32,"completion_tokens":10,' + (
        b'"prompt_tokens_details":{"cached_tokens":16}}}'
    )

    await stream.send(*asked("m"), *answered(cached))

    found = samples(stream)
    for old, new in TWINS.items():
        value = found["inference_objective_" + old, "m", "m"]
        assert found["llm_d_epp_" + new, "m", "m"] == value
    assert found["llm_d_epp_request_cached_tokens_sum", "m", "m"] == 16


async def test_a_stream_is_timed_by_token_behind_its_first() -> None:
    stream = Stream(PODS)
    body = b'{"model":"m","prompt":"p","stream":true}'
    events = [b'data: {"n":%d}\n\n' % number for number in range(3)]
    usage = b"data: %b\n\n" % ANSWER

    await stream.send(rqh((":path", "/v1/completions")), rqb(body, eos=True))
    await stream.send(rsh((":status", "200")), *[rsb(event) for event in events])
    await stream.send(rsb(usage), rsb(b"", eos=True))

    found = samples(stream)
    assert found["llm_d_epp_request_streaming_tpot_seconds_count", "m", "m"] == 1
    assert found["llm_d_epp_request_ttft_seconds_count", "m", "m"] == 1


@pytest.mark.parametrize("prefix", ["inference_extension_", "llm_d_epp_"])
async def test_decisions_are_counted_and_timed(prefix: str) -> None:
    stream = Stream(PODS)
    await stream.send(*asked("m"))
    empty = Stream({})
    await empty.send(*asked("m"))

    found, failed = samples(stream), samples(empty)
    assert found[prefix + "scheduler_attempts_total", "success", "m", "10.0.0.1:8000"] == 1
    assert found[prefix + "scheduler_e2e_duration_seconds_count",] == 1
    assert failed[prefix + "scheduler_attempts_total", "failure", "", ""] == 1


def test_the_pool_is_told_on_average_and_how_far_apart_its_engines_are() -> None:
    engines: Any = [
        SimpleNamespace(
            name="a", healthy=True, load=Load({"running": 2, "waiting": 1, "kv_usage": 0.5})
        ),
        SimpleNamespace(
            name="b", healthy=True, load=Load({"running": 4, "waiting": 5, "kv_usage": 0.5})
        ),
        SimpleNamespace(name="away", healthy=False, load=Load({"waiting": 99})),
    ]
    families = picker_families(Stream(PODS).picker.counts, engines, "pool")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }

    assert found["inference_pool_ready_pods", "pool"] == 2
    assert found["llm_d_epp_ready_endpoints", "pool"] == 2
    assert found["inference_pool_average_queue_size", "pool"] == 3
    assert found["inference_pool_average_running_requests", "pool"] == 3
    assert found["llm_d_epp_average_kv_cache_utilization", "pool"] == 0.5
    assert found["llm_d_epp_std_dev_queue_size", "pool"] == 2
    assert found["llm_d_epp_per_endpoint_queue_size", "pool", "b"] == 5
