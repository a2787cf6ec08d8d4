"""Requests in two legs through a whole gateway, before simulated engines that believe a reference
as vLLM does: their answers show whose blocks were used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, simulated, until

from inferway.config import EngineSettings, KvTransferSettings
from inferway_sim.config import TransferConfig
from inferway_sim.engine import SimulatedEngine

Connector = Literal["nixl", "nixl-push", "mooncake", "sglang"]
CONNECTORS: Sequence[Connector] = ("nixl", "nixl-push", "mooncake", "sglang")
ROLES: Sequence[Literal["prefill", "decode"]] = ("prefill", "decode")

ALWAYS: Mapping[str, Any] = {
    "plugins": [
        {"type": "always-disagg-pd-decider"},
        {
            "type": "disagg-profile-handler",
            "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}},
        },
        {"type": "prefill-filter"},
        {"type": "decode-filter"},
    ],
    "schedulingProfiles": [
        {"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}]},
        {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}]},
    ],
}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 60},
    "/v1/completions": {"prompt": LONG, "max_tokens": 60},
    "/v1/responses": {"input": LONG, "max_output_tokens": 60},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 60},
}


async def prefill_and_decode(
    start_fleet: StartFleet, connector: Connector = "nixl", **settings: Any
) -> Fleet:
    """One engine that computes prompts, and one that answers; each says what it has read."""
    settings.setdefault("scheduling", ALWAYS)
    roles = iter(ROLES)

    def by_hand(engine: SimulatedEngine) -> EngineSettings:
        role = next(roles)
        assert engine.transfer is not None
        meets = connector in ("mooncake", "sglang") and role == "prefill"
        return EngineSettings(
            url=engine.url,
            role=role,
            kv_connector=connector,
            kv_bootstrap=f"127.0.0.1:{engine.transfer.port}" if meets else None,
        )

    kv_roles: Sequence[Literal["producer", "consumer"]] = ("producer", "consumer")
    configs = [
        simulated(mode="echo", kv_transfer=TransferConfig(connector=connector, role=role))
        for role in kv_roles
    ]
    return await start_fleet(configs, by_hand=by_hand, **settings)


def text_of(answer: Mapping[str, Any]) -> str:
    if "choices" in answer:
        choice = answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    return "".join(block["text"] for block in answer["content"])


def tokens(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Of the prompt and of the answer; Anthropic's usage tells apart what was cached."""
    usage = answer["usage"]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(name, 0) for name in ("input_tokens", *cached)), usage["output_tokens"]


