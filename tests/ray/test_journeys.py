"""Replicas are ranked as the gateway ranks engines, with what calls take given back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.integration.conftest import LONG, simulated, until
from tests.integration.test_ranks import RanksInFront

from inferway.model import Reason
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_ray.announced import AnnouncedReplica, announced
from inferway_ray.asked import AskedRequest, asked_of
from inferway_ray.journeys import Choice, Journeys
from inferway_ray.settings import router_settings
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel

MODEL = "smollm2"


def chat(text: str, model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": text}],
        **fields,
    }


def asked(body: dict[str, Any]) -> AskedRequest:
    found = asked_of(["/v1/chat/completions", [], msgspec.json.encode(body)], {})
    assert found is not None
    return found


class Deployment:
    """Simulated engines as a deployment's replicas, and the journeys of one router."""

    def __init__(
        self, engines: dict[str, SimulatedEngine], replicas: Sequence[str], journeys: Journeys
    ) -> None:
        self.engines = engines
        self.replicas = replicas
        self.journeys = journeys
        self._numbers = iter(range(10**6))

    async def choose(
        self, body: dict[str, Any], among: Sequence[str] | None = None
    ) -> Choice | None:
        names = self.replicas if among is None else among
        return await self.journeys.choose(asked(body), f"r{next(self._numbers)}", names)

    async def chosen(self, body: dict[str, Any], among: Sequence[str] | None = None) -> Choice:
        choice = await self.choose(body, among)
        assert choice is not None
        return choice

    async def answer(self, choice: Choice, body: dict[str, Any]) -> None:
        """As Ray would: the first replica takes the request, answers and ends."""
        replica = choice.replicas[0]
        self.journeys.routed(choice, replica)
        url = f"{self.engines[replica].url}/v1/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
            assert answer.status == 200
            self.journeys.begun(choice, answer.status)
            await answer.read()
        self.journeys.completed(choice.request_id, replica)

    def in_flight(self, replica: str) -> int:
        indexer = self.journeys.indexer
        assert indexer is not None
        engine = indexer.fleet.engine(replica)
        assert engine is not None
        return indexer.fleet.in_flight(engine)


StartDeployment = Callable[..., Awaitable[Deployment]]


@pytest.fixture(scope="session")
def renderer() -> Any:
    shared = Renderer()
    yield shared
    shared.close()


@pytest.fixture
async def start(renderer: Renderer) -> AsyncIterator[StartDeployment]:
    """start(names of replicas, how each announces itself, URLs of further ones,
    **request_router_kwargs)."""
    async with AsyncExitStack() as stack:
        root = str(prepare_smollm2())
        key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(root))

        async def started(
            names: Sequence[str] = ("a", "b"),
            announce: Callable[[str, SimulatedEngine], AnnouncedReplica] | None = None,
            engines: Mapping[str, str] | None = None,
            **settings: Any,
        ) -> Deployment:
            config = simulated()
            running = {}
            for name in names:
                model = RenderedModel(renderer, key, config.max_model_len)
                running[name] = await stack.enter_async_context(SimulatedEngine(config, model))
            given = router_settings({"scrape_seconds": 0.05, **settings})
            journeys = Journeys(given, lambda _: 0, renderer)
            stack.push_async_callback(journeys.close)
            told = announce or by_url
            replicas = [told(name, each) for name, each in running.items()]
            others = [announced(name, {"engine": url}, {}) for name, url in (engines or {}).items()]
            await journeys.set_replicas([*replicas, *others])
            return Deployment(running, [*running, *(engines or {})], journeys)

        yield started


def by_url(name: str, engine: SimulatedEngine) -> AnnouncedReplica:
    return announced(name, {"engine": engine.url}, {})


def as_ray_has_it(name: str, engine: SimulatedEngine) -> AnnouncedReplica:
    """An engine inside its replica, as Ray's LLM deployments announce it."""
    events = {
        "endpoint": engine.events_endpoint,
        "replay_endpoint": engine.replay_endpoint,
        "block_size": engine.config.block_size,
        "dp_rank": 0,
        "max_num_batched_tokens": 8192,
    }
    return announced(name, {}, {"kv_event_metadata": events})


