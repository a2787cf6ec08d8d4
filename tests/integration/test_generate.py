"""Tokens in, tokens out through the whole gateway: routed by cache, without a tokenizer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.conftest import Answer, Fleet, StartFleet, simulated, until
from tests.integration.recorders import Recorder, in_front_of

from inferway.config import ModelSettings
from inferway_sim.config import LatencyModel

GENERATE = "/inference/v1/generate"
IDS = [*range(1000, 1200)]  # 12 blocks of 16 and a half
MATCHED = "x-inferway-matched-blocks"
PLAIN = simulated(enable_scale_out=True)
BY_MILLISECONDS = {"plugins": [{"type": "expected-ttft"}]}


def asked(ids: list[int] = IDS, params: dict[str, Any] | None = None, **fields: Any) -> Any:
    sampling = {"max_tokens": 4, **(params or {})}
    return {"model": "smollm2", "token_ids": ids, "sampling_params": sampling, **fields}


async def all_known(fleet: Fleet) -> None:
    async def same() -> bool:
        known = [fleet.gateway.index.num_blocks(holder) for holder in range(len(fleet.engines))]
        return known == [len(engine.cached_blocks()) for engine in fleet.engines]

    await until(same)


async def generate(fleet: Fleet, *args: Any, **fields: Any) -> Answer:
    answer = await fleet.post(GENERATE, asked(*args, **fields))
    assert answer.status == 200
    await all_known(fleet)
    return answer


async def test_a_growing_prompt_is_matched_as_the_engine_reuses_it(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([PLAIN] * 3)
    ids, answers = [*IDS], []
    for _ in range(4):
        answer = await generate(fleet, ids)
        answers.append(answer)
        ids += [*answer.body["choices"][0]["token_ids"], *IDS]

    assert len({answer.engine for answer in answers}) == 1
    assert answers[0].matched == 0
    assert all(answer.expected_tokens == answer.cached_tokens > 0 for answer in answers[1:])
    assert await fleet.metric("inferway_decisions_total", reason="kv-aware") == 4
    delivered = await fleet.metric("inferway_delivered_tokens_total", engine=answers[0].engine)
    assert delivered == sum(answer.cached_tokens for answer in answers)
    assert await fleet.metric("inferway_request_generation_tokens_sum", model="smollm2") == 16


async def test_it_shares_blocks_with_a_completion_of_the_same_ids(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([PLAIN] * 3)
    first = await fleet.post("/v1/completions", {"model": "smollm2", "prompt": IDS})
    await all_known(fleet)

    second = await generate(fleet)

    assert (second.engine, second.cached_tokens) == (first.engine, second.expected_tokens)


async def test_a_model_without_a_tokenizer_is_matched_all_the_same(
    start_fleet: StartFleet, tmp_path: Any
) -> None:
    nothing = ModelSettings(tokenizer=str(tmp_path))
    fleet = await start_fleet([PLAIN] * 2, models={"smollm2": nothing})

    ready = await fleet.get("/ready")
    first, second = [await generate(fleet) for _ in range(2)]

    assert ready.body["models"]["smollm2"]["reason"] == "no-tokenizer"
    assert "x-inferway-reason" not in first.headers
    assert (second.engine, second.matched) == (first.engine, 12)
    assert second.cached_tokens == 12 * 16


async def test_a_stream_passes_with_its_usage_and_its_reuse_is_counted(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([PLAIN] * 2)
    first = await generate(fleet)

    body = asked(stream=True, stream_options={"include_usage": True}, params={"n": 2})
    async with fleet.http.post(fleet.url + GENERATE, json=body) as answer:
        events = (await answer.text()).split("\n\n")

    usage = json.loads(events[-3].removeprefix("data: "))["usage"]
    assert answer.headers["x-inferway-engine"] == first.engine
    assert events[-2:] == ["data: [DONE]", ""]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(IDS), 8)
    assert await fleet.metric("inferway_time_to_first_token_seconds_count", model="smollm2") == 1


async def test_tenants_with_salts_do_not_match_each_other(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "a secret")
    fleet = await start_fleet([PLAIN], salt_per_tenant_env="SALT")
    tenants, found = ("acme", "rival", "acme"), []
    for tenant in tenants:
        headers = {"x-gateway-inference-fairness-id": tenant}
        answer = await fleet.post(GENERATE, asked(), **headers)
        await all_known(fleet)
        assert answer.headers["x-inferway-edited"] == "cache_salt"
        found.append((answer.matched, answer.cached_tokens))

    assert found == [(0, 0), (0, 0), (12, 192)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": [1] * 100_000}, "token_ids"),
        ({"sampling_params": None}, "sampling_params"),
        ({"priority": 3}, "priority"),
    ],
)
async def test_bad_bodies_are_refused_by_name_and_reach_no_engine(
    fields: dict[str, Any], param: str, start_fleet: StartFleet
) -> None:
    fleet = await start_fleet([PLAIN])

    answer = await fleet.post(GENERATE, {**asked(), **fields})

    assert (answer.status, answer.body["error"]["param"]) == (400, param)
    assert "x-inferway-engine" not in answer.headers


async def test_an_engine_that_is_lost_is_replaced_unseen() -> None:
    broken, sound = Recorder(status=503), Recorder()
    async with in_front_of(broken, sound) as front:
        body = json.dumps(asked() | {"model": "m"}).encode()
        statuses = [(await front.ask(GENERATE, body))[0] for _ in range(6)]

    assert statuses == [200] * 6
    assert all(seen.body == body for seen in sound.seen)


LONG_PREFILL = LatencyModel(prefill_overhead=0.005, prefill_time_per_token=0.0005)


@pytest.mark.parametrize("path", [GENERATE, "/v1/completions"])
async def test_samples_go_where_their_prompt_is_held_until_waiting_costs_more(
    path: str, start_fleet: StartFleet
) -> None:
    fleet = await start_fleet(
        [replace(PLAIN, latency=LONG_PREFILL)] * 4, scheduling=BY_MILLISECONDS
    )
    ids = [*range(1000, 3000)]
    body = asked(ids, {"n": 1}, prompt=ids, max_tokens=4, stream=True)

    async def sample() -> tuple[str, bool]:
        """Return the engine, and whether it has to compute the prompt."""
        async with fleet.http.post(fleet.url + path, json=body) as answer:
            await answer.read()
            return answer.headers["x-inferway-engine"], answer.headers[MATCHED] == "0"

    holder, _ = await sample()
    await all_known(fleet)
    few = await asyncio.gather(*[sample() for _ in range(4)])
    many = await asyncio.gather(*[sample() for _ in range(64)])

    assert few == [(holder, False)] * 4
    [(first, number), *_] = Counter(engine for engine, _ in many).most_common()
    assert (first, number > 16) == (holder, True)
    computing = [engine for engine, computes in many if computes]
    assert len(computing) == len({*computing} - {holder})  # what is on its way there counts as held
