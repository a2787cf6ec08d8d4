"""What a drained engine's warm prefixes become: with the real index, overlay and director, before
engines that do legs as vLLM's do."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.routing.test_director import BLOCK, TwoEngines
from tests.scheduling.tables import kv_aware

from inferway.config import EngineSettings
from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.hand_over import (
    LEAST_TOKENS,
    MOVES,
    MOVES_PER_TARGET,
    STRIKES,
    HandOver,
    HandOverState,
    Progress,
    takers,
    why_none,
)
from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Store
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import (
    BlockKey,
    Candidates,
    ContextLengths,
    Endpoint,
    HolderId,
    KvConnector,
    KvTransfer,
    TokenIds,
)
from inferway.prompts.served import ServedModel
from inferway.routing.director import Director
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.match import Matcher
from inferway.routing.warm_prefixes import WarmPrefix
from inferway.scheduling.expected_ttft.legs import FULL
from inferway.scheduling.idle import idle
from inferway.scheduling.scheduling import Scheduling

NIXL = KvTransfer(KvConnector.NIXL, "g")
TOKENS = 25 * BLOCK


def endpoint(name: str, holder: HolderId, transfer: KvTransfer | None = NIXL) -> Endpoint:
    return Endpoint(name, f"http://{name}:8000", holder, kv_transfer=transfer)


@dataclass
class Group(TwoEngines):
    """A fleet of engines that hand blocks to each other; the first is the one to be drained."""

    usage: float = 0.0  # of the blocks of each
    lengths: dict[str, int] = field(default_factory=dict)  # contexts, in tokens
    serving: dict[str, list[str]] = field(default_factory=dict)  # engines of a model; else all
    at_once: Counter[int] = field(default_factory=Counter)
    most: Counter[int] = field(default_factory=Counter)
    most_in_all: int = 0

    def model(self, name: str) -> ServedModel:
        contexts = ContextLengths(by_engine=self.lengths)
        return replace(super().model(name), contexts=contexts)

    def candidates(self, model: str) -> Candidates:
        engines = self.serving.get(model, "abcdef")
        endpoints = [each for each in self.endpoints if each.engine in engines]
        candidates = idle(endpoints, BLOCK)
        candidates.in_flight[:] = [self.at_once[each.holder] for each in endpoints]
        candidates.kv_usage[:] = self.usage
        return candidates

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        self.at_once[endpoint.holder] += 1
        self.new_tokens.append(new_tokens)
        self.most |= self.at_once
        self.most_in_all = max(self.most_in_all, self.at_once.total())

    def release(self, endpoint: Endpoint) -> None:
        self.at_once[endpoint.holder] -= 1


Answer = tuple[int, bytes]


@dataclass
class Engines:
    """They do both legs of a request: a reference serves once, for its prompt, and from then on the
    decode engine holds the prompt's blocks."""

    index: MemoryIndex
    asked: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    references: dict[str, tuple[list[int], str | None]] = field(default_factory=dict)
    faults: dict[str, Callable[[dict[str, Any]], Answer | None]] = field(default_factory=dict)
    pause: asyncio.Event | None = None

    async def __call__(self, endpoint: Endpoint, body: bytes, request_id: str) -> Answer:
        asked, at = json.loads(body), endpoint
        self.asked.append((at.engine, asked, request_id))
        await asyncio.sleep(0)
        if self.pause is not None:
            await self.pause.wait()
        if at.engine in self.faults:
            answer = self.faults[at.engine](asked)
            if answer is not None:
                return answer
        params = asked["kv_transfer_params"]
        if params["do_remote_decode"]:
            return 200, self.reference(asked, at)
        known = self.references.pop(params["remote_request_id"])
        assert known == (asked["prompt"], asked.get("cache_salt"))
        assert params["remote_block_ids"] == [_blocks(asked["prompt"])]
        keys = keys_of(np.array(asked["prompt"], np.uint32), asked.get("cache_salt"))
        self.index.apply([Store(at.holder, keys)])
        return 200, b"{}"

    def reference(self, asked: dict[str, Any], at: Endpoint, **fields: Any) -> bytes:
        name = f"r{len(self.references)}-{len(self.asked)}"
        self.references[name] = (asked["prompt"], asked.get("cache_salt"))
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [_blocks(asked["prompt"])],
            "remote_engine_id": at.engine,
            "remote_request_id": name,
            "remote_host": at.engine,
            "remote_port": 5600,
            "tp_size": 1,
        }
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": 1}
        return json.dumps({"kv_transfer_params": params | fields, "usage": usage}).encode()

    def legs_of(self, engine: str) -> list[dict[str, Any]]:
        return [body for name, body, _ in self.asked if name == engine]


