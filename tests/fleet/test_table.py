"""The table of endpoints, their numbers, and requests that have not begun to answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from inferway.config import EngineSettings
from inferway.errors import InvalidRequestError, NoEndpointError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.event_source import EventSource
from inferway.fleet.load import Load
from inferway.fleet.table import (
    REST_SECONDS,
    WINDOW_SCRAPES,
    EndpointTable,
    FirstTokenCounter,
    HolderIds,
)
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Store
from inferway.model import Adapters, HolderId


@dataclass
class Stream:
    """An event stream, as far as the table needs it."""

    holder: HolderId
    state: StreamState


def engine(name: str, *models: str) -> Engine:
    """One that is well."""
    cards = tuple(ModelCard(model, None, None, None) for model in models)
    settings = EngineSettings(url=f"http://{name}:1", name=name)
    return Engine(settings, (), EngineFacts(cards, (), 16, ()), healthy=True)


def table(*engines: Engine) -> EndpointTable:
    made = EndpointTable(list(engines), MemoryIndex())
    for each in engines:
        each.endpoints = [made.add(each, None)]
    serve(made, *engines)
    return made


def serve(to: EndpointTable, *engines: Engine) -> None:
    models = {name for each in engines for name in each.model_names}
    to.set_serving(
        {
            model: [e for e in engines if e.healthy and model in e.model_names]
            for model in sorted(models)
        }
    )


def test_a_models_candidates_are_the_endpoints_of_engines_that_serve_it() -> None:
    made = table(engine("a", "m"), engine("b", "n"), engine("c", "m"))

    assert [e.engine for e in made.candidates("m").endpoints] == ["a", "c"]
    assert made.engines_of("n") == {"b"}
    assert len(made.everyone().endpoints) == 3


def test_a_model_whose_engines_are_all_away_names_them() -> None:
    only = engine("a", "m")
    made = table(only)

    only.healthy = False
    serve(made, only)

    with pytest.raises(NoEndpointError, match="model 'm': none of its engines answers: a"):
        made.candidates("m")
    with pytest.raises(NoEndpointError, match="no pods available"):
        made.everyone()
    assert made.engines_of("m") == frozenset()


def test_who_names_no_model_gets_the_one_that_all_serve() -> None:
    assert table(engine("a", "m", "n"), engine("b", "n")).sole_model() == "n"
    with pytest.raises(
        InvalidRequestError, match="engines serve different ones; expected one of: m, n"
    ):
        table(engine("a", "m"), engine("b", "n")).sole_model()


def test_all_that_is_sent_is_told() -> None:
    one = engine("a", "m")
    made, sent = table(one), list[float]()
    made.on_sent = lambda: sent.append(made.in_flight(one))
    [endpoint] = one.endpoints

    made.book(endpoint, 100)
    made.count_elsewhere(endpoint.holder, 2, 100)

    assert made.hears_of_all
    assert sent == [1, 3]


def test_work_that_nobody_here_has_sent_is_seen() -> None:
    one = engine("a", "m")
    made = table(one)
    made.book(one.endpoints[0], 100)
    seen = []
    for running in (1.0, 2.0, 0.0):
        one.load = Load({"running": running})
        made.note_load(one, 1.0)
        seen.append(made.has_others(one))

    assert seen == [False, True, False]


def test_a_request_counts_from_its_booking_to_its_end() -> None:
    one = engine("a", "m")
    made = table(one)
    [endpoint] = one.endpoints

    made.book(endpoint, 40)
    made.book(endpoint, 2)
    made.release(endpoint)

    assert made.in_flight(one) == 1
    assert made.candidates("m").recent_prefill_tokens.tolist() == [42.0]


def test_of_what_an_engine_tells_our_own_requests_are_not_others() -> None:
    one = engine("a", "m")
    made = table(one)
    made.book(one.endpoints[0], 1)
    one.load = Load({"running": 3, "waiting": 2, "kv_usage": 0.5})

    made.note_load(one, 10.0)

    candidates = made.candidates("m")
    assert (candidates.others[0], candidates.running[0], candidates.waiting[0]) == (4, 3, 2)
    assert candidates.kv_usage[0] == 0.5


def test_room_in_a_cache_is_known_while_all_that_it_holds_is() -> None:
    one, index = engine("a", "m"), MemoryIndex()
    made = EndpointTable([one], index)
    one.endpoints = [made.add(one, None)]
    serve(made, one)
    index.apply([Store(0, [1, 2])])
    stream: Any = Stream(0, StreamState.EXACT)
    one.followed = [stream]

    def free_blocks() -> float:
        made.note_states(one)
        made.note_load(one, 1.0)
        return float(made.candidates("m").free_blocks[0])

    assert free_blocks() == -1  # it has not told how large it is
    assert one.facts is not None
    one.facts = replace(one.facts, cache_blocks=100)
    assert free_blocks() == 98
    stream.state = StreamState.STALE
    assert free_blocks() == -1


def test_sent_tokens_stop_being_recent() -> None:
    one = engine("a", "m")
    made = table(one)
    made.age(0.0, 1.0)
    made.book(one.endpoints[0], 100)

    made.age(30.0, 1.0)

    assert made.candidates("m").recent_prefill_tokens[0] == pytest.approx(100 / 2.718281828)


def test_what_was_scraped_long_ago_moves_toward_the_mean_of_the_models_others() -> None:
    quiet, loud = engine("a", "m"), engine("b", "m")
    made = table(quiet, loud)
    loud.load = Load({"waiting": 8})
    made.note_load(quiet, 0.0)
    made.note_load(loud, 100.0)

    made.age(100.0, 1.0)

    assert 0 < made.candidates("m").waiting[0] < 8
    assert made.candidates("m").waiting[1] == 8


def test_ranks_are_asked_for_by_their_place_among_those_the_engine_told() -> None:
    one = engine("a", "m")
    made = EndpointTable([one], MemoryIndex())

    endpoint = made.add(one, EventSource(5, "tcp://h:1", None, place=1))

    assert endpoint.rank == 5
    assert endpoint.headers == ((b"x-data-parallel-rank", b"1"),)


def test_a_number_is_given_again_when_nothing_is_on_its_way_to_who_had_it() -> None:
    left = engine("a", "m")
    made = table(left)
    [old] = left.endpoints
    made.book(old, 7)
    made.retire(left, 0.0)

    assert made.rested(REST_SECONDS) == []
    made.release(old)
    assert made.rested(REST_SECONDS) == [left]
    new = made.add(engine("b", "m"), None)
    assert new.holder == old.holder


def test_an_endpoint_that_leaves_takes_its_blocks_along() -> None:
    left, index = engine("a", "m"), MemoryIndex()
    made = EndpointTable([left], index)
    left.endpoints = [made.add(left, None)]
    index.apply([Store(0, [1, 2])])

    assert made.num_blocks(left) == 2
    made.retire(left, 0.0)
    assert made.num_blocks(left) == 0


def test_who_has_the_number_of_another_starts_idle() -> None:
    left, come = engine("a", "m"), engine("b", "m")
    made = table(left)
    left.load = Load({"waiting": 9})
    made.note_load(left, 1.0)
    made.retire(left, 0.0)
    made.rested(REST_SECONDS)

    come.endpoints = [made.add(come, None)]
    serve(made, come)

    assert made.candidates("m").waiting.tolist() == [0.0]
    assert made.state(come.endpoints[0]) == "blind"


def test_adapters_are_told_without_new_rows() -> None:
    one = engine("a", "m")
    made = table(one)
    before = made.candidates("m")
    one.load = Load(adapters=Adapters(running=frozenset({"x"})))

    made.note_adapters(one)

    assert made.candidates("m").adapters is before.adapters
    assert made.candidates("m").adapters[0].running == {"x"}


def test_blocks_of_another_size_than_the_rows_have_are_seen() -> None:
    one = engine("a", "m")
    made = table(one)
    assert not made.is_resized(one)

    one.facts = EngineFacts(one.facts.models if one.facts else (), (), 32, ())

    assert made.is_resized(one)
    serve(made, one)
    assert made.cut(one.endpoints[0].holder) == 32
    assert made.candidates("m").block_sizes.tolist() == [32]


@pytest.fixture
def known() -> FirstTokenCounter:
    """An engine that had nothing to do when it was looked at first."""
    awaiting_first_token = FirstTokenCounter()
    awaiting_first_token.told(0, 0, 20)  # twenty ended without being counted
    return awaiting_first_token


def test_an_engine_without_counters_tells_nothing() -> None:
    assert FirstTokenCounter().told(3, 1, None) == -1


def test_a_prompt_that_is_computed_has_not_begun(known: FirstTokenCounter) -> None:
    assert known.told(1, 0, 20) == 1
    assert known.told(1, 0, 21) == 0
    assert known.told(0, 0, 20) == 0


def test_those_that_wait_have_not_begun(known: FirstTokenCounter) -> None:
    assert known.told(2, 3, 21) == 4


def test_of_an_engine_that_is_busy_all_that_run_are_taken_to_answer_at_first() -> None:
    awaiting_first_token = FirstTokenCounter()

    assert awaiting_first_token.told(4, 2, 10) == 2
    assert awaiting_first_token.told(5, 2, 10) == 3


def test_a_request_that_ends_uncounted_is_made_up_for(known: FirstTokenCounter) -> None:
    known.told(2, 0, 22)

    assert known.told(1, 0, 22) == 0  # one was aborted while it answered
    assert known.told(2, 0, 22) == 1


def test_a_request_that_ends_without_a_token_is_made_up_for_when_nothing_is_left(
    known: FirstTokenCounter,
) -> None:
    known.told(1, 0, 20)
    known.told(0, 0, 19)

    assert known.told(1, 0, 20) == 0


def test_what_is_there_all_the_time_was_counted_wrong(known: FirstTokenCounter) -> None:
    known.told(2, 0, 20)
    for _ in range(2 * WINDOW_SCRAPES):
        known.told(2, 0, 20)

    assert known.told(2, 0, 20) == 0


def test_numbers_are_given_in_order() -> None:
    numbers = HolderIds()

    assert [numbers.take() for _ in range(3)] == [0, 1, 2]


def test_one_that_was_given_back_rests_until_it_is_idle() -> None:
    numbers = HolderIds()
    for _ in range(3):
        numbers.take()
    numbers.give_back(1, now=10.0)

    assert numbers.rested(10.0 + REST_SECONDS / 2, lambda _: True) == []
    assert numbers.rested(10.0 + REST_SECONDS, lambda _: False) == []
    assert numbers.take() == 3
    assert numbers.rested(10.0 + REST_SECONDS, lambda _: True) == [1]
    assert numbers.take() == 1
    assert numbers.take() == 4


def test_pods_that_come_and_go_for_ever_need_no_more_numbers() -> None:
    numbers, now = HolderIds(), 0.0
    for _ in range(1000):
        numbers.give_back(numbers.take(), now)
        now += REST_SECONDS
        numbers.rested(now, lambda _: True)

    assert numbers.given == 1
