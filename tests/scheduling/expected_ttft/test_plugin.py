"""Requests go where they are expected to be answered soonest, and expectations come true."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from statistics import median

import msgspec
import numpy as np
import pytest

from inferway.model import STALE, Candidates, Endpoint, MediaSpan, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.openai_api.usage import Usage
from inferway.scheduling.columns import COMPILE_MS, EXPECTED_TPOT_MS, EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.follower import ExpectedTtftListener
from inferway.scheduling.expected_ttft.learning import COST_MS, is_try
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.idle import idle
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import RequestOutcome
from inferway.scheduling.profile import RowSelector

BLOCK = 16
FIXED_MS, TOKEN_MS = 20.0, 0.1


def request(tokens: int, *, stream: bool = True) -> LLMRequest:
    return LLMRequest(
        request_id="r",
        target_model="m",
        body=CompletionRequest(model="m", prompt="", stream=stream),
        raw=b"x" * (4 * tokens),
    )


@dataclass
class World:
    """Engines that compute one prompt after another, at so many times the usual cost, and the
    plugin before them. Time passes when it is told to."""

    slowness: list[float]
    warming_ms: float = 0.0  # what each engine's first answer takes more
    plugin: ExpectedTtft = field(default_factory=ExpectedTtft)
    picker: MaxScore = field(default_factory=MaxScore)
    now: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.slowness)
        self.endpoints = [Endpoint(f"e{n}", f"http://e{n}", n) for n in range(count)]
        self.free = [0.0] * count  # when each has done what waits there
        self.in_flight = np.zeros(count)
        self.chosen: list[int] = []
        self._due: list[tuple[float, int, int, ExpectedTtftListener]] = []

    def candidates(self, matched_blocks: int = 0, of: int | None = None) -> Candidates:
        table = idle(self.endpoints, BLOCK)
        table.now = self.now
        table.in_flight[:] = self.in_flight
        if of is not None:
            table.matched_blocks[of] = table.weighted_matched_blocks[of] = matched_blocks
        return table

    def decide(self, request: LLMRequest, table: Candidates | None = None) -> int:
        """The row that is chosen, with nothing sent."""
        table = table or self.candidates()
        self.plugin.produce(request, table)
        return self.picker.pick(self.plugin.score(request, table), 1)[0]

    def send(
        self, tokens: int, *, row: int | None = None, stream: bool = True
    ) -> ExpectedTtftListener:
        """Of an answer of one token."""
        table, asked = self.candidates(), request(tokens, stream=stream)
        best = self.decide(asked, table)
        row = best if row is None else row
        follower = self.plugin.follow(asked, table, SchedulingResult(()))
        assert follower is not None
        follower.on_attempt(Target(self.endpoints[row], 1.0, 0, 0), self.now)
        follower.on_head(200)
        work = self.slowness[row] * (FIXED_MS + TOKEN_MS * tokens) / 1000
        if row not in self.chosen:
            work += self.warming_ms / 1000
        self.free[row] = max(self.free[row], self.now) + work
        self.in_flight[row] += 1
        self.chosen.append(row)
        heappush(self._due, (self.free[row], len(self.chosen), row, follower))
        return follower

    def pass_until(self, then: float) -> None:
        while self._due and self._due[0][0] <= then:
            now, _, row, follower = heappop(self._due)
            self.now = now
            self.in_flight[row] -= 1
            follower.on_first_chunk(now)
            follower.on_end(RequestOutcome("ok", now, Usage(10, 1), follower._streams))
        self.now = then

    def serve(self, count: int, *, every: float, stream: bool = True, seed: int = 5) -> None:
        random = Random(seed)
        for _ in range(count):
            self.pass_until(self.now + random.expovariate(1 / every))
            self.send(random.choice([50, 300, 1_000, 4_000]), stream=stream)
        self.pass_until(self.now + 60)


def expected(world: World, tokens: int) -> list[float]:
    table = world.candidates()
    world.plugin.produce(request(tokens), table)
    column = table.get(EXPECTED_TTFT_MS)
    assert column is not None
    return [float(ms) for ms in column]


def test_engines_whose_speed_differs_by_four_need_no_tuning() -> None:
    world = World([1.0, 1.0, 4.0])

    world.serve(300, every=0.15)

    fast, _, slow = expected(world, 1_000)
    assert fast == pytest.approx(FIXED_MS + TOKEN_MS * 1_000, rel=0.1)
    assert slow == pytest.approx(4 * (FIXED_MS + TOKEN_MS * 1_000), rel=0.2)
    counts = Counter(world.chosen[-200:])
    assert counts[2] < min(counts[0], counts[1]) / 2


def test_a_hundred_times_slower_than_the_prior_is_learned_as_well() -> None:
    world = World([100.0, 100.0])

    world.serve(100, every=20.0)

    assert expected(world, 1_000) == pytest.approx([100 * (FIXED_MS + 100)] * 2, rel=0.15)


def test_a_burst_spreads_evenly_over_equal_engines() -> None:
    world = World([1.0] * 4)
    world.serve(100, every=0.2)

    for _ in range(40):
        world.send(1_000)

    assert set(Counter(world.chosen[-40:]).values()) <= {9, 10, 11}


def test_a_burst_before_anything_is_known_spreads_too() -> None:
    world = World([1.0] * 4)

    for _ in range(40):
        world.send(1_000)

    assert set(Counter(world.chosen).values()) == {10}


def test_a_burst_goes_to_fast_engines_in_proportion() -> None:
    world = World([1.0, 4.0])
    world.serve(200, every=0.2)
    world.send(1_000, row=1)
    world.pass_until(world.now + 10)

    for _ in range(50):
        world.send(1_000)

    assert 35 <= Counter(world.chosen[-50:])[0] <= 45


def test_expectations_come_true_in_a_queue() -> None:
    found = []
    for seed in range(5):
        world = World([1.0, 1.0])
        world.serve(200, every=0.2, seed=seed)
        for _ in range(6):
            world.send(2_000, row=0)
        found.append(expected(world, 100)[0])

    assert median(found) == pytest.approx(6 * (FIXED_MS + 200) + FIXED_MS + 10, rel=0.1)


def test_what_waits_ahead_becomes_less_while_the_engine_is_at_it() -> None:
    world = World([1.0, 1.0])
    world.serve(200, every=0.2)
    world.send(10_000, row=0)
    before, _ = expected(world, 100)

    world.pass_until(world.now + 0.5)

    assert before - expected(world, 100)[0] == pytest.approx(500, rel=0.1)


def test_an_engine_that_hangs_is_left() -> None:
    world = World([1.0, 1.0])
    world.serve(100, every=0.2)
    table, asked = world.candidates(), request(100)
    world.decide(asked, table)
    follower = world.plugin.follow(asked, table, SchedulingResult(()))
    assert follower is not None
    follower.on_attempt(Target(world.endpoints[0], 1.0, 0, 0), world.now)

    world.now += 5

    assert expected(world, 100)[0] > 4_000
    assert world.decide(request(100), world.candidates(matched_blocks=6, of=0)) == 1


def test_a_held_prompt_is_worth_the_time_that_it_saves() -> None:
    world = World([1.0, 1.0])
    world.serve(200, every=0.2)
    held = world.candidates(matched_blocks=100, of=0)

    chosen = world.decide(request(2_000), held)
    for _ in range(10):
        world.send(1_000, row=0)

    assert chosen == 0
    assert world.decide(request(2_000), world.candidates(matched_blocks=100, of=0)) == 1


def test_what_nothing_confirms_saves_half() -> None:
    world = World([1.0, 1.0])
    table = world.candidates()
    table.weighted_matched_blocks[:] = 100
    table.states[1] = STALE

    world.plugin.produce(request(1_600), table)

    ttft = table.get(EXPECTED_TTFT_MS)
    assert ttft is not None
    assert ttft[1] - ttft[0] == pytest.approx(0.1 * (800 - 1), rel=0.03)


def test_others_requests_count_as_ours_do() -> None:
    world = World([1.0, 1.0])
    table = world.candidates()
    table.others[0], table.running[0], table.waiting[0] = 8.0, 6.0, 2.0  # for long, maybe

    world.plugin.produce(request(100), table)

    ttft = table.get(EXPECTED_TTFT_MS)
    assert ttft is not None
    tokens = world.plugin.learning.marginal_cost.new_tokens
    assert ttft[0] - ttft[1] == pytest.approx(2 * (0.1 * tokens + 5.0) + 6 * 0.5)


def test_answers_in_one_piece_teach_only_their_sum() -> None:
    world = World([3.0, 3.0])

    world.serve(200, every=0.5, stream=False)

    assert expected(world, 1_000) == pytest.approx([3 * (FIXED_MS + 100)] * 2, rel=0.25)


def test_the_time_between_tokens_is_learned_from_what_streams_by() -> None:
    world = World([1.0])
    before = world.candidates()
    world.plugin.produce(request(10), before)
    for _ in range(30):
        follower = world.plugin.follow(request(10), before, SchedulingResult(()))
        assert follower is not None
        follower.on_attempt(Target(world.endpoints[0], 1.0, 0, 0), 0.0)
        follower.on_head(200)
        follower.on_first_chunk(1.0)
        follower.on_end(RequestOutcome("ok", 1.0 + 99 * 0.03, Usage(10, 100), True))

    table = world.candidates()
    world.plugin.produce(request(10), table)

    assert before.get(EXPECTED_TPOT_MS) is None  # nothing was known
    assert table.get(EXPECTED_TPOT_MS) == pytest.approx([30.0], rel=0.05)


@pytest.mark.parametrize("status", [400, 503])
def test_an_error_teaches_nothing(status: int) -> None:
    world = World([1.0])
    table = world.candidates()
    world.plugin.produce(request(10_000), table)
    follower = world.plugin.follow(request(10_000), table, SchedulingResult(()))
    assert follower is not None
    follower.on_attempt(Target(world.endpoints[0], 1.0, 0, 0), 0.0)
    follower.on_head(status)

    follower.on_first_chunk(0.001)
    follower.on_end(RequestOutcome("ok", 0.002, None, True))

    assert not world.plugin.learning.ttft.is_known
    assert world.plugin.learning.backlog.requests.tolist() == [0.0]


@pytest.mark.parametrize("outcome", ["client_gone", "upstream_error"])
def test_a_request_that_ends_before_its_answer_leaves_the_queue(outcome: str) -> None:
    world = World([1.0])
    follower = world.send(1_000)

    follower.on_end(RequestOutcome(outcome, 1.0))

    assert world.plugin.learning.backlog.requests.tolist() == [0.0]
    assert not world.plugin.learning.ttft.is_known


def test_a_second_attempt_takes_the_first_out_of_the_queue() -> None:
    world = World([1.0, 1.0])
    follower = world.send(1_000, row=0)

    follower.on_attempt(Target(world.endpoints[1], 1.0, 0, 0), 1.0)

    assert world.plugin.learning.backlog.requests.tolist() == [0.0, 1.0]


def test_the_answer_says_what_was_expected_and_of_what_it_is_made() -> None:
    world = World([1.0])

    headers = dict(world.send(1_000).on_head(200))

    assert headers == {
        b"x-inferway-expected-ttft-ms": b"120.8",
        b"x-inferway-expected-ttft-parts": (
            b"fixed=20.0, own=100.0, pairs=0.8, waiting=0.0, queue=0.0, batch=0.0, late=0.0, "
            b"to-others=0.0"
        ),
    }


def test_errors_are_counted_by_engine() -> None:
    world = World([1.0, 1.0])

    world.serve(100, every=0.5)

    first, second = world.plugin.learning.accuracy
    first.settle()
    second.settle()
    assert sum(first.counts) + sum(second.counts) == 100
    assert (first.total + second.total) / 100 == pytest.approx(1.0, abs=0.1)


def test_a_rating_is_at_most_one_and_the_least_cost_has_it() -> None:
    world = World([1.0, 4.0, 2.0])
    world.serve(100, every=0.2)
    table = world.candidates()
    world.plugin.produce(request(500), table)

    scores, cost = world.plugin.score(request(500), table), table.get(COST_MS)

    assert cost is not None
    assert scores.max() == 1.0
    assert (scores > 0).all()
    assert scores.argmax() == cost.argmin()


def test_compiling_costs_what_it_takes_beyond_the_first_token() -> None:
    world = World([1.0, 1.0])
    without, table = world.candidates(), world.candidates()
    table.add(COMPILE_MS, np.array([1.0, 3000.0]))
    for each in (without, table):
        world.plugin.produce(request(500), each)

    before, cost, ttft = without.get(COST_MS), table.get(COST_MS), table.get(EXPECTED_TTFT_MS)

    assert before is not None
    assert cost is not None
    assert ttft is not None
    assert (cost - before).tolist() == pytest.approx([0.0, 3000.0 - ttft[1]])


def test_candidates_that_a_filter_has_narrowed_are_rated_as_before() -> None:
    world = World([1.0, 1.0, 1.0])
    world.send(4_000, row=1)
    table = world.candidates()
    world.plugin.produce(request(500), table)

    narrowed = RowSelector().kept(table, np.array([False, True, True]))

    assert world.plugin.score(request(500), narrowed).argmax() == 1


def test_an_engine_that_joins_is_as_fast_as_the_others_until_it_has_answered() -> None:
    world = World([50.0])
    world.serve(50, every=10.0)
    known = expected(world, 1_000)[0]
    world.endpoints = [*world.endpoints, Endpoint("new", "http://new", 1)]
    world.in_flight = np.zeros(2)

    assert expected(world, 1_000) == pytest.approx([known] * 2, rel=0.15)


def test_engines_that_are_all_faster_than_usual_are_all_used() -> None:
    world = World([0.05] * 4)

    world.serve(40, every=1.0)

    assert min(Counter(world.chosen)[row] for row in range(4)) >= 5


def test_a_slow_first_answer_is_not_held_against_an_engine() -> None:
    world = World([1.0] * 4, warming_ms=3_000)

    world.serve(100, every=5.0)

    assert min(Counter(world.chosen)[row] for row in range(4)) >= 10


def test_an_engine_that_is_slow_again_is_tried_where_that_costs_a_second_more_at_most() -> None:
    world = World([1.0, 9.0])
    for row in (0, 0, 1, 0, 1, 0):
        world.send(4_000, row=row)
        world.pass_until(world.now + 60)

    long = [world.decide(request(8_000)) for _ in range(8)]
    short = [world.decide(request(100)) for _ in range(8)]

    assert expected(world, 8_000)[1] > 5_000
    assert set(long) == {0}
    assert 1 in short


def test_an_engine_whose_last_answer_alone_was_slow_is_tried_again_some_seconds_later() -> None:
    world = World([1.0, 1.0])
    for row in (0, 0, 1) * 5:
        world.send(4_000 if row else 2_000, row=row)
        world.pass_until(world.now + 2)
    world.slowness[1] = 20.0  # it pauses
    world.send(600, row=1)
    world.pass_until(world.free[1])

    at_once = [world.decide(request(600)) for _ in range(8)]
    world.pass_until(world.now + 20)
    later = [world.decide(request(600)) for _ in range(8)]

    assert set(at_once) == {0}
    assert 1 in later


def test_what_goes_to_an_engine_that_costs_more_to_get_to_know_it_is_a_try() -> None:
    world = World([1.0, 1.0])
    for _ in range(10):
        world.send(100, row=0)
        world.pass_until(world.now + 5)
    world.send(100, row=1)  # and waits: its engine is not idle
    world.pass_until(world.now + 5)

    tables = [world.candidates() for _ in range(8)]
    rows = [world.decide(request(2_000), table) for table in tables]

    tries = [is_try(table, row) for table, row in zip(tables, rows, strict=True)]
    cheapest = [table.get(COST_MS).argmin() for table in tables]  # type: ignore[union-attr]
    assert tries == [row != least for row, least in zip(rows, cheapest, strict=True)]
    assert not is_try(world.candidates(), 0)


def test_an_engine_that_is_hardly_known_is_not_tried_with_a_prompt_that_another_holds() -> None:
    world = World([1.0, 1.0])
    for _ in range(10):
        world.send(100, row=0)
        world.pass_until(world.now + 5)

    held = [world.decide(request(2_000), world.candidates(100, of=0)) for _ in range(8)]
    new = [world.decide(request(2_000)) for _ in range(8)]

    assert set(held) == {0}
    assert 1 in new


def test_what_writes_no_answer_says_nothing_of_answers_lengths() -> None:
    world = World([1.0])
    before = world.plugin.learning.marginal_cost.answer_tokens

    follower = world.send(100, stream=False)
    follower.on_end(RequestOutcome("ok", 1.0, Usage(100, 0), False))  # embeddings

    assert world.plugin.learning.marginal_cost.answer_tokens == before
    assert world.plugin.learning.ttft.is_known


ENCODE_MS_EACH = 0.5  # ms a token, ten times what is believed at first


def with_picture(name: str, offset: int = 100, length: int = 400) -> LLMRequest:
    picture = MediaSpan(name, offset, length)
    return msgspec.structs.replace(request(1_000), media=(picture,))


def answer_picture(world: World, name: str, row: int) -> None:
    """A request with a picture is answered by an engine that must encode it unless it has it."""
    table, asked = world.candidates(), with_picture(name)
    world.plugin.produce(asked, table)
    encoded = table.added["expected-encoded-tokens"][row].item()
    follower = world.plugin.follow(asked, table, SchedulingResult(()))
    assert follower is not None
    follower.on_attempt(Target(world.endpoints[row], 1.0, 0, 0), world.now)
    follower.on_head(200)
    world.now += (FIXED_MS + TOKEN_MS * 1_000 + ENCODE_MS_EACH * encoded) / 1000
    follower.on_first_chunk(world.now)
    follower.on_end(RequestOutcome("ok", world.now, Usage(10, 1)))
    world.now += 10


def test_picture_goes_where_it_was_encoded() -> None:
    world = World([1.0, 1.0, 1.0])
    world.serve(100, every=0.5)
    answer_picture(world, "cat", row=2)

    assert world.decide(with_picture("cat")) == 2


def test_encoding_is_learned_from_first_tokens_and_leaves_the_cost_of_prompts() -> None:
    world = World([1.0, 1.0])
    world.serve(200, every=0.5)
    before = expected(world, 1_000)
    for number in range(60):
        answer_picture(world, str(number), row=number % 2)

    learned = world.plugin.learning.encode.table[0]
    assert learned == pytest.approx([ENCODE_MS_EACH] * 2, rel=0.25)
    assert expected(world, 1_000) == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize(("held_blocks", "encodes"), [(31, True), (32, False)])
def test_picture_whose_last_token_is_held_is_not_encoded(held_blocks: int, encodes: bool) -> None:
    world = World([1.0, 1.0])
    table = world.candidates(held_blocks, of=1)  # 16 tokens each; the picture ends at 500
    world.plugin.produce(with_picture("cat"), table)

    assert table.added["expected-encoded-tokens"].tolist() == [400, 400 if encodes else 0]
    assert table.added["expected-encode-ms"][0] > 0


def test_endpoints_of_an_encode_stage_have_the_picture_as_well() -> None:
    world = World([1.0, 1.0, 1.0])
    table, asked = world.candidates(), with_picture("cat")
    world.plugin.produce(asked, table)
    others = {"encode": Target(world.endpoints[1], 1.0, 0, 0)}
    follower = world.plugin.follow(asked, table, SchedulingResult((), others=others))
    assert follower is not None
    follower.on_attempt(Target(world.endpoints[2], 1.0, 0, 0), 0.0)

    again = world.candidates()
    world.plugin.produce(asked, again)
    assert again.added["expected-encoded-tokens"].tolist() == [400, 0, 0]


def test_request_whose_prompt_is_unknown_is_estimated_without_its_pictures() -> None:
    known = msgspec.structs.replace(request(1_000), raw=b"x" * 3_000_000, media_bytes=2_996_000)

    assert known.num_prompt_tokens == 1_000
