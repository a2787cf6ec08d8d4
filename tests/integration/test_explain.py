"""POST /v1/explain: where a request would go and why, without sending it; and where two part."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, until

from inferway.scheduling.load import DEFAULT

PATH = "/v1/explain"


def _chat(*contents: str, **fields: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant")
    messages = [
        {"role": roles[0] if i == 0 else roles[2 - i % 2], "content": content}
        for i, content in enumerate(contents)
    ]
    return {"model": "smollm2", "messages": messages, "max_tokens": 4, **fields}


async def _held(fleet: Fleet, body: dict[str, Any]) -> str:
    """Sends a chat, and waits until its engine has told that it holds it."""
    answer = await fleet.post("/v1/chat/completions", body)
    asked = {name: body[name] for name in ("model", "messages")}

    async def told() -> bool:
        scores = (await fleet.post("/score_chat_completions", asked)).body["pod_scores"]
        return bool(scores[answer.engine] > 0)

    await until(told)
    return answer.engine


async def test_it_says_where_a_request_would_go_and_what_each_engine_holds(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(3)
    body = _chat(LONG, "Why?")
    engine = await _held(fleet, body)

    told = (await fleet.post(PATH, body)).body
    answer = await fleet.post("/v1/chat/completions", body)

    assert told["goes_to"] == engine == answer.engine
    assert told["reason"] == "kv-aware"
    assert told["prompt_tokens"] == answer.body["usage"]["prompt_tokens"]
    first, *others = told["candidates"]
    assert (first["endpoint"], first["blocks"]) == (engine, answer.matched)
    assert first["runs"] == [["gpu", answer.matched]]
    assert [each["blocks"] for each in others] == [0, 0]
    assert all(each["why_not"] for each in others)
    assert (told["adapter"], told["salted"], told["left_out"]) == (None, False, [])


async def test_by_cost_each_term_is_told_and_they_add_up(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2, scheduling=DEFAULT)
    await _held(fleet, _chat(LONG, "Why?"))

    told = (await fleet.post(PATH, _chat(LONG, "Why not?"))).body

    for each in told["candidates"]:
        assert sum(each["terms"].values()) == pytest.approx(each["expected_ttft_ms"], rel=1e-3)
        whole = each["expected_ttft_ms"] + each["others_ms"]
        assert whole == pytest.approx(each["cost_ms"], rel=1e-3)
    costs = [each["cost_ms"] for each in told["candidates"]]
    assert costs == sorted(costs)


async def test_nothing_is_sent_booked_or_learned(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    await fleet.chat("hello")
    asked = {"model": "smollm2", "messages": _chat(LONG, "0?")["messages"]}
    held = (await fleet.post("/score_chat_completions", asked)).body["pod_scores"]
    before = await fleet.metric("inferway_decisions_total", reason="kv-aware")

    first = [(await fleet.post(PATH, _chat(LONG, f"{i}?"))).body["goes_to"] for i in range(5)]

    assert len(set(first)) == 1  # equals take turns, and nobody has taken one
    engines = (await fleet.get("/admin/engines")).body["engines"]
    assert [each["load"]["in_flight"] for each in engines] == [0, 0]
    assert await fleet.metric("inferway_decisions_total", reason="kv-aware") == before
    assert (await fleet.post("/score_chat_completions", asked)).body["pod_scores"] == held
    assert (await fleet.post("/v1/chat/completions", _chat(LONG, "0?"))).engine == first[0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "smollm2"}, "body"),
        ({"path": "/v1/nothing", "body": {"model": "smollm2"}}, "path"),
        ({"bodies": [_chat("a")]}, "bodies"),
        ({"bodies": [_chat("a"), {}]}, "bodies[1]"),
        ({"model": "smollm2", "messages": []}, "messages"),
        ({"model": "smollm2", "messages": [{"content": "a"}]}, "messages[0].role"),
        ({"path": 3, "body": {}}, "path"),
    ],
)
async def test_what_cannot_be_read_is_refused_as_the_request_would_be(
    start_fleet: StartFleet, body: dict[str, Any], param: str
) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.post(PATH, body)

    assert answer.status == 400
    assert answer.body["error"]["param"] == param


async def test_a_model_that_nobody_serves_is_404_as_it_would_be(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.post(PATH, {**_chat("a"), "model": "other"})

    assert answer.status == 404


async def test_two_bodies_part_at_a_time_in_the_system_prompt(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    bodies = [_chat(f"{LONG}Now: 2026-11-23T07:{m}Z. {LONG}", "Why?") for m in (16, 48)]

    told = (await fleet.post(PATH, {"bodies": bodies})).body

    parting = told["parting"]
    assert parting["kind"] == "time"
    assert parting["field"] == "messages[0].content"
    assert parting["same"].endswith("07:")
    assert [text[:2] for text in parting["texts"]] == ["16", "48"]
    assert parting["same_blocks"] == parting["token"] // 16 > 2
    assert parting["says"].startswith(
        f"the same for {parting['same_blocks']} blocks, then token {parting['token']}: a time"
    )
    assert len(told["bodies"]) == 2


TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("read", "write", "search")
]


@pytest.mark.parametrize(
    ("left", "right", "kind", "field"),
    [
        (_chat("a 12 b", "c"), _chat("a 13 b", "c"), "number", "messages[0].content"),
        (_chat("a b", "c"), _chat("a  b", "c"), "whitespace", "messages[0].content"),
        (_chat("a", "b", "c"), _chat("a", "b", "d"), "text", "messages[2].content"),
        (
            _chat("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "c"),
            _chat("id 6fa459ea-ee8a-3ca4-894e-db77e160355e", "c"),
            "id",
            "messages[0].content",
        ),
    ],
)
async def test_what_parts_two_bodies_is_named(
    start_fleet: StartFleet,
    left: dict[str, Any],
    right: dict[str, Any],
    kind: str,
    field: str,
) -> None:
    fleet = await start_fleet(1)

    told = (await fleet.post(PATH, {"bodies": [left, right]})).body["parting"]

    assert (told["kind"], told["field"]) == (kind, field)


async def test_a_next_turn_goes_on_where_the_other_ends(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    text = {"model": "smollm2", "prompt": LONG}
    more = {"model": "smollm2", "prompt": LONG + " And so on, and on, and on."}

    told = (await fleet.post(PATH, {"bodies": [text, more]})).body["parting"]

    assert told["goes_on"] == "second"


async def test_bodies_with_other_salts_share_nothing(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    bodies = [_chat(LONG, cache_salt=salt) for salt in ("one", "two")]

    told = (await fleet.post(PATH, {"bodies": bodies})).body

    assert told["parting"]["share_blocks"] is False
    assert [each["salted"] for each in told["bodies"]] == [True, True]


async def test_who_is_no_admin_is_told_of_the_prompt_alone(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "secret")
    fleet = await start_fleet(2, admin_key_env="KEY")
    body = _chat(LONG, "Why?")

    anybody = await fleet.post(PATH, body)
    admin = await fleet.post(PATH, body, authorization="Bearer secret")

    assert set(anybody.body) == {
        *("path", "model", "adapter", "salted", "prompt_tokens", "prompt_blocks")
    }
    assert admin.body["goes_to"] in {engine.name for engine in fleet.gateway.fleet.engines}


async def test_a_drained_engine_is_left_out_and_it_says_why(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    first, second = (engine.name for engine in fleet.gateway.fleet.engines)
    await fleet.post(f"/admin/engines/{first}/drain", {})

    told = (await fleet.post(PATH, _chat(LONG))).body

    assert told["goes_to"] == second
    assert told["left_out"] == [{"endpoint": first, "why": "it is drained"}]


async def test_many_questions_at_once_do_not_hold_up_requests(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)

    answers = await asyncio.gather(
        *(fleet.post(PATH, _chat(LONG * 20, f"{i}?")) for i in range(30)), fleet.chat("hello")
    )

    assert {answer.status for answer in answers} == {200}


async def test_what_goes_by_load_is_explained_too(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    body = {"model": "smollm2", "input": "a text", "padding": "max_length"}

    told = (await fleet.post(PATH, {"path": "/v1/embeddings", "body": body})).body

    assert (told["reason"], told["prompt_tokens"]) == ("embeddings", None)
    assert told["goes_to"] in {engine.name for engine in fleet.gateway.fleet.engines}
    assert "load alone decides" in told["why"]