def _blocks(prompt: Sequence[int]) -> list[int]:
    """The ids of as many blocks as the prompt has."""
    return list(range(1, -(-len(prompt) // BLOCK) + 1))


def keys_of(ids: TokenIds, salt: str | None = None, lora: str | None = None) -> Sequence[BlockKey]:
    return BlockHasher(BLOCK).keys(ids, request_extras(lora, salt))


class World:
    """Engines a, b, ...; a is drained. `clock` goes on by one with each leg."""

    def __init__(self, *transfers: KvTransfer | None) -> None:
        endpoints = [endpoint("abcdef"[i], i, each) for i, each in enumerate(transfers)]
        self.fleet = Group(endpoints=endpoints)
        self.index = MemoryIndex()
        self.engines = Engines(self.index)
        self.director = Director(
            self.fleet,
            Matcher(self.index, SpeculativeOverlay()),
            Scheduling(kv_aware()),
            lambda: float(len(self.engines.asked)),
            standing=OutlierDetection(drained={"a"}),
        )
        facts = EngineFacts((ModelCard("m", None, None, None),), (), BLOCK, ())
        self.drained = Engine(EngineSettings(url="http://a:8000"), (), facts, healthy=True)
        self.drained.endpoints = endpoints[:1]
        self.kept: list[WarmPrefix] = []

    def holds(self, holder: HolderId, ids: TokenIds, salt: str | None = None) -> None:
        self.index.apply([Store(holder, keys_of(ids, salt))])

    def uses(
        self, ids: TokenIds, salt: str | None = None, uses: float = 1.0, model: str = "m"
    ) -> None:
        self.kept.append(WarmPrefix(model, ids, salt, uses, 0.0))

    def warms(self, *starts: int, tokens: int = TOKENS) -> list[TokenIds]:
        """Prompts that the drained engine alone holds."""
        found = [prompt(start, tokens) for start in starts]
        for ids in found:
            self.holds(0, ids)
            self.uses(ids)
        return found

    async def matched(self, ids: TokenIds) -> dict[HolderId, int]:
        return dict((await self.index.match(keys_of(ids))).blocks)

    async def hand_over(self, seconds: float = 1e6) -> Progress:
        progress = Progress(HandOverState.RUNNING, ends_at=self.director.clock() + seconds)
        await HandOver(self.drained, self.director, self.engines, progress, 5.0).run(self.kept)
        assert self.fleet.at_once.total() == 0
        assert not self.director.matcher.overlay._bits
        return progress


def prompt(start: int, tokens: int = TOKENS) -> TokenIds:
    return np.arange(start * 1000, start * 1000 + tokens, dtype=np.uint32)


async def test_what_the_drained_engine_alone_holds_is_held_elsewhere_afterwards() -> None:
    world = World(NIXL, NIXL)
    prompts = world.warms(1, 2)

    progress = await world.hand_over()

    assert (progress.state, progress.handed_over, progress.left) == ("done", 2, 0)
    assert progress.tokens == 2 * TOKENS
    for ids in prompts:
        assert await world.matched(ids) == {0: 25, 1: 25}


async def test_both_legs_are_small_requests_for_the_same_prompt() -> None:
    world = World(NIXL, NIXL)
    ids = prompt(1, TOKENS + 3)
    world.index.apply([Store(0, keys_of(ids, "salt", lora="a"))])
    world.uses(ids, "salt", model="a")

    await world.hand_over()

    (first, leg, one), (second, other, same) = world.engines.asked
    assert (first, second) == ("a", "b")
    assert one == same
    assert leg.pop("kv_transfer_params")["do_remote_decode"] is True
    assert other.pop("kv_transfer_params")["do_remote_prefill"] is True
    assert leg == other == {
        "model": "a",
        "prompt": ids[: TOKENS + 1].tolist(),
        "max_tokens": 1,
        "temperature": 0,
        "cache_salt": "salt",
    }  # fmt: skip


async def test_each_leg_is_booked_with_the_token_that_it_computes() -> None:
    world = World(NIXL, NIXL)
    ids = prompt(1, TOKENS + 3)
    world.holds(0, ids)
    world.uses(ids)

    await world.hand_over()

    assert world.fleet.new_tokens == [1, 1]


async def test_only_what_the_engine_holds_is_asked_for() -> None:
    world = World(NIXL, NIXL)
    ids = prompt(1)
    world.holds(0, ids[: 20 * BLOCK])
    world.uses(ids)

    progress = await world.hand_over()

    assert progress.tokens == 20 * BLOCK
    assert [len(body["prompt"]) for _, body, _ in world.engines.asked] == [20 * BLOCK + 1] * 2


async def test_the_most_valuable_go_first_when_time_is_short() -> None:
    world = World(NIXL, NIXL)
    [short], [long] = world.warms(1, tokens=TOKENS), world.warms(2, tokens=3 * TOKENS)
    [often] = world.warms(3, tokens=TOKENS)
    world.kept[-1].uses = 4.0

    progress = await world.hand_over(seconds=2)

    started = {body["prompt"][0] for body in world.engines.legs_of("a")}
    assert progress.state == "out-of-time"
    assert progress.handed_over + progress.left == 3
    assert {often[0], long[0]} == started
    assert set(await world.matched(short)) == {0}


async def test_time_that_is_up_ends_no_move_that_has_begun() -> None:
    world = World(NIXL, NIXL)
    world.warms(*range(10))

    progress = await world.hand_over(seconds=1)

    assert progress.handed_over == len(world.engines.legs_of("a")) < 10
    assert not world.engines.references


async def test_what_others_hold_or_what_is_short_stays() -> None:
    world = World(NIXL, NIXL)
    [ids] = world.warms(1)
    world.holds(1, ids)
    world.warms(2, tokens=LEAST_TOKENS - 1)
    world.uses(prompt(3))  # nobody has it any more

    progress = await world.hand_over()

    assert (progress.state, progress.handed_over) == ("done", 0)
    assert not world.engines.asked


async def test_a_prefix_that_came_elsewhere_meanwhile_is_skipped() -> None:
    world = World(NIXL, NIXL)
    shorter, longer = prompt(1), prompt(1, 2 * TOKENS)
    world.holds(0, longer)
    world.uses(shorter)
    world.uses(longer)

    progress = await world.hand_over()

    assert (progress.handed_over, progress.skipped) == (1, 1)
    assert progress.tokens == 2 * TOKENS


async def test_a_model_that_no_other_engine_of_the_group_serves_holds_up_no_other() -> None:
    world = World(NIXL, None, NIXL)
    ids = prompt(1)
    world.index.apply([Store(0, keys_of(ids, lora="a"))])
    world.uses(ids, model="a", uses=9.0)
    world.warms(2)
    world.fleet.serving = {"a": ["a", "b"]}

    progress = await world.hand_over()

    assert (progress.state, progress.handed_over) == ("done", 1)


async def test_they_are_spread_and_few_at_a_time() -> None:
    world = World(NIXL, NIXL, NIXL)
    prompts = world.warms(*range(20))

    await world.hand_over()

    found = [await world.matched(ids) for ids in prompts]
    assert Counter(holder for holders in found for holder in holders) == {0: 20, 1: 10, 2: 10}
    assert world.fleet.most[1] <= MOVES_PER_TARGET
    assert world.fleet.most[2] <= MOVES_PER_TARGET
    assert world.fleet.most_in_all <= MOVES


async def test_engines_whose_blocks_are_in_use_get_nothing() -> None:
    world = World(NIXL, NIXL)
    world.warms(1)
    world.fleet.usage = FULL
    handing = asyncio.ensure_future(world.hand_over())
    await asyncio.sleep(0.01)

    assert not world.engines.asked
    world.fleet.usage = 0.0
    assert (await handing).handed_over == 1


# ------------------------------------------------------------------------------- where it may go

DECODE = KvTransfer(KvConnector.NIXL, "g", gives=False)
PREFILL = KvTransfer(KvConnector.NIXL, "g", takes=False)


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (NIXL, [NIXL, None], "b"),
        (NIXL, [KvTransfer(KvConnector.NIXL, "other"), NIXL], "c"),
        (NIXL, [KvTransfer(KvConnector.NIXL_PUSH, "g")], ""),
        (PREFILL, [DECODE, PREFILL], "b"),  # where blocks of others are not safe
        (DECODE, [NIXL, DECODE, PREFILL], "c"),
        (DECODE, [PREFILL, NIXL], "c"),
        (None, [NIXL], ""),
    ],
)
def test_blocks_go_to_engines_of_the_same_group_and_role(
    own: KvTransfer | None, others: list[KvTransfer | None], expected: str
) -> None:
    everyone = [endpoint("abcdef"[i], i, each) for i, each in enumerate([own, *others])]

    assert "".join(each.engine for each in takers(everyone[0], everyone)) == expected


@pytest.mark.parametrize(
    ("transfers", "why"),
    [
        ((None, NIXL), "no connector is known"),
        ((KvTransfer(KvConnector.MOONCAKE), KvTransfer(KvConnector.MOONCAKE)), "it has mooncake"),
        ((NIXL, None), "no other engine"),
        ((NIXL,), "no other engine"),
        ((NIXL, NIXL), None),
    ],
)
def test_it_is_said_why_nothing_can_be_handed_over(
    transfers: Sequence[KvTransfer | None], why: str | None
) -> None:
    world = World(*transfers)

    found = why_none(world.director, world.drained)

    assert found == why or (found is not None and why is not None and why in found)


# -------------------------------------------------------------------------------------- failures


def always(status: int, body: bytes = b"{}") -> Callable[[dict[str, Any]], Answer]:
    return lambda _: (status, body)


def raising(error: UpstreamError) -> Callable[[dict[str, Any]], Answer]:
    def answer(_: dict[str, Any]) -> Answer:
        raise error

    return answer


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (500, b"{}", "answered 500"),
        (200, b"{}", "returned no kv_transfer_params"),
        (200, b'{"kv_transfer_params": null}', "returned no kv_transfer_params"),
        (200, b'{"kv_transfer_params": {"do_remote_prefill": true}}', "missing required field"),
        (200, b"no JSON", "no JSON"),
    ],
)
async def test_an_engine_that_gives_no_references_is_not_asked_for_long(
    status: int, answer: bytes, why: str
) -> None:
    world = World(NIXL, NIXL)
    world.warms(*range(30))
    world.engines.faults["a"] = always(status, answer)

    progress = await world.hand_over()

    assert progress.state == "failed"
    assert why in progress.why
    assert (progress.handed_over, progress.left) == (0, 30 - progress.failed)
    assert STRIKES <= len(world.engines.asked) < STRIKES + MOVES
    assert not world.engines.legs_of("b")