async def held(deployment: Deployment, replica: str) -> bool:
    """Whether the router has heard of what the replica stores."""
    indexer = deployment.journeys.indexer
    assert indexer is not None
    engine = indexer.fleet.engine(replica)
    return engine is not None and indexer.fleet.table.num_blocks(engine) > 0


async def test_a_prompt_goes_where_it_is_held(start: StartDeployment) -> None:
    deployment = await start(("a", "b", "c"))
    first = await deployment.chosen(chat(LONG))
    holder = first.replicas[0]
    await deployment.answer(first, chat(LONG))
    await until(lambda: held(deployment, holder))

    again = await deployment.chosen(chat(LONG))

    assert again.replicas[0] == holder
    assert sorted(again.replicas) == ["a", "b", "c"]
    assert again.journey.record.reason is Reason.KV_AWARE
    assert again.targets[holder].matched_blocks > 0


async def test_replicas_without_http_are_known_by_what_they_announce(
    start: StartDeployment,
) -> None:
    model = {"id": MODEL, "root": str(prepare_smollm2())}
    deployment = await start(("a", "b"), as_ray_has_it, model=model)
    first = await deployment.chosen(chat(LONG))
    holder = first.replicas[0]
    await deployment.answer(first, chat(LONG))
    await until(lambda: held(deployment, holder))

    again = await deployment.chosen(chat(LONG))

    assert again.replicas[0] == holder
    assert again.targets[holder].matched_blocks > 0


async def test_without_a_model_replicas_without_http_are_left_to_ray(
    start: StartDeployment,
) -> None:
    deployment = await start(("a", "b"), as_ray_has_it)

    assert await deployment.choose(chat(LONG)) is None


async def test_ids_that_ray_has_made_match_the_chat_they_are_of(start: StartDeployment) -> None:
    deployment = await start()
    first = await deployment.chosen(chat(LONG))
    ids = next(iter(first.journey.matched.values()))[0].prompt.token_ids.tolist()
    holder = first.replicas[0]
    await deployment.answer(first, chat(LONG))
    await until(lambda: held(deployment, holder))

    direct = asked_of([chat(LONG)], {"request_token_ids": ids})
    assert direct is not None
    choice = await deployment.journeys.choose(direct, "direct", ["a", "b"])

    assert choice is not None
    assert choice.replicas[0] == holder
    assert choice.targets[holder].matched_blocks == choice.targets[holder].prompt_blocks > 0


async def test_only_replicas_that_ray_allows_are_chosen(start: StartDeployment) -> None:
    deployment = await start(("a", "b", "c"))

    choice = await deployment.chosen(chat(LONG), ["b"])

    assert choice.replicas == ["b"]


async def test_what_a_call_takes_is_given_back_when_it_ends(start: StartDeployment) -> None:
    deployment = await start(("a",))
    first, second = await deployment.chosen(chat("x")), await deployment.chosen(chat("y"))
    assert deployment.in_flight("a") == 2

    await deployment.answer(first, chat("x"))
    assert deployment.in_flight("a") == 1
    deployment.journeys.completed(second.request_id, "a")

    assert deployment.in_flight("a") == deployment.journeys.num_open == 0


async def test_the_replica_that_takes_a_call_is_the_one_that_is_booked(
    start: StartDeployment,
) -> None:
    deployment = await start()
    choice = await deployment.chosen(chat(LONG))
    best, other = choice.replicas

    deployment.journeys.routed(choice, other)

    assert deployment.in_flight(best) == 0
    assert deployment.in_flight(other) == 1
    # the refusal of the first comes late, as Ray tells it
    deployment.journeys.completed(choice.request_id, best)
    assert deployment.in_flight(other) == 1


