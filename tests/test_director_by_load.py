"""Requests that nobody makes a prompt of, without any network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from tests.scheduling import tables
from tests.scheduling.tables import kv_aware
from tests.slots import NotingSlot

from inferway.config import ModelRewrite, RewriteTarget
from inferway.errors import NoEndpointError, SaturatedError, UnknownModelError
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import Candidates, Endpoint, HolderId, Reason, RequestHead, Target
from inferway.openai_api.unread import UnreadBody, read_unread
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.director import Director, by_load
from inferway.routing.journey import Journey
from inferway.routing.match import Matcher
from inferway.routing.rewrite import Rewrites
from inferway.scheduling.scheduling import Scheduling


class Fleet:
    """Counts what is booked."""

    def __init__(self, loads: Sequence[float] = (0, 0), models: Sequence[str] = ("m",)) -> None:
        self.loads = loads
        self.models = models
        self.booked: Counter[str] = Counter()
        self.suspected: list[str] = []

    def model(self, name: str) -> ServedModel:
        if name not in self.models:
            raise UnknownModelError(f"model: no engine serves {name!r}", param="model")
        return ServedModel(name, NoPrompts(Reason.NO_TOKENIZER, "none here"))

    def candidates(self, model: str) -> Candidates:
        assert model in self.models
        return tables.candidates(in_flight=self.loads)

    def sole_model(self) -> str:
        return self.models[0]

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        assert new_tokens == 0
        self.booked[endpoint.engine] += 1

    def release(self, endpoint: Endpoint) -> None:
        self.booked[endpoint.engine] -= 1

    def suspect(self, endpoint: Endpoint) -> None:
        self.suspected.append(endpoint.engine)

    def cut(self, holder: HolderId) -> int | None:
        raise AssertionError(holder)  # nothing is known of a prompt

    def heal(self, endpoint: Endpoint) -> bool:
        raise AssertionError(endpoint)

    def healed(self, endpoint: Endpoint) -> None:
        raise AssertionError(endpoint)

    def reports(self, endpoint: Endpoint) -> None:
        raise AssertionError(endpoint)


def journey(
    body: bytes = b'{"model": "m"}', fleet: Fleet | None = None, *rules: ModelRewrite
) -> Journey:
    director = Director(
        fleet or Fleet(),
        Matcher(MemoryIndex(), SpeculativeOverlay()),
        Scheduling(kv_aware()),
        lambda: 0.0,
        rewrites=Rewrites(rules),
        random=Random(1),
    )

    async def read() -> UnreadBody:
        return read_unread(body)

    return director.open_unread(RequestHead("POST", "/tokenize", "", ()), body, read)


def engines(targets: Sequence[Target]) -> list[str]:
    return [target.endpoint.engine for target in targets]


def test_the_least_loaded_is_first_and_of_equals_any() -> None:
    candidates = tables.candidates(in_flight=[2, 0, 1], others=[0, 3, 0])
    idle = Fleet((0, 0, 0)).candidates("m")
    names = [endpoint.engine for endpoint in candidates.endpoints]

    assert engines(by_load(candidates, Random(1))) == [names[2], names[0], names[1]]
    assert {engines(by_load(idle, Random(seed)))[0] for seed in range(50)} == set(names)


async def test_what_it_books_is_given_back_once() -> None:
    fleet = Fleet()
    trip = journey(fleet=fleet)
    decision = await trip.decide()
    first, second = decision.targets
    trip.attempt(first)
    trip.attempt(second)

    assert decision.reason is Reason.UNREAD
    assert fleet.booked == {first.endpoint.engine: 0, second.endpoint.engine: 1}
    assert fleet.suspected == [first.endpoint.engine]
    trip.close("ok")
    trip.close("ok")
    assert set(fleet.booked.values()) == {0}
    assert trip.record.outcome == "ok"


@pytest.mark.parametrize(("status", "outcome"), [(500, "ok"), (200, "upstream_error")])
async def test_an_engine_that_fails_is_looked_at(status: int, outcome: str) -> None:
    fleet = Fleet()
    trip = journey(fleet=fleet)
    target = (await trip.decide()).targets[0]
    trip.attempt(target)
    trip.on_head(status)
    trip.close(outcome)

    assert fleet.suspected == [target.endpoint.engine]


async def test_a_rewrite_that_leads_nowhere_is_not_the_client_s_fault() -> None:
    rule = ModelRewrite(targets=[RewriteTarget(model="gone")])

    with pytest.raises(NoEndpointError, match=r"model_rewrites: 'm' is sent to 'gone', but no"):
        await journey(b'{"model": "m"}', None, rule).decide()
    with pytest.raises(UnknownModelError):
        await journey(b'{"model": "gone"}').decide()


async def test_it_has_its_turn_and_goes_where_there_is_room() -> None:
    names = [endpoint.engine for endpoint in Fleet().candidates("m").endpoints]
    slot = NotingSlot({names[0]})

    assert engines((await journey().decide(slot)).targets) == [names[1]]
    assert slot.asked == [("m", 0)]
    with pytest.raises(SaturatedError):
        await journey().decide(NotingSlot(names))