@pytest.mark.parametrize(
    "fields",
    [{"remote_host": "evil"}, {"do_remote_prefill": False}, {"remote_block_ids": [["1"]]}],
)
async def test_a_reference_that_is_not_whole_reaches_nobody(fields: dict[str, Any]) -> None:
    world = World(NIXL, NIXL)
    world.warms(1)
    at = world.fleet.endpoints[0]
    world.engines.faults["a"] = lambda asked: (200, world.engines.reference(asked, at, **fields))

    progress = await world.hand_over()

    assert (progress.handed_over, progress.failed) == (0, 1)
    assert not world.engines.legs_of("b")


async def test_a_reference_that_may_be_older_than_its_lease_is_not_used() -> None:
    world = World(KvTransfer(KvConnector.NIXL, "g", lease_seconds=5.5), NIXL)
    world.warms(1)

    progress = await world.hand_over()  # each leg takes a second, and the margin is 5

    assert (progress.handed_over, progress.failed) == (0, 1)
    assert not world.engines.legs_of("b")


async def test_a_prefix_that_no_engine_has_room_for_in_its_context_stays() -> None:
    world = World(NIXL, NIXL, NIXL)
    world.fleet.lengths = {"a": 4 * TOKENS, "b": TOKENS, "c": 2 * TOKENS + 1}
    world.warms(1, tokens=TOKENS)
    world.warms(2, tokens=2 * TOKENS)

    progress = await world.hand_over()

    assert progress.handed_over == 2
    assert not world.engines.legs_of("b")