async def test_calls_of_one_request_end_one_by_one(start: StartDeployment) -> None:
    """Ray gives all handle calls of a request the same internal id."""
    deployment = await start(("a",))
    one = await deployment.journeys.choose(asked(chat("x")), "same", ["a"])
    two = await deployment.journeys.choose(asked(chat("y")), "same", ["a"])
    assert one is not None
    assert two is not None

    deployment.journeys.completed("same", "a")
    assert deployment.in_flight("a") == 1
    deployment.journeys.completed("same", "a")

    assert deployment.in_flight("a") == 0


@pytest.mark.parametrize(
    "body",
    [chat("x", model="unknown"), {"model": MODEL, "messages": 5}, chat("x", max_tokens="many")],
)
async def test_a_request_that_engines_refuse_is_left_to_them(
    start: StartDeployment, body: dict[str, Any]
) -> None:
    deployment = await start()

    choice = await deployment.choose(body)

    assert choice is None or choice.replicas
    if choice is not None:
        deployment.journeys.drop(choice)
    assert deployment.journeys.num_open == 0


async def test_replicas_come_and_go(start: StartDeployment) -> None:
    deployment = await start(("a", "b"))
    engines = deployment.engines

    await deployment.journeys.set_replicas([by_url("b", engines["b"])])
    assert (await deployment.chosen(chat("x"))).replicas == ["b"]
    await deployment.journeys.set_replicas([])
    assert await deployment.choose(chat("x")) is None
    await deployment.journeys.set_replicas([by_url(name, each) for name, each in engines.items()])

    assert sorted((await deployment.chosen(chat("x"))).replicas) == ["a", "b"]


async def test_an_adapter_that_a_replica_has_loaded_is_a_model_of_its_engine(
    start: StartDeployment,
) -> None:
    def announce(name: str, engine: SimulatedEngine) -> AnnouncedReplica:
        told = as_ray_has_it(name, engine)
        return msgspec.structs.replace(told, adapters=("smollm2:fr",) if name == "b" else ())

    model = {"id": MODEL, "root": str(prepare_smollm2())}
    deployment = await start(("a", "b"), announce, model=model)

    choice = await deployment.chosen(chat(LONG, model="smollm2:fr"))

    assert choice.replicas == ["b"]


async def test_the_first_piece_of_an_answer_teaches_what_a_token_costs(
    start: StartDeployment,
) -> None:
    deployment = await start(("a",))
    choice = await deployment.chosen(chat(LONG, stream=True))

    await deployment.answer(choice, chat(LONG, stream=True))

    assert choice.journey.record.begun_at is not None
    assert choice.journey.closed


@asynccontextmanager
async def closing(journeys: Journeys) -> AsyncIterator[Journeys]:
    try:
        yield journeys
    finally:
        await journeys.close()


async def test_before_any_replica_has_announced_itself_ray_chooses() -> None:
    async with closing(Journeys(router_settings({}), lambda _: 0)) as journeys:
        await journeys.set_replicas([AnnouncedReplica("a")])

        assert await journeys.choose(asked(chat("x")), "r", ["a"]) is None


async def test_ranks_of_one_engine_are_one_replica_and_a_header(start: StartDeployment) -> None:
    ranks = list((await start(("0", "1"))).engines.values())
    async with RanksInFront(ranks).serving() as server:
        deployment = await start((), engines={"a": server.url})
        first = await deployment.chosen(chat(LONG))
        assert first.replicas == ["a"]
        (name, place), *_ = first.headers
        assert name == b"X-data-parallel-rank".lower()
        async with aiohttp.ClientSession() as http:
            url, headers = f"{server.url}/v1/chat/completions", {name.decode(): place.decode()}
            async with http.post(url, json=chat(LONG), headers=headers) as answer:
                assert answer.status == 200
        deployment.journeys.completed(first.request_id, "a")
        await until(lambda: held(deployment, "a"))

        again = await deployment.chosen(chat(LONG))

    assert again.headers == first.headers
    assert again.targets["a"].matched_blocks > 0
