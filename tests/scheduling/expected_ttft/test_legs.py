"""Whether a request goes in two legs: by what each costs, on engines that can hand blocks over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inferway.errors import NoEndpointError
from inferway.model import (
    Candidates,
    Endpoint,
    KvConnector,
    KvTransfer,
    Prompt,
    SchedulingResult,
    Target,
)
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.openai_api.usage import Usage
from inferway.scheduling.by_role import ByRole
from inferway.scheduling.expected_ttft.follower import ExpectedTtftListener
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.idle import idle
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import RequestOutcome
from inferway.scheduling.profile import LeastLoaded, Profile, Weighted

BLOCK = 16
NIXL = KvTransfer(KvConnector.NIXL)
ROLE = "llm-d.ai/role"


def endpoints(*transfers: KvTransfer | None) -> list[Endpoint]:
    return [
        Endpoint(f"e{n}", f"http://e{n}", n, kv_transfer=each) for n, each in enumerate(transfers)
    ]


def request(tokens: int = 8000, **fields: object) -> LLMRequest:
    body = CompletionRequest(model="m", prompt="", stream=True, **fields)  # type: ignore[arg-type]
    prompt = Prompt(np.zeros(tokens, np.uint32), ())
    return LLMRequest(request_id="r", target_model="m", body=body, prompts={BLOCK: [prompt]})


class Gateway:
    """The default policy before engines of which nothing has been learned."""

    def __init__(self, engines: Sequence[Endpoint], *, has_legs: bool = True) -> None:
        self.plugin = ExpectedTtft(has_legs=has_legs)
        self.chooser = ByRole(Profile(MaxScore(), [Weighted(self.plugin, 1.0)]), has_legs=True)
        self.engines = engines
        self.writing = np.zeros(len(engines))
        self.now = 0.0

    def table(self, *held: int) -> Candidates:
        """`held`: blocks of the prompt, by engine."""
        table = idle(self.engines, BLOCK)
        table.in_flight[:], table.now = self.writing, self.now
        table.matched_blocks[: len(held)] = table.weighted_matched_blocks[: len(held)] = held
        return table

    def choose(self, asked: LLMRequest, table: Candidates) -> SchedulingResult:
        self.plugin.produce(asked, table)
        return self.chooser.choose(asked, table)

    def where(self, asked: LLMRequest, table: Candidates | None = None) -> tuple[str, str]:
        """Names of the engines of the prefill leg, if there is one, and the decode leg."""
        choice = self.choose(asked, table or self.table())
        prefill = choice.prefill[0].endpoint.name if choice.prefill else ""
        return prefill, choice.targets[0].endpoint.name

    def send(self, asked: LLMRequest) -> tuple[SchedulingResult, ExpectedTtftListener]:
        table = self.table()
        choice = self.choose(asked, table)
        follower = self.plugin.follow(asked, table, choice)
        assert follower is not None
        return choice, follower


def busy_writing(*writing: int) -> Gateway:
    """Engines that write so many answers each."""
    gateway = Gateway(endpoints(*[NIXL] * len(writing)))
    gateway.writing[:] = writing
    return gateway


def test_an_idle_fleet_answers_in_one_leg() -> None:
    assert busy_writing(0, 0, 0).where(request())[0] == ""


def busy_with_prompts(gateway: Gateway, row: int, share: float = 0.6) -> None:
    """The engine has been computing prompts for so much of its time."""
    gateway.plugin.produce(request(), gateway.table())  # it knows the engines now
    marginal = gateway.plugin.learning.marginal_cost
    marginal.sent(row, 0.0, work=share * 20_000, new_tokens=1.0, tokens=2.0)


def test_a_prompt_is_computed_where_prompts_are_and_answered_where_answers_are() -> None:
    gateway = busy_writing(20, 20, 0)
    busy_with_prompts(gateway, 2)
    prefill, decode = gateway.where(request())
    assert (prefill, decode in ("e0", "e1")) == ("e2", True)


def test_a_fleet_without_time_to_spare_keeps_nothing_apart() -> None:
    """The engines that write have to compute prompts, too."""
    gateway = busy_writing(20, 20, 0)
    busy_with_prompts(gateway, 2)
    assert gateway.where(request())[0] == "e2"
    marginal = gateway.plugin.learning.marginal_cost
    for _ in range(2000):  # a hundred answers a second, of 200 tokens each
        marginal.sent(2, 0.0, work=0.0, new_tokens=1.0, tokens=2.0)

    assert gateway.where(request())[0] == ""


def test_a_short_prompt_is_not_worth_two_legs() -> None:
    gateway = busy_writing(20, 20, 0)
    busy_with_prompts(gateway, 2)
    assert gateway.where(request(16))[0] == ""


def test_the_holder_hands_over_what_it_is_too_busy_to_answer() -> None:
    """It computes one token, and another engine writes the answer."""
    gateway = busy_writing(60, 1)
    busy_with_prompts(gateway, 0, 0.8)
    assert gateway.where(request(8000), gateway.table(499)) == ("e0", "e1")


def test_blocks_that_find_room_push_none_out() -> None:
    gateway = busy_writing(20, 1)
    busy_with_prompts(gateway, 0, 0.5)
    marginal = gateway.plugin.learning.marginal_cost
    marginal.cached_share = 0.95
    marginal.moved(1, 0.0, work=0.0, new_tokens=1e6)  # whatever is there is pushed out soon
    table = gateway.table(499)
    assert gateway.where(request(8000), table)[0] == ""

    table.free_blocks[1] = 500

    assert gateway.where(request(8000), table) == ("e0", "e1")


def test_the_first_of_the_prefill_engines_is_the_cheapest_and_none_decodes() -> None:
    gateway = busy_writing(20, 20, 0, 1)
    busy_with_prompts(gateway, 2)
    busy_with_prompts(gateway, 3, 0.5)
    choice = gateway.choose(request(), gateway.table())
    assert [target.endpoint.name for target in choice.prefill] == ["e2", "e3"]
    assert choice.targets[0].endpoint.name in ("e0", "e1")
    assert len({target.endpoint.name for target in choice.targets}) == len(choice.targets) > 1


@pytest.mark.parametrize(
    "other",
    [
        None,
        KvTransfer(KvConnector.MOONCAKE),
        KvTransfer(KvConnector.NIXL, group="another model"),
        KvTransfer(KvConnector.NIXL, gives=False),
    ],
)
def test_only_engines_that_can_hand_over_to_each_other_make_a_pair(
    other: KvTransfer | None,
) -> None:
    gateway = Gateway(endpoints(NIXL, NIXL, other))
    gateway.writing[:] = (20, 20, 0)
    busy_with_prompts(gateway, 2)
    assert gateway.where(request())[0] != "e2"


def test_ranks_of_one_engine_are_no_pair() -> None:
    ranks = [Endpoint("e", f"http://e:{n}", n, n, kv_transfer=NIXL) for n in range(3)]
    gateway = Gateway(ranks)
    gateway.writing[:] = (20, 20, 0)
    busy_with_prompts(gateway, 2)
    assert gateway.where(request())[0] == ""


@pytest.mark.parametrize(
    "asked",
    [
        request(echo=True),  # it is computed for its log probabilities
        request(max_tokens=1),
        LLMRequest(
            request_id="r",
            target_model="m",
            body=CompletionRequest(model="m", prompt="", stream=True),
            raw=b"x" * 32_000,
        ),
    ],
)
def test_a_request_that_cannot_have_two_legs_has_one(asked: LLMRequest) -> None:
    gateway = busy_writing(20, 20, 0)
    busy_with_prompts(gateway, 2)
    assert gateway.where(asked)[0] == ""


def test_legs_can_be_switched_off() -> None:
    gateway = Gateway(endpoints(NIXL, NIXL, NIXL), has_legs=False)
    gateway.writing[:] = (20, 20, 0)
    busy_with_prompts(gateway, 2)
    assert gateway.where(request())[0] == ""


def test_an_engine_without_room_gets_no_decode_leg() -> None:
    gateway = busy_writing(20, 20, 0)
    busy_with_prompts(gateway, 2)
    table = gateway.table()
    table.kv_usage[:2] = 0.95
    assert gateway.where(request(), table)[0] == ""


@pytest.mark.parametrize(
    "only_computes",
    [
        Endpoint("p", "http://p", 0, kv_transfer=KvTransfer(KvConnector.NIXL, takes=False)),
        Endpoint("p", "http://p", 0, labels={ROLE: "prefill"}, kv_transfer=NIXL),
        Endpoint("p", "http://p", 0, labels={ROLE: "prefill"}),
    ],
)
def test_an_engine_that_only_computes_prompts_answers_none(only_computes: Endpoint) -> None:
    others = [Endpoint(f"d{n}", f"http://d{n}", n, kv_transfer=NIXL) for n in (1, 2)]
    gateway = Gateway([only_computes, *others])
    gateway.writing[:] = (0, 30, 30)
    choice = gateway.choose(request(), gateway.table())
    assert {target.endpoint.name for target in choice.targets} == {"d1", "d2"}
    by_load = ByRole(LeastLoaded()).choose(request(), gateway.table())
    assert {target.endpoint.name for target in by_load.targets} == {"d1", "d2"}


def test_engines_that_only_say_that_they_take_no_blocks_answer_if_nobody_else_does() -> None:
    only_says = endpoints(KvTransfer(KvConnector.NIXL, takes=False))
    assert Gateway(only_says).where(request()) == ("", "e0")


def test_without_anyone_who_answers_the_error_says_what_is_missing() -> None:
    by_hand = Endpoint("p", "http://p", 0, labels={ROLE: "prefill"}, kv_transfer=NIXL)
    gateway = Gateway([by_hand])
    with pytest.raises(NoEndpointError, match=r"llm-d\.ai/role.*none of 1 decodes; fix"):
        gateway.choose(request(), gateway.table())


def test_an_engine_that_only_decodes_gives_nothing() -> None:
    only_decodes = Endpoint("d", "http://d", 2, labels={ROLE: "decode"}, kv_transfer=NIXL)
    gateway = Gateway([*endpoints(NIXL, NIXL), only_decodes])
    gateway.writing[:] = (20, 20, 0)
    busy_with_prompts(gateway, 2)
    assert gateway.where(request())[0] != "d"


def two_legs(gateway: Gateway, transfer_ms: float, tokens: int) -> None:
    """A request whose prompt e2 computes as fast as is expected, and e0 gets so late."""
    _, follower = gateway.send(request(tokens))
    prefill, decode = (Target(gateway.engines[row], 0.0, 0, 0) for row in (2, 0))
    now = gateway.now
    gateway.now += 10.0
    follower.on_prefill(prefill, now)
    now += 0.02 + tokens * 1e-4 * (1 + tokens / 128_000)
    follower.on_prefilled(now, Usage(tokens, 1, 0), moved=True)
    follower.on_attempt(decode, now)
    now += 0.03 + transfer_ms / 1000  # fixed, and twenty running requests
    follower.on_head(200)
    follower.on_first_chunk(now)
    follower.on_end(RequestOutcome("ok", now, Usage(tokens, 1, 0)))


def learning_fleet() -> Gateway:
    gateway = busy_writing(20, 20, 0)
    busy_with_prompts(gateway, 2)
    return gateway


def test_a_slow_transfer_is_learned_and_then_avoided() -> None:
    gateway = learning_fleet()
    count = 0
    while gateway.where(request())[0] and count < 60:
        two_legs(gateway, 5 + 8000 * 1.0, 8000)
        count += 1
    assert 1 <= count < 20


def test_what_a_transfer_takes_is_learned_by_its_tokens() -> None:
    gateway = learning_fleet()
    for tokens in (4000, 8000, 16000) * 30:
        two_legs(gateway, 10 + tokens * 0.01, tokens)
    fixed, token = gateway.plugin.learning.transfer.table[:, 0]
    assert fixed + 8000 * token == pytest.approx(90, rel=0.15)
    assert token == pytest.approx(0.01, rel=0.3)


def test_a_prefill_leg_waits_where_the_prompt_is_computed_until_it_has_ended() -> None:
    gateway = learning_fleet()
    choice, follower = gateway.send(request())
    learning = gateway.plugin.learning
    decode = choice.targets[0].endpoint.holder
    follower.on_prefill(choice.prefill[0], 0.0)
    assert learning.backlog.requests.tolist() == [0, 0, 1]
    assert learning.coming[decode] == 1
    follower.on_prefilled(1.0, Usage(8000, 1, 0), moved=True)
    follower.on_attempt(choice.targets[0], 1.0)
    assert learning.backlog.requests[2] == 0
    assert learning.backlog.tokens[decode] == 1  # it fetches the others
    assert learning.coming[decode] == 0
    follower.on_end(RequestOutcome("client_gone", 1.5))
    assert not learning.backlog.requests.any()


def test_a_request_that_ends_in_its_prefill_leg_waits_nowhere() -> None:
    gateway = learning_fleet()
    choice, follower = gateway.send(request())
    follower.on_prefill(choice.prefill[0], 0.0)
    follower.on_end(RequestOutcome("client_gone", 0.5))
    assert not gateway.plugin.learning.backlog.requests.any()
    assert not gateway.plugin.learning.coming.any()


def test_blocks_that_did_not_move_leave_the_whole_prompt_to_compute() -> None:
    gateway = learning_fleet()
    choice, follower = gateway.send(request())
    follower.on_prefill(choice.prefill[0], 0.0)
    follower.on_prefilled(0.1, None, moved=False)
    follower.on_attempt(choice.targets[0], 0.1)
    decode = choice.targets[0].endpoint.holder
    assert gateway.plugin.learning.backlog.tokens[decode] > 8000
    assert not gateway.plugin.learning.ttft.is_known  # it was an error


def test_a_second_attempt_computes_the_prompt_for_a_reference_serves_once() -> None:
    gateway = learning_fleet()
    choice, follower = gateway.send(request())
    follower.on_prefill(choice.prefill[0], 0.0)
    follower.on_prefilled(0.8, Usage(8000, 1, 0), moved=True)
    follower.on_attempt(choice.targets[0], 0.8)
    follower.on_attempt(choice.targets[1], 0.9)
    second = choice.targets[1].endpoint.holder
    assert gateway.plugin.learning.backlog.tokens[second] > 8000


def test_where_both_legs_are_sent_at_once_the_transfer_counts_from_the_first_ones_end() -> None:
    gateway = learning_fleet()
    choice, follower = gateway.send(request())
    follower.on_prefill(choice.prefill[0], 0.0)
    follower.on_attempt(choice.targets[0], 0.0)
    follower.on_prefilled(0.82, Usage(8000, 1, 0), moved=True)
    follower.on_head(200)
    follower.on_first_chunk(0.92)
    slot = choice.targets[0].endpoint.holder
    assert gateway.plugin.learning.transfer.expected(slot, (1.0, 8000.0)) < 100


def test_the_answer_says_what_both_legs_were_expected_to_take() -> None:
    gateway = learning_fleet()
    choice, follower = gateway.send(request())
    follower.on_prefill(choice.prefill[0], 0.0)
    follower.on_prefilled(0.82, Usage(8000, 1, 0), moved=True)
    follower.on_attempt(choice.targets[0], 0.82)
    headers = dict(follower.on_head(200))
    parts = dict(
        part.split("=") for part in headers[b"x-inferway-expected-ttft-parts"].decode().split(", ")
    )
    assert parts["transfer"] == "45.0"
    # 20 ms fixed, and 8,000 tokens of which each looks at 4,000 on average
    assert float(parts["prefill"]) == pytest.approx(20 + 800 + 50, rel=0.01)
    whole = float(headers[b"x-inferway-expected-ttft-ms"])
    named = ("fixed", "own", "pairs", "waiting", "queue", "batch", "late", "prefill", "transfer")
    assert sum(float(parts[name]) for name in named) == pytest.approx(whole, abs=1)


def test_a_target_that_is_no_candidate_is_followed_nowhere() -> None:
    gateway = learning_fleet()
    _, follower = gateway.send(request())
    stranger = Target(Endpoint("x", "http://x", 9), 0.0, 0, 0)
    follower.on_prefill(stranger, 0.0)
    follower.on_prefilled(0.1, None, moved=True)
    assert follower.on_attempt(stranger, 0.1) == ()
    assert not gateway.plugin.learning.backlog.requests.any()