async def test_a_reference_to_another_prompt_is_not_used() -> None:
    world = World(NIXL, NIXL)
    world.warms(1)
    at = world.fleet.endpoints[0]
    other = {"prompt": [1, 2, 3]}
    world.engines.faults["a"] = lambda _: (200, world.engines.reference(other, at))

    progress = await world.hand_over()

    assert (progress.handed_over, progress.failed) == (0, 1)
    assert not world.engines.legs_of("b")


async def test_a_drained_engine_that_is_gone_ends_it_at_once() -> None:
    world = World(NIXL, NIXL)
    world.warms(*range(30))
    world.engines.faults["a"] = raising(UpstreamError("http://a:8000: refused"))

    progress = await world.hand_over()

    assert (progress.state, progress.handed_over) == ("failed", 0)
    assert "refused" in progress.why
    assert len(world.engines.asked) <= MOVES
    assert world.fleet.suspected


async def test_an_engine_that_is_known_to_be_down_is_not_asked() -> None:
    world = World(NIXL, NIXL)
    world.warms(1)
    world.drained.healthy = False

    progress = await world.hand_over()

    assert (progress.state, progress.left) == ("failed", 1)
    assert not world.engines.asked


@pytest.mark.parametrize("error", [UpstreamError("refused"), UpstreamTimeoutError("late"), None])
async def test_what_one_engine_does_not_take_goes_to_another(error: UpstreamError | None) -> None:
    world = World(NIXL, NIXL, NIXL)
    prompts = world.warms(*range(8))
    world.engines.faults["b"] = always(500) if error is None else raising(error)

    progress = await world.hand_over()

    assert (progress.state, progress.handed_over) == ("done", 8 - progress.failed)
    assert len(world.engines.legs_of("b")) < STRIKES + MOVES_PER_TARGET
    found = [await world.matched(ids) for ids in prompts]
    assert sum(2 in holders for holders in found) == progress.handed_over