async def alone(fleet: Fleet, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an engine answers by itself that hands nothing over."""
    engine = await fleet.start_engine(simulated(mode="echo"))
    async with fleet.http.post(engine.url + path, json=body) as response:
        found: Mapping[str, Any] = await response.json()
    return found


async def legs(fleet: Fleet, outcome: str = "ok") -> float:
    return await fleet.metric("inferway_prefill_legs_total", outcome=outcome)


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_in_two_legs_is_one_engine_s_answer(
    start_fleet: StartFleet, connector: Connector, path: str
) -> None:
    fleet = await prefill_and_decode(start_fleet, connector)
    body = {"model": "smollm2", **BODIES[path]}

    answer = await fleet.post(path, body)
    moved = await legs(fleet)
    expected = await alone(fleet, path, body)

    assert answer.status == 200
    assert "x-inferway-prefill-engine" in answer.headers
    assert moved == 1
    assert text_of(answer.body) == text_of(expected) != ""
    assert tokens(answer.body) == tokens(expected)


@pytest.mark.parametrize("connector", CONNECTORS)
async def test_a_stream_in_two_legs_has_the_same_text(
    start_fleet: StartFleet, connector: Connector
) -> None:
    fleet = await prefill_and_decode(start_fleet, connector)
    body = {"model": "smollm2", "prompt": LONG, "max_tokens": 60}

    url = fleet.url + "/v1/completions"
    async with fleet.http.post(url, json={**body, "stream": True}) as response:
        raw = (await response.read()).decode()
    moved = await legs(fleet)

    assert (response.status, moved) == (200, 1)
    expected = text_of(await alone(fleet, "/v1/completions", body))
    assert "".join(_pieces(raw)) == expected


def _pieces(raw: str) -> list[str]:
    events = [line[6:] for line in raw.splitlines() if line.startswith("data: {")]
    return [json.loads(event)["choices"][0]["text"] for event in events]


async def test_many_prompts_at_once_each_get_their_own_answer(start_fleet: StartFleet) -> None:
    fleet = await prefill_and_decode(start_fleet)
    texts = [f"{number} {LONG} {number}" for number in range(24)]

    async def ask(text: str) -> Answer:
        body = {"model": "smollm2", "prompt": text, "max_tokens": 200}
        return await fleet.post("/v1/completions", body)

    answers = await asyncio.gather(*map(ask, texts))

    assert {answer.status for answer in answers} == {200}
    for text, answer in zip(texts, answers, strict=True):
        assert text_of(answer.body).strip() == text.strip()
    assert await legs(fleet) == len(texts)


async def test_both_engines_hold_the_prompt_afterwards_and_the_index_says_so(
    start_fleet: StartFleet,
) -> None:
    fleet = await prefill_and_decode(start_fleet)
    await fleet.chat(LONG)

    async def same() -> bool:
        known = [fleet.gateway.index.num_blocks(holder) for holder in range(2)]
        return known == [len(engine.cached_blocks()) for engine in fleet.engines] and all(known)

    await until(same)
    scores = await fleet.scores(LONG)
    assert len(set(scores.values())) == 1
    assert min(scores.values()) > 0


async def test_a_prefill_engine_that_dies_costs_no_answer(start_fleet: StartFleet) -> None:
    fleet = await prefill_and_decode(start_fleet)
    assert (await fleet.chat(LONG)).status == 200
    await fleet.engines[0].stop()

    answer = await fleet.chat("Another one. " + LONG)

    assert answer.status == 200
    assert "x-inferway-prefill-engine" not in answer.headers
    assert await legs(fleet) == 1  # of the first; a scrape may have seen already that it is gone


async def test_blocks_that_are_gone_are_computed_again(start_fleet: StartFleet) -> None:
    fleet = await prefill_and_decode(start_fleet)
    transfer = fleet.engines[0].transfer
    assert transfer is not None
    transfer.refuses_reads = True

    answer = await fleet.chat(LONG)

    assert answer.status == 200
    assert text_of(answer.body)
    assert await fleet.metric("inferway_decode_legs_total", outcome="recomputed") == 1


async def test_a_reference_of_another_prompt_is_not_believed(start_fleet: StartFleet) -> None:
    fleet = await prefill_and_decode(start_fleet)
    transfer = fleet.engines[0].transfer
    assert transfer is not None
    seen: list[dict[str, Any]] = []

    def first(reference: dict[str, Any]) -> dict[str, Any]:
        seen.append(reference)
        return seen[0]

    transfer.alter_reference = first
    one, two = f"{LONG} One.", f"{LONG} Two, and some more of it, so that it is a longer one."
    for text in (one, two):
        body = {"model": "smollm2", "prompt": text, "max_tokens": 200}
        answer = await fleet.post("/v1/completions", body)
        assert text_of(answer.body).strip() == text.strip()

    assert (await legs(fleet), await legs(fleet, "malformed")) == (1, 1)


async def test_a_lease_that_is_nearly_over_is_not_used(start_fleet: StartFleet) -> None:
    settings = KvTransferSettings(lease_margin_seconds=30)  # as long as the engines' leases
    fleet = await prefill_and_decode(start_fleet, kv_transfer=settings)

    answer = await fleet.chat(LONG)

    assert answer.status == 200
    assert "x-inferway-prefill-engine" not in answer.headers
    assert await legs(fleet, "lease") == 1


async def test_clients_may_not_bring_references(start_fleet: StartFleet) -> None:
    fleet = await prefill_and_decode(start_fleet)

    answer = await fleet.chat(LONG, kv_transfer_params={"do_remote_prefill": True})

    assert answer.status == 400
    assert await legs(fleet) == 0
