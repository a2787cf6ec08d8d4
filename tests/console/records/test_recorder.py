"""What is kept of the candidates of a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferway.model import Decision, Endpoint, Reason, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.journey import Routed
from inferway.routing.objectives import objectives
from inferway.routing.record import Record
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway.scheduling.idle import idle
from inferway_console.records.decided import MANY
from inferway_console.records.record import RequestRecord
from inferway_console.records.recorder import TOGETHER, Recorder
from inferway_console.records.ring import RecordRing

MODEL = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "not in this test"), (16,))


def decided(
    recorder: Recorder, number: int, chosen: int, seed: int = 0, *, by_cost: bool = True
) -> tuple[Routed, Record]:
    """A request with so many candidates, which goes to the one of this row."""
    endpoints = [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(number)]
    draw, table = np.random.default_rng(seed), idle(endpoints, 16)
    table.matched_blocks = draw.integers(0, 50, number).astype(float)
    table.running[:] = np.arange(number)
    if by_cost:
        terms = draw.random((number, 6)) * 10
        table.add(TERMS_MS, terms)
        table.add(EXPECTED_TTFT_MS, terms.sum(axis=1))
        table.add(COST_MS, terms.sum(axis=1) + draw.random(number))
    target = Target(endpoints[chosen], 0.5, int(table.matched_blocks[chosen]), 50)
    headers = ((b"x-session-id", b"s"),)
    body = CompletionRequest(model="m", prompt="")
    request = LLMRequest(
        request_id="",
        target_model="m",
        body=body,
        headers=headers,
        objectives=objectives(headers, {}),
        tenant="team",
    )
    record = Record(0.0)
    record.target, record.outcome = target, "ok"
    decision = Decision((target,), Reason.KV_AWARE)
    routed = Routed(request, MODEL, {}, decision, table, record, tells_its_reuse=True)
    recorder.on_request(routed, 0.0)
    return routed, record


def ended(recorder: Recorder, record: Record, name: str = "r") -> None:
    answer: Any = SimpleNamespace(
        request_id=name, path="/v1/completions", status=200, outcome="", seconds=1.0, record=record
    )
    recorder.on_answers([answer])


def recorded(number: int, chosen: int, **how: Any) -> tuple[Routed, RequestRecord]:
    recorder = Recorder(RecordRing(), lambda: 0.0)
    routed, record = decided(recorder, number, chosen, **how)
    ended(recorder, record)
    [found] = recorder.ring.newest()
    return routed, found


@pytest.mark.parametrize("number", [1, 2, 8, 9, MANY, MANY + 1, 300])
@pytest.mark.parametrize("seed", range(3))
def test_the_chosen_the_longest_and_the_cheapest_are_kept(number: int, seed: int) -> None:
    chosen = seed * 7 % number
    routed, record = recorded(number, chosen, seed=seed)
    table = routed.candidates
    cost, names = table.added[COST_MS.name], [each.endpoint for each in record.candidates]
    rows = [int(name[1:]) for name in names]

    assert len(names) == len(set(names)) == min(number, 8)
    assert names[0] == record.chosen == f"e{chosen}"
    assert record.num_candidates == number
    longest = int(table.matched_blocks.argmax())
    assert longest in rows
    assert record.reachable_blocks == table.matched_blocks[longest]
    cheapest = set(cost.argsort()[: len(rows) - 2].tolist())
    assert cheapest <= set(rows)
    for row, each in zip(rows, record.candidates, strict=True):
        assert each.blocks == table.matched_blocks[row]
        assert each.running == row
        assert each.cost == pytest.approx(cost[row], rel=0.005)
        terms = list(each.terms.values())[:6]
        assert terms == pytest.approx(table.added[TERMS_MS.name][row].tolist(), rel=0.005)


@pytest.mark.parametrize("number", [2, MANY + 1])
def test_a_choice_by_scores_has_a_score(number: int) -> None:
    _, record = recorded(number, 1, by_cost=False)

    assert record.candidates[0].terms == {"score": 0.5}
    assert record.expected_ttft_ms == -1


def test_requests_of_different_fleets_are_packed_together() -> None:
    recorder = Recorder(RecordRing(), lambda: 0.0)
    sizes = [1 + i % 20 for i in range(3 * TOGETHER)]
    for i, number in enumerate(sizes):
        _, record = decided(recorder, number, i % number, seed=i)
        ended(recorder, record, f"r{i}")

    found = recorder.ring.since(0)[1]

    assert [each.num_candidates for each in found] == sizes[: len(found)]
    assert [each.chosen for each in found] == [f"e{i % n}" for i, n in enumerate(sizes)][:1000]


def test_who_asks_is_hashed_with_a_key() -> None:
    records = []
    for secret in (b"a", b"a", b"b"):
        recorder = Recorder(RecordRing(), lambda: 0.0, secret=secret)
        _, record = decided(recorder, 2, 0)
        ended(recorder, record)
        records += recorder.ring.newest()

    one, same, other = [(each.tenant, each.session) for each in records]
    assert one == same
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert "team" not in one
    assert all(one)


def test_names_that_have_no_more_room_are_begun_anew() -> None:
    recorder = Recorder(RecordRing(most_names=30), lambda: 0.0)
    for i in range(20):
        _, record = decided(recorder, 1 + i, i)
        ended(recorder, record, f"r{i}")
        recorder.settle()

    found = recorder.ring.newest()

    assert len(found) == 20
    assert found[-1].chosen == "e0"
    assert {len(each.candidates) for each in found} <= {0, *range(1, 9)}


def test_answers_that_no_journey_knows_of_have_no_record() -> None:
    recorder = Recorder(RecordRing(), lambda: 0.0)
    answer: Any = SimpleNamespace(record=None)

    recorder.on_answers([answer])

    assert len(recorder.ring) == 0