async def test_it_ends_when_no_engine_takes_anything() -> None:
    world = World(NIXL, NIXL)
    world.warms(*range(30))
    world.engines.faults["b"] = always(500)

    progress = await world.hand_over()

    assert (progress.state, progress.handed_over) == ("failed", 0)
    assert progress.failed + progress.left == 30


async def test_a_failure_here_and_there_ends_nothing() -> None:
    world = World(NIXL, NIXL)
    world.warms(*range(30))
    legs = iter(range(1000))
    world.engines.faults["b"] = lambda _: (500, b"") if next(legs) % 3 == 0 else None

    progress = await world.hand_over()

    assert (progress.state, progress.left) == ("done", 0)
    assert progress.handed_over > 20


FAULTS = ["", "", "", "500", "400", "refused", "late", "none", "other host"]


def faulty(world: World, faults: list[str]) -> Callable[[Endpoint, dict[str, Any]], Answer | None]:
    """Each leg has the next of these faults, then none."""
    left = iter(faults)

    def answer(at: Endpoint, asked: dict[str, Any]) -> Answer | None:
        fault, is_first = next(left, ""), asked["kv_transfer_params"]["do_remote_decode"]
        match fault:
            case "500" | "400":
                return int(fault), b"{}"
            case "refused":
                raise UpstreamError("refused")
            case "late":
                raise UpstreamTimeoutError("late")
            case "none" if is_first:
                return 200, b'{"kv_transfer_params": null}'
            case "other host" if is_first:
                return 200, world.engines.reference(asked, at, remote_host="evil")
        return None

    return answer


@settings(max_examples=50)
@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=30),
    num_others=st.integers(1, 3),
    seconds=st.sampled_from([3.0, 1e6]),
)
def test_whatever_fails_all_is_given_back_and_every_prefix_is_counted(
    faults: list[str], num_others: int, seconds: float
) -> None:
    world = World(*[NIXL] * (1 + num_others))
    prompts = world.warms(*range(8))
    fault = faulty(world, faults)
    for at in world.fleet.endpoints:
        world.engines.faults[at.engine] = partial(fault, at)

    progress = asyncio.run(world.hand_over(seconds))  # nothing booked, no reference used twice

    counted = progress.handed_over + progress.failed + progress.skipped + progress.left
    assert counted == len(prompts)
    assert progress.state in ("done", "failed", "out-of-time")
    if progress.state == "done":
        assert not progress.left
    found = [asyncio.run(world.matched(ids)) for ids in prompts]
    assert sum(len(holders) > 1 for holders in found) >= progress.handed_over


async def test_one_that_is_stopped_gives_everything_back() -> None:
    world = World(NIXL, NIXL)
    world.warms(*range(5))
    world.engines.pause = asyncio.Event()
    progress = Progress(HandOverState.RUNNING, ends_at=1e6)
    handing = asyncio.ensure_future(
        HandOver(world.drained, world.director, world.engines, progress, 5.0).run(world.kept)
    )
    while not world.engines.asked:
        await asyncio.sleep(0)

    handing.cancel()
    await asyncio.wait([handing])

    assert (progress.state, progress.left) == ("stopped", 5)
    assert world.fleet.at_once.total() == 0
    assert not world.director.matcher.overlay._bits


async def test_nothing_of_a_prompt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(NIXL, NIXL)
    ids = np.full(TOKENS, 987654, np.uint32)
    world.holds(0, ids, "s3cret-salt")
    world.uses(ids, "s3cret-salt")
    world.engines.faults["b"] = lambda asked: (400, json.dumps(asked).encode())

    progress = await world.hand_over()

    shown = caplog.text + msgspec.json.encode(progress).decode() + repr(world.kept)
    assert "a prefix of engine a:8000 was not handed over: engine b answered 400" in caplog.text
    assert "987654" not in shown
    assert "s3cret-salt" not in shown
    assert "remote_request_id" not in shown
