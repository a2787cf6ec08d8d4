"""A prompt's ids go to engines that take them, in a body for that attempt alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from tests.routing.test_director import (
    COMPLETION,
    Letters,
    TwoEngines,
    chat,
    completion,
    director,
    open_chat,
)

from inferway.model import ContextLengths, Endpoint, Reason
from inferway.prompts.served import ServedModel
from inferway.routing.director import Director
from inferway.routing.journey import Journey
from inferway.routing.tokens_once import TokensOnce

TEXT = "abcdefghijkl"
IDS = [ord(letter) for letter in TEXT]


@dataclass
class Taking:
    """Engines by name -> why they get no ids."""

    why: dict[str, str] = field(default_factory=dict)

    def __call__(self, endpoint: Endpoint, model: ServedModel, *, is_compared: bool) -> str | None:
        assert model.name == "m"
        assert is_compared
        return self.why.get(endpoint.engine)


@dataclass
class Short(TwoEngines):
    """Engines with a context of so many tokens."""

    context: int = 8

    def model(self, name: str) -> ServedModel:
        lengths = ContextLengths(self.context, self.context)
        return replace(super().model(name), contexts=lengths)


def sending(fleet: TwoEngines | None = None, taking: Taking | None = None) -> Director:
    to = director(fleet)
    to.tokens_once = TokensOnce(taking or Taking(), least=8)
    return to


async def attempted(to: Director, body: bytes, path: str | None = None) -> Journey:
    journey = open_chat(to, body) if path is None else open_chat(to, body, path)
    journey.attempt((await journey.decide()).targets[0])
    return journey


def outcomes(to: Director) -> dict[str, float]:
    assert to.tokens_once is not None
    [family] = to.tokens_once.families()
    return {sample.labels["outcome"]: sample.value for sample in family.samples}


async def test_the_engine_gets_the_very_ids_that_the_prompt_was_matched_by() -> None:
    to = sending()
    body = chat(TEXT)

    journey = await attempted(to, body)

    assert json.loads(journey.body) == {
        **json.loads(body),
        "kv_transfer_params": {"prompt_token_ids": IDS},
    }
    assert (b"x-inferway-edited", b"tokens") in journey.on_head(200)
    assert outcomes(to) == {"sent": 1}


async def test_a_completion_s_text_gives_way_to_its_ids() -> None:
    to = sending()

    journey = await attempted(to, completion(TEXT), COMPLETION)

    assert json.loads(journey.body) == {"model": "m", "prompt": IDS}


async def test_a_second_engine_that_takes_none_gets_the_client_s_own_bytes() -> None:
    to = sending(taking=Taking({"e1": "engine"}))
    body = chat(TEXT)
    journey = open_chat(to, body)
    targets = {t.endpoint.engine: t for t in (await journey.decide()).targets}

    journey.attempt(targets["e0"])
    assert journey.body != body
    journey.attempt(targets["e1"])

    assert journey.body is body
    assert "x-inferway-edited" not in [name.decode() for name, _ in journey.on_head(200)]
    assert outcomes(to) == {"sent": 1, "engine": 1}


async def test_ids_are_written_once_for_both_legs_of_a_request() -> None:
    taking = Taking()
    to = sending(taking=taking)
    journey = open_chat(to, chat(TEXT))
    first = (await journey.decide()).targets[0].endpoint
    assert to.tokens_once is not None
    assert journey.routed is not None

    written = to.tokens_once.ids(journey.routed, first)
    again = to.tokens_once.ids(journey.routed, first, written)
    taking.why[first.engine] = "another version"
    refused = to.tokens_once.ids(journey.routed, first, written)

    assert json.loads(written or b"") == IDS
    assert again is written
    assert refused is None


async def test_a_report_can_be_asked_for_beside() -> None:
    to = sending(TwoEngines(heals=True))

    journey = await attempted(to, chat(TEXT))

    assert {"vllm_xargs", "kv_transfer_params"} <= json.loads(journey.body).keys()
    assert (b"x-inferway-edited", b"vllm_xargs, tokens") in journey.on_head(200)


@pytest.mark.parametrize(
    ("body", "path", "make", "outcome"),
    [
        (chat("abcdefg"), None, TwoEngines, "short"),
        (chat(TEXT), None, Short, "long"),
        (chat(TEXT, echo=True), None, TwoEngines, "request"),
        (chat(TEXT), None, lambda: TwoEngines(Letters(Reason.MEDIA_PREFIX)), "not-ours"),
        (chat(TEXT), None, lambda: TwoEngines(Letters(Reason.REMOTE)), "not-ours"),
        (chat(TEXT), None, lambda: TwoEngines(block_sizes=()), "not-ours"),
        (completion(TEXT, TEXT), COMPLETION, TwoEngines, "not-ours"),
    ],
)
async def test_what_goes_as_it_came_is_counted_by_why(
    body: bytes, path: str | None, make: Callable[[], TwoEngines], outcome: str
) -> None:
    to = sending(make())

    journey = await attempted(to, body, path)

    assert journey.body is body
    assert outcomes(to) == {outcome: 1}


async def test_an_answer_that_has_begun_keeps_no_ids() -> None:
    to = sending()
    journey = await attempted(to, chat(TEXT))
    journey.on_head(200)

    journey.on_chunk(b"data: {}\n\n")

    assert journey.body == b""


@pytest.mark.parametrize(("text", "why"), [(TEXT, None), ("abc", None), (TEXT, "differed")])
async def test_ids_of_a_short_prompt_are_known_too_where_the_engine_makes_the_same(
    text: str, why: str | None
) -> None:
    to = sending(taking=Taking({} if why is None else {"e0": why, "e1": why}))
    journey = open_chat(to, chat(text))
    (target, *_) = (await journey.decide()).targets
    assert to.tokens_once is not None
    assert journey.routed is not None

    assert to.tokens_once.knows(journey.routed, target.endpoint) is (why is None)
    assert outcomes(to) == {}
