"""The request path, with the real index, overlay and profile; the fleet is a small table."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.scheduling.tables import kv_aware
from tests.slots import NotingSlot
from tests.stored import llmd_configurations

from inferway.config import EjectionSettings, ModelRewrite, RewriteTarget
from inferway.errors import (
    InvalidRequestError,
    NoEndpointError,
    RenderError,
    SaturatedError,
    UnknownModelError,
    UnknownPathError,
)
from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import CPU, Store
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import (
    Candidates,
    Decision,
    Endpoint,
    HolderId,
    Reason,
    RequestHead,
    Tokenized,
)
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.openai_api.usage import Usage
from inferway.prompts.served import PromptSource, ServedModel
from inferway.routing.counts import EngineTokens
from inferway.routing.director import Director
from inferway.routing.journey import Journey
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.match import Matcher
from inferway.routing.rewrite import Rewrites
from inferway.scheduling.idle import idle
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.scheduling import Scheduling

BLOCK = 4
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USAGE = b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}'


class Letters:
    """One token per character; a chat is its contents, one after the other."""

    local = None

    def __init__(self, reason: Reason = Reason.KV_AWARE) -> None:
        self.reason = reason

    def within(self, contexts: object, rules: object) -> Letters:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:
        texts = (
            ["".join(str(m["content"]) for m in body.messages)]
            if isinstance(body, ChatRequest)
            else [str(p) for p in body.prompts]
        )
        ids = [np.array([ord(c) for c in text], dtype=np.uint32) for text in texts]
        return Tokenized(ids, self.reason)

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return ChatRequest(messages=body.messages)


class PanicException(BaseException):
    """As pyo3 has it, anew in every library written in Rust."""


class Broken:
    """A prompt source that fails the way it is told to."""

    local = None

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def within(self, contexts: object, rules: object) -> Broken:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        raise self.error

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return ChatRequest(messages=body.messages)


@dataclass
class TwoEngines:
    """A fleet of two engines, both alive, both serving `m` and its adapter `a`."""

    prompts: PromptSource = field(default_factory=Letters)
    block_sizes: Sequence[int] = (BLOCK,)
    endpoints: list[Endpoint] = field(
        default_factory=lambda: [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(2)]
    )
    booked: np.ndarray = field(default_factory=lambda: np.zeros(2))
    new_tokens: list[int] = field(default_factory=list)
    suspected: list[str] = field(default_factory=list)
    heals: bool = False
    healing: list[str] = field(default_factory=list)
    reporting: list[str] = field(default_factory=list)

    def model(self, name: str) -> ServedModel:
        if name not in ("m", "a"):
            raise UnknownModelError(f"model: no engine serves {name!r}", param="model")
        return ServedModel(name, self.prompts, self.block_sizes, "a" if name == "a" else None)

    def sole_model(self) -> str:
        return "m"

    def candidates(self, model: str) -> Candidates:  # noqa: ARG002
        candidates = idle(self.endpoints, 0)
        candidates.block_sizes[:] = [self.cut(holder) or 0 for holder in (0, 1)]
        candidates.cuts[:] = candidates.block_sizes
        candidates.in_flight[:] = self.booked
        return candidates

    def cut(self, holder: HolderId) -> int | None:
        return self.block_sizes[holder % len(self.block_sizes)] if self.block_sizes else None

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        self.booked[endpoint.holder] += 1
        self.new_tokens.append(new_tokens)

    def release(self, endpoint: Endpoint) -> None:
        self.booked[endpoint.holder] -= 1

    def heal(self, endpoint: Endpoint) -> bool:
        may = self.heals and not self.healing
        if may:
            self.healing.append(endpoint.engine)
        return may

    def healed(self, endpoint: Endpoint) -> None:
        self.healing.remove(endpoint.engine)

    def reports(self, endpoint: Endpoint) -> None:
        self.reporting.append(endpoint.engine)

    def suspect(self, endpoint: Endpoint) -> None:
        self.suspected.append(endpoint.engine)


class BusyEngines(TwoEngines):
    """They run something, and their caches are half full."""

    def candidates(self, model: str) -> Candidates:
        candidates = super().candidates(model)
        candidates.running[:], candidates.kv_usage[:] = 1, 0.5
        return candidates


def director(fleet: TwoEngines | None = None) -> Director:
    return Director(
        fleet or TwoEngines(),
        Matcher(MemoryIndex(), SpeculativeOverlay()),
        Scheduling(kv_aware()),
        lambda: 0.0,
    )


def chat(*contents: str, model: str = "m", **fields: object) -> bytes:
    messages = [{"role": "user", "content": c} for c in contents]
    return msgspec.json.encode({"model": model, "messages": messages, **fields})


def completion(*prompts: str) -> bytes:
    return msgspec.json.encode(
        {"model": "m", "prompt": prompts[0] if len(prompts) == 1 else prompts}
    )


def open_chat(to: Director, body: bytes, path: str = CHAT) -> Journey:
    return to.open(RequestHead("POST", path, "", ()), body)


async def answered(to: Director, body: bytes, answer: bytes, path: str = CHAT) -> Journey:
    journey = open_chat(to, body, path)
    journey.attempt((await journey.decide()).targets[0])
    journey.on_head(200)
    journey.on_chunk(answer)
    journey.close("ok")
    return journey


def hold(to: Director, holder: int, text: str, block: int = BLOCK, **extras: str) -> None:
    """`holder` has told that it holds the blocks of `text`."""
    ids = np.array([ord(c) for c in text], dtype=np.uint32)
    keys = BlockHasher(block).keys(
        ids, request_extras(**{"lora": None, "cache_salt": None} | extras)
    )
    to.matcher.index.apply([Store(holder, keys)])


def matched(journey: Journey) -> list[int]:
    assert journey.routed is not None
    return [int(blocks) for blocks in journey.routed.candidates.matched_blocks]


async def test_a_chat_goes_to_the_engine_that_holds_its_prefix() -> None:
    to = director()
    hold(to, 1, "abcdefgh")

    decision = await open_chat(to, chat("abcdefgh", "ijkl")).decide()

    assert decision.reason == "kv-aware"
    assert decision.targets[0].endpoint.engine == "e1"
    assert (decision.targets[0].matched_blocks, decision.targets[0].prompt_blocks) == (2, 3)


async def test_a_conversation_extended_turn_by_turn_matches_exactly_its_own_past() -> None:
    to = director()
    turns: list[str] = []
    for n in range(20):
        turns.append(f"turn number {n:2}. ")
        journey = open_chat(to, chat(*turns))
        await journey.decide()

        assert matched(journey) == [0, (16 * n) // BLOCK]

        hold(to, 1, "".join(turns))


async def test_several_prompts_of_one_completion_add_up() -> None:
    to = director()
    hold(to, 0, "abcdefgh")
    body = msgspec.json.encode({"model": "m", "prompt": ["abcdefgh", "abcdxxxx", "zzzz"]})
    journey = open_chat(to, body, COMPLETION)

    decision = await journey.decide()

    assert matched(journey) == [3, 0]
    assert decision.targets[0].prompt_blocks == 5


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"prompt_logprobs": 1}),
        (CHAT, {"echo": True}),
        (COMPLETION, {"echo": True, "logprobs": 1}),
    ],
)
async def test_a_request_that_reads_no_cache_matches_nothing_and_stores_all(
    path: str, fields: dict[str, object]
) -> None:
    fleet = TwoEngines(heals=True)
    to = director(fleet)
    hold(to, 1, "abcdefgh")
    begun = open_chat(to, chat("abcdefgh", "ijkl"))
    begun.attempt((await begun.decide()).targets[0])
    body = json.loads(chat("abcdefgh", "ijkl") if path == CHAT else completion("abcdefghijkl"))

    journey = open_chat(to, msgspec.json.encode({**body, **fields}), path)
    target = (await journey.decide()).targets[0]
    journey.attempt(target)

    assert matched(journey) == [0, 0]
    assert (target.endpoint.engine, target.matched_blocks, target.prompt_blocks) == ("e0", 0, 3)
    assert fleet.new_tokens[-1] == 12
    assert fleet.healing == []  # it would report nothing
    begun.close("ok")
    journey.on_head(200)
    assert to.stats.tokens["e0"].matched == 0
    # others find what it brings
    after = open_chat(to, chat("abcdefgh", "ijkl"))
    await after.decide()
    assert matched(after) == [3, 2]


async def test_an_adapters_blocks_are_not_the_base_models() -> None:
    to = director()
    hold(to, 0, "abcdefgh")
    hold(to, 1, "abcdefgh", lora="a")
    base, adapter = open_chat(to, chat("abcdefgh")), open_chat(to, chat("abcdefgh", model="a"))
    await base.decide()
    await adapter.decide()

    assert (matched(base), matched(adapter)) == ([2, 0], [0, 2])


async def test_a_cache_salt_keeps_tenants_apart() -> None:
    to = director()
    hold(to, 0, "abcdefgh", cache_salt="s")
    salted, plain = open_chat(to, chat("abcdefgh", cache_salt="s")), open_chat(to, chat("abcdefgh"))
    await salted.decide()
    await plain.decide()

    assert (matched(salted), matched(plain)) == ([2, 0], [0, 0])


async def test_engines_of_different_block_sizes_are_matched_each_in_its_own() -> None:
    to = director(TwoEngines(block_sizes=(4, 8)))
    hold(to, 0, "abcdefghijkl", block=4)
    hold(to, 1, "abcdefghijkl", block=8)
    journey = open_chat(to, chat("abcdefghijkl"))

    await journey.decide()

    assert matched(journey) == [3, 1]
    assert journey.routed is not None
    assert journey.routed.candidates.prompt_blocks.tolist() == [3.0, 1.0]


async def test_who_reads_columns_may_refuse_a_request_once_they_are_there() -> None:
    plugins = [{"type": "queue-scorer"}, {"type": "latency-slo-admitter"}]
    to = director(BusyEngines())
    to.scheduling = load_scheduling({"plugins": plugins})
    head = RequestHead("POST", CHAT, "", ((b"x-slo-ttft-ms", b"0.001"),))

    journey = to.open(head, chat("hello"), priority=-1)
    with pytest.raises(SaturatedError, match="in time"):
        await journey.decide()
    kept = await to.open(head, chat("hello"), priority=0).decide()

    assert kept.targets


async def test_a_burst_of_equal_prompts_follows_the_first() -> None:
    to = director()
    first = open_chat(to, chat("abcdefgh"))
    target = (await first.decide()).targets[0]
    first.attempt(target)

    second = await open_chat(to, chat("abcdefgh")).decide()

    assert second.targets[0].endpoint == target.endpoint
    assert second.targets[0].matched_blocks == 2


async def test_bursts_stay_together_as_llm_d_s_burst_producer_has_it() -> None:
    """llm-d-router ebab687, dataproducer/burstprefix/assign_test.go: a group of equal prompts goes
    to one engine, the next group to another. Here each request goes at once."""
    (burst,) = [row for row in llmd_configurations() if "burst" in row["name"]]
    to = director()
    to.scheduling = load_scheduling(burst["config"])

    async def group(text: str) -> list[str]:
        went = []
        for _ in range(8):
            journey = open_chat(to, chat(text))
            target = (await journey.decide()).targets[0]
            journey.attempt(target)
            went.append(target.endpoint.engine)
        return went

    first, second = await group("abcdefgh"), await group("ijklmnop")

    assert [len(set(first)), len(set(second))] == [1, 1]
    assert first[0] != second[0]


@pytest.mark.parametrize("end", ["first token", "close"])
async def test_speculation_ends_with_the_first_token_or_the_journey(end: str) -> None:
    to = director()
    first = open_chat(to, chat("abcdefgh"))
    first.attempt((await first.decide()).targets[0])
    if end == "first token":
        first.on_chunk(b"data: x\n\n")
    else:
        first.close("client_gone")

    later = open_chat(to, chat("abcdefgh"))
    await later.decide()

    assert matched(later) == [0, 0]


async def test_a_prompt_counts_as_held_until_the_engines_events_must_have_come() -> None:
    to = director()
    waiting: list[Callable[[], None]] = []
    to.later = waiting.append
    first = open_chat(to, chat("abcdefgh"))
    target = (await first.decide()).targets[0]
    first.attempt(target)
    first.on_chunk(b"data: x\n\n")
    first.close("ok")

    soon = open_chat(to, chat("abcdefgh"))
    await soon.decide()
    [call] = waiting
    call()
    later = open_chat(to, chat("abcdefgh"))
    await later.decide()

    assert sum(matched(soon)) == 2
    assert matched(later) == [0, 0]


async def test_a_prefix_that_ends_on_a_block_border_is_reused_to_its_end() -> None:
    """Only of a whole prompt the engine computes the last token again."""
    for reason, new_tokens in ((Reason.KV_AWARE, BLOCK), (Reason.MEDIA_PREFIX, 0)):
        fleet = TwoEngines(Letters(reason))
        to = director(fleet)
        hold(to, 0, "abcdefgh")
        journey = open_chat(to, chat("abcdefgh"))
        target = next(t for t in (await journey.decide()).targets if t.matched_blocks)

        journey.attempt(target)

        assert fleet.new_tokens == [new_tokens]


async def test_blocks_in_lower_tiers_are_told_whole_and_weighed_less() -> None:
    to = director()
    hold(to, 0, "abcdefgh")
    keys = BlockHasher(BLOCK).keys(np.array([ord(c) for c in "abcdefgh"], dtype=np.uint32))
    to.matcher.index.apply([Store(1, keys, None, CPU)])
    journey = open_chat(to, chat("abcdefgh"))

    await journey.decide()

    assert matched(journey) == [2, 2]
    assert journey.routed is not None
    assert journey.routed.candidates.weighted_matched_blocks.tolist() == [2.0, 1.6]


async def test_a_second_attempt_takes_back_the_first_and_close_frees_once() -> None:
    fleet = TwoEngines()
    journey = open_chat(director(fleet), chat("abcdefgh"))
    one, two = (await journey.decide()).targets
    journey.attempt(one)
    journey.attempt(two)

    assert fleet.booked[two.endpoint.holder] == 1
    assert fleet.booked[one.endpoint.holder] == 0

    assert fleet.suspected == [one.endpoint.engine]

    journey.close("ok")
    journey.close("upstream_error")

    assert fleet.booked.tolist() == [0, 0]
    assert fleet.suspected == [one.endpoint.engine]


async def test_an_engine_that_answers_500_is_suspected() -> None:
    fleet = TwoEngines()
    journey = open_chat(director(fleet), chat("abcdefgh"))
    target = (await journey.decide()).targets[0]
    journey.attempt(target)
    journey.on_head(500)
    journey.close("ok")

    assert fleet.suspected == [target.endpoint.engine]


async def test_tokens_are_counted_as_sent_as_believed_and_as_delivered() -> None:
    to = director()
    hold(to, 0, "abcdefgh")
    journey = open_chat(to, chat("abcdefghij"))
    journey.attempt((await journey.decide()).targets[0])
    headers = dict(journey.on_head(200))
    journey.on_chunk(USAGE)
    journey.close("ok")

    tokens = to.stats.tokens["e0"]

    assert tokens == EngineTokens(prompt=10, matched=8, checked=8, delivered=4)
    assert headers == {
        b"x-inferway-engine": b"e0",
        b"x-inferway-matched-blocks": b"2",
        b"x-inferway-prompt-blocks": b"2",
    }


async def test_an_answer_that_does_not_tell_checks_nothing() -> None:
    to = director()
    hold(to, 0, "abcdefgh")

    await answered(to, chat("abcdefghij"), b'{"usage":{"prompt_tokens":9}}')

    assert to.stats.tokens["e0"] == EngineTokens(prompt=10, matched=8)


@pytest.mark.parametrize("field", [{"n": 2}, {"prompt": ["abcdefgh", "abcdefghij"]}])
async def test_an_answer_that_tells_one_prompt_of_several_is_not_counted(
    field: dict[str, object],
) -> None:
    """Nor is its sibling's: with `n`, vLLM tells what one answer found, the others' prompt too."""
    to = director()
    hold(to, 0, "abcdefgh")
    body = {**json.loads(completion("abcdefghij")), **field}

    journey = await answered(to, msgspec.json.encode(body), USAGE, COMPLETION)

    assert to.stats.tokens == {}
    assert journey.record.usage == Usage(9, 0)  # what was cached is not told, rather than 4


async def test_of_a_prompt_known_in_part_what_is_known_of_it_is_compared() -> None:
    to = director(TwoEngines(prompts=Letters(Reason.MEDIA_PREFIX)))
    hold(to, 0, "abcdefgh")
    told = b'{"usage":{"prompt_tokens":900,"prompt_tokens_details":{"cached_tokens":600}}}'

    await answered(to, chat("abcdefgh"), told)

    assert to.stats.tokens["e0"] == EngineTokens(prompt=8, matched=8, checked=8, delivered=8)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RenderError("an image", reason="media"), "media"),
        (ZeroDivisionError("a bug of ours"), "our-fault"),
        (PanicException("a library's"), "our-fault"),
    ],
)
async def test_what_we_cannot_render_is_still_sent_by_load(
    error: BaseException, reason: str
) -> None:
    to = director(TwoEngines(prompts=Broken(error)))

    journey = open_chat(to, chat("abcdefgh"))
    decision = await journey.decide()
    journey.attempt(decision.targets[0])

    assert decision.reason == reason
    assert len(decision.targets) == 2
    assert to.stats.decisions == {reason: 1}
    assert (b"x-inferway-reason", reason.encode()) in journey.on_head(200)


async def test_without_a_block_size_requests_go_by_load() -> None:
    decision = await open_chat(director(TwoEngines(block_sizes=())), chat("abcdefgh")).decide()

    assert decision.reason == "no-block-size"


@pytest.mark.parametrize("model", ["", None])
async def test_a_request_without_a_model_is_the_one_that_all_engines_serve(model: Any) -> None:
    to = director()
    body = chat("hello", model=model)
    hold(to, 1, "hello")

    journey = open_chat(to, body)
    decision = await journey.decide()

    assert decision.reason is Reason.KV_AWARE
    assert decision.targets[0].endpoint.engine == "e1"
    assert (journey.body, journey.record.model) == (body, "m")


async def test_a_request_without_a_model_is_rewritten_as_one_of_the_sole_model() -> None:
    to = director()
    to.rewrites = Rewrites([ModelRewrite(models=["m"], targets=[RewriteTarget(model="a")])])

    journey = open_chat(to, b'{"messages": [{"role": "user", "content": "x"}], "x": NaN}')
    await journey.decide()

    assert b'"x":NaN,"model":"a"}' in journey.body


async def test_behind_a_proxy_a_request_without_a_model_is_refused_as_llm_d_does() -> None:
    to = director()
    to.behind_proxy = True

    with pytest.raises(InvalidRequestError, match=r"^model not found in request body$"):
        await open_chat(to, chat("hello", model="")).decide()


async def test_what_the_client_got_wrong_is_not_sent_anywhere() -> None:
    to = director(TwoEngines(prompts=Broken(InvalidRequestError("no", param="messages"))))

    with pytest.raises(InvalidRequestError):
        await open_chat(to, chat("abcdefgh")).decide()
    with pytest.raises(UnknownModelError):
        await open_chat(to, chat("x", model="nope")).decide()


def test_a_path_without_a_prompt_opens_no_journey() -> None:
    with pytest.raises(UnknownPathError, match="/v1/audio: no such path"):
        open_chat(director(), b"", "/v1/audio")


async def test_a_large_body_is_parsed_off_the_loop() -> None:
    to = director()
    threads = []

    async def off_loop(parse, raw):  # type: ignore[no-untyped-def]
        threads.append(len(raw))
        return await asyncio.to_thread(parse, raw)

    to.off_loop = off_loop
    to.off_loop_bytes = 1000
    await open_chat(to, chat("a" * 2000)).decide()
    await open_chat(to, chat("a")).decide()

    assert len(threads) == 1


# asking an engine to report what it reuses

REPORT = b'"vllm_xargs":{"kv_cache_report_mode":"full"}'


async def test_a_request_that_may_find_more_than_we_know_asks_for_a_report() -> None:
    fleet = TwoEngines(heals=True)
    to = director(fleet)
    hold(to, 1, "abcd")
    body = chat("abcdefghi")
    journey = open_chat(to, body)
    journey.attempt((await journey.decide()).targets[0])

    assert journey.body == b"{" + REPORT + b"," + body[1:]
    assert (b"x-inferway-edited", b"vllm_xargs") in journey.on_head(200)
    assert fleet.healing == ["e1"]
    journey.close("ok")
    assert fleet.healing == []


@pytest.mark.parametrize(
    "body",
    [
        chat("abcdefgh"),  # the last token's block is never reused: all else is known
        chat("x"),
        chat("abcdefghi", vllm_xargs={"kv_cache_report_mode": "incremental"}),
    ],
    ids=["all known", "no block", "the client's own"],
)
async def test_a_request_that_tells_nothing_new_goes_as_it_is(body: bytes) -> None:
    fleet = TwoEngines(heals=True)
    to = director(fleet)
    hold(to, 1, "abcd")
    journey = open_chat(to, body)
    journey.attempt((await journey.decide()).targets[0])

    assert journey.body is body
    assert "x-inferway-edited" not in [name.decode() for name, _ in journey.on_head(200)]
    assert fleet.healing == []


@pytest.mark.parametrize("scoring", [True, False])
async def test_each_engine_that_a_clients_own_report_goes_to_is_told_of_before(
    scoring: bool,
) -> None:
    fleet = TwoEngines(heals=True)
    to = director(fleet)
    to.scoring = scoring
    journey = open_chat(to, chat("abcdefghi", vllm_xargs={"kv_cache_report_mode": "full"}))
    first, second = (await journey.decide()).targets
    journey.attempt(first)
    journey.attempt(second)

    assert fleet.reporting == [first.endpoint.engine, second.endpoint.engine]


@pytest.mark.parametrize(
    "xargs",
    [None, {}, {"kv_cache_report_mode": "incremental"}, {"session_id": "full"}, "full", [1]],
)
async def test_no_engine_is_told_of_other_extra_arguments(xargs: object) -> None:
    fleet = TwoEngines()
    journey = open_chat(director(fleet), chat("abcdefghi", vllm_xargs=xargs))
    journey.attempt((await journey.decide()).targets[0])

    assert fleet.reporting == []


async def test_each_attempt_sends_a_body_of_its_own() -> None:
    fleet = TwoEngines(heals=True)
    to = director(fleet)
    body = chat("abcdefghi")
    journey = open_chat(to, body)
    first, second = (await journey.decide()).targets
    journey.attempt(first)
    fleet.heals = False

    journey.attempt(second)

    assert journey.body is body
    assert fleet.healing == []


async def test_an_answer_that_has_begun_keeps_nothing_of_its_prompt() -> None:
    to = director(TwoEngines())
    body = chat("abcdefghi")
    alone = sys.getrefcount(body)
    journey = open_chat(to, body)
    journey.attempt((await journey.decide()).targets[0])
    journey.on_head(200)

    assert sys.getrefcount(body) > alone  # it may be sent to another engine
    journey.on_chunk(b"data: {}\n\n")
    assert sys.getrefcount(body) == alone
    journey.close("ok")


# ------------------------------------------------------------------- who gets it, and when


def engines(decision: Decision) -> set[str]:
    return {target.endpoint.engine for target in decision.targets}


async def test_a_drained_engine_is_no_candidate_whatever_it_holds() -> None:
    to = director()
    hold(to, 1, "abcdefgh")
    to.standing = OutlierDetection(drained={"e1"})

    assert engines(await open_chat(to, chat("abcdefgh")).decide()) == {"e0"}


async def test_an_ejected_engine_is_a_candidate_only_if_all_are() -> None:
    to = director()
    to.standing = standing = OutlierDetection(EjectionSettings(failures=1))
    standing.failed("e1", 0.0)
    assert engines(await open_chat(to, chat("ab")).decide()) == {"e0"}

    standing.failed("e0", 0.0)
    assert engines(await open_chat(to, chat("ab")).decide()) == {"e0", "e1"}


async def test_a_model_whose_engines_are_drained_is_not_the_clients_fault() -> None:
    to = director()
    to.standing = OutlierDetection(drained={"e0", "e1"})

    with pytest.raises(NoEndpointError, match="model 'm': its engines are drained: e0, e1"):
        await open_chat(to, chat("ab")).decide()


async def test_a_request_has_its_turn_and_goes_where_there_is_room() -> None:
    to, slot = director(), NotingSlot(full=frozenset({"e1"}))
    hold(to, 1, "abcdefgh")

    assert engines(await open_chat(to, chat("abcdefgh")).decide(slot)) == {"e0"}
    assert slot.asked == [("m", 0)]


async def test_its_callers_priority_counts_and_not_its_headers() -> None:
    to, slot = director(), NotingSlot()
    to.priorities = {"low": -1}
    head = RequestHead("POST", CHAT, "", [(b"x-gateway-inference-objective", b"low")])
    await to.open(head, chat("ab")).decide(slot)
    await to.open(head, chat("ab"), priority=3).decide(slot)

    assert slot.asked == [("m", -1), ("m", 3)]


@pytest.mark.parametrize("scoring", [True, False])
async def test_what_changed_while_it_waited_counts(scoring: bool) -> None:
    to = director()
    to.scoring = scoring
    to.standing = standing = OutlierDetection()
    slot = NotingSlot(while_it_waits=lambda: standing.drained.add("e0"))

    assert engines(await open_chat(to, chat("ab")).decide(slot)) == {"e1"}


async def test_a_refused_request_is_not_looked_at() -> None:
    to = director(TwoEngines(prompts=Broken(AssertionError("it was rendered"))))

    with pytest.raises(SaturatedError, match="full"):
        await open_chat(to, chat("ab")).decide(NotingSlot(refuses=SaturatedError("full")))
    assert to.stats.decisions == {}


async def test_an_engine_that_filled_up_meanwhile_gets_no_more_than_its_limit() -> None:
    with pytest.raises(SaturatedError, match="all engines are full; try again"):
        await open_chat(director(), chat("ab")).decide(NotingSlot(full=frozenset({"e0", "e1"})))
