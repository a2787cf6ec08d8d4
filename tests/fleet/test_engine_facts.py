"""Asking a real HTTP server what it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.fleet.servers import serving

from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.engine_client import MAX_PAGE_BYTES, EngineClient, StatusError
from inferway.fleet.engine_facts import (
    FIRST_SECONDS,
    MAX_BASE_MODELS,
    MAX_CARD_FINDINGS,
    MAX_MODELS,
    MAX_RANKS,
    MAX_SOURCES_BYTES,
    MOST_SECONDS,
    EngineFacts,
    FactsAge,
    ModelCard,
    NoEngineError,
    discover,
    number_in,
    parse_cache_labels,
    parse_models,
    resolve_sources,
)
from inferway.fleet.event_source import EventSource

MODELS = '{"data": [{"id": "m", "root": "/m", "max_model_len": 4096}]}'
HEALTHY = {
    "/health": "",
    "/version": '{"version": "0.32.0"}',
    "/v1/models": MODELS,
    "/kv_event_sources": '{"0": {"endpoint": "tcp://*:5601"}}',
    "/metrics": 'vllm:cache_config_info{block_size="32"} 1.0\n',
}

Ask = Callable[..., Awaitable[EngineFacts]]
Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """serve(what it says by path, a status for some paths, a path it never answers, a list of
    the paths it is asked for) -> its URL."""
    stack = AsyncExitStack()

    async def start(
        says: Mapping[str, str],
        status: Mapping[str, int] | None = None,
        silent: str = "",
        asked: list[str] | None = None,
    ) -> str:
        async def answer(request: web.Request) -> web.Response:
            if asked is not None:
                asked.append(request.path)
            if request.path == silent:
                await asyncio.Event().wait()
            if request.path not in says:
                raise web.HTTPNotFound
            return web.Response(
                text=says[request.path], status=(status or {}).get(request.path, 200)
            )

        return await stack.enter_async_context(serving(answer))

    async with stack:
        yield start


@pytest.fixture
def ask(serve: Serve) -> Ask:
    """What is discovered of such a server."""

    async def asking(
        says: Mapping[str, str], status: Mapping[str, int] | None = None, silent: str = ""
    ) -> EngineFacts:
        url = await serve(says, status, silent)
        async with EngineClient(seconds=0.3 if silent else 10.0) as client:
            return (await discover(client, url, []))[0]

    return asking


async def test_an_engine_tells_models_sockets_and_block_size(ask: Ask) -> None:
    assert await ask(HEALTHY) == EngineFacts(
        models=(ModelCard("m", "/m", None, 4096),),
        sources=(EventSource(0, "tcp://127.0.0.1:5601", None),),
        block_size=32,
        findings=(),
        version="0.32.0",
    )


async def test_an_engine_with_our_plugin_has_a_path_that_wants_another_method(ask: Ask) -> None:
    path = "/v1/structured/warm"

    assert (await ask({**HEALTHY, path: ""}, {path: 405})).has_plugin
    assert not (await ask({**HEALTHY, path: ""}, {path: 401})).has_plugin
    assert not (await ask(HEALTHY)).has_plugin


async def test_its_metrics_are_read_once_and_given_along(serve: Serve) -> None:
    asked: list[str] = []
    url = await serve(HEALTHY, asked=asked)

    async with EngineClient() as client:
        _, metrics = await discover(client, url, [])

    assert metrics == HEALTHY["/metrics"]
    assert sorted(asked) == sorted([*HEALTHY, "/sleep", "/v1/structured/warm", "/server_info"])


BUSY = "vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n"
PAGE = "python_info 1\n" * 20 + BUSY
LOAD_PATH = (
    "/metrics/?name%5B%5D=vllm:num_requests_running&name%5B%5D=vllm:kv_cache_usage_perc"
    "&name%5B%5D=vllm:lora_requests_info"
    "&name%5B%5D=vllm:rl_weight_update_operation_duration_seconds_count"
)


@pytest.mark.parametrize(
    ("page", "narrow", "path"),
    [
        (PAGE, BUSY, LOAD_PATH),
        (PAGE, PAGE, "/metrics"),  # it ignores names, or leads back to the page
        (PAGE, "", "/metrics"),  # vLLM with several API servers
        (PAGE, BUSY.splitlines()[0], "/metrics"),
        (PAGE, None, "/metrics"),
        ("python_info 1\n" * 20, "", "/metrics"),
    ],
)
async def test_its_load_is_asked_for_alone_where_that_tells_as_much(
    ask: Ask, page: str, narrow: str | None, path: str
) -> None:
    behind_the_slash = {} if narrow is None else {"/metrics/": narrow}

    facts = await ask({**HEALTHY, "/metrics": page, **behind_the_slash})

    assert facts.load_path == path


async def test_an_engine_that_says_it_is_not_well_is_as_good_as_gone(ask: Ask) -> None:
    with pytest.raises(StatusError, match="/health answered 503"):
        await ask(HEALTHY, {"/health": 503})


async def test_a_server_without_a_health_path_is_taken_as_well(ask: Ask) -> None:
    facts = await ask({path: text for path, text in HEALTHY.items() if path != "/health"})

    assert facts.block_size == 32


async def test_a_path_that_an_engine_does_not_have_is_a_finding(ask: Ask) -> None:
    facts = await ask({"/v1/models": MODELS})

    assert (facts.sources, facts.block_size) == ((), None)
    assert "its KV events cannot be discovered" in facts.findings[0]
    assert "give block_size=N by hand" in "".join(facts.findings)


@pytest.mark.parametrize("silent", ["/kv_event_sources", "/metrics"])
async def test_a_question_without_an_answer_is_not_taken_for_a_no(ask: Ask, silent: str) -> None:
    with pytest.raises(UpstreamTimeoutError):
        await ask(HEALTHY, silent=silent)


async def test_what_is_no_engine_is_named_so(ask: Ask) -> None:
    with pytest.raises(UpstreamError, match="not a list of models"):
        await ask({"/v1/models": "<html>"})


async def test_models_without_end_are_no_engine_s(ask: Ask) -> None:
    with pytest.raises(UpstreamError, match=f"more than {MAX_PAGE_BYTES} bytes"):
        await ask({**HEALTHY, "/v1/models": " " * (MAX_PAGE_BYTES + 1)})


async def test_metrics_without_end_are_read_as_far_as_they_may_be(ask: Ask) -> None:
    more = "vllm:other 1\n" * (MAX_PAGE_BYTES // 12)

    assert (await ask({**HEALTHY, "/metrics": HEALTHY["/metrics"] + more})).block_size == 32


def sources(endpoint: str, replay: str | None = None, rank: int = 0) -> bytes:
    # as GET /kv_event_sources of vLLM 0.32 answers
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
        "buffer_steps": 10000,
        "hwm": 100000,
        "max_queue_size": 100000,
        "topic": "",
    }
    return msgspec.json.encode({str(rank): config})


def test_a_wildcard_is_the_engines_own_host() -> None:
    found, findings = resolve_sources("10.0.0.7", sources("tcp://*:5601", "tcp://*:5602"))

    assert found == (EventSource(0, "tcp://10.0.0.7:5601", "tcp://10.0.0.7:5602"),)
    assert findings == ()


def test_another_host_than_the_engines_is_refused_with_the_flag_to_say_otherwise() -> None:
    found, findings = resolve_sources("10.0.0.7", sources("tcp://10.9.9.9:5557"))

    assert found == ()
    assert "another host than the engine (10.0.0.7)" in findings[0]
    assert "events=tcp://*:5557" in findings[0]


def test_an_endpoint_without_wildcard_says_that_the_engine_may_connect() -> None:
    found, findings = resolve_sources("127.0.0.1", sources("tcp://127.0.0.1:5557"))

    assert found == (EventSource(0, "tcp://127.0.0.1:5557", None),)
    assert "let us bind: --engine URL,events=tcp://*:5557" in findings[0]


def test_a_refused_replay_socket_does_not_cost_the_events() -> None:
    found, findings = resolve_sources("h", sources("tcp://*:5601", "tcp://elsewhere:1"))

    assert found == (EventSource(0, "tcp://h:5601", None),)
    assert "its replay socket tcp://elsewhere:1" in findings[0]


@pytest.mark.parametrize(
    "endpoint", ["tcp://*", "udp://*:1", "tcp://h:0x1", "nonsense", "inproc://x"]
)
def test_a_socket_nobody_could_use_is_a_finding(endpoint: str) -> None:
    found, findings = resolve_sources("h", sources(endpoint))

    assert found == ()
    assert len(findings) == 1


@pytest.mark.parametrize("raw", [b"{}", b'{"0":{"enable_kv_cache_events":false}}'])
def test_an_engine_without_events_is_told_how_to_publish(raw: bytes) -> None:
    found, findings = resolve_sources("h", raw)

    assert found == ()
    assert "--kv-events-config" in findings[0]


def test_each_data_parallel_rank_is_a_source() -> None:
    raw = b'{"1":{"endpoint":"tcp://*:6"},"0":{"endpoint":"tcp://*:5"}}'

    found, _ = resolve_sources("h", raw)

    assert [(s.rank, s.endpoint) for s in found] == [(0, "tcp://h:5"), (1, "tcp://h:6")]


def test_an_adapter_names_its_parent() -> None:
    raw = b'{"object":"list","data":[{"id":"m","root":"/m","max_model_len":4096},'
    raw += b'{"id":"a","root":"/a","parent":"m"}]}'

    assert parse_models(raw) == (
        (ModelCard("m", "/m", None, 4096), ModelCard("a", "/a", "m", None)),
        (),
    )


@pytest.mark.parametrize(
    "bad", ['{"id":"b","root":5}', '{"root":"/b"}', "null", f"{'[' * 600}{']' * 600}"]
)
def test_a_card_that_cannot_be_read_costs_its_model_alone(bad: str) -> None:
    cards, findings = parse_models(f'{{"data":[{{"id":"m"}},{bad},{{"id":"n"}}]}}'.encode())

    assert [card.name for card in cards] == ["m", "n"]
    (finding,) = findings
    assert finding.startswith("/v1/models: data[1] cannot be read, and is not served: ")


def test_many_cards_that_cannot_be_read_are_few_warnings() -> None:
    raw = msgspec.json.encode({"data": [{"id": "m"}, *[{"id": 5}] * 1000]})

    assert len(parse_models(raw)[1]) == MAX_CARD_FINDINGS


def test_something_that_is_no_engine_is_named_so() -> None:
    with pytest.raises(NoEngineError, match="/v1/models is not a list of models"):
        parse_models(b"<html>")
    with pytest.raises(NoEngineError, match="/v1/models is not a list of models"):
        parse_models(b'{"data":[{"id":"\\ud800"}]}')
    with pytest.raises(NoEngineError, match=r"/v1/models: data\[0\] cannot be read"):
        parse_models(b'{"data":[5, 6]}')


@pytest.mark.parametrize(
    ("num_base", "num_adapters", "most"),
    [(MAX_BASE_MODELS + 1, 0, MAX_BASE_MODELS), (1, MAX_MODELS, MAX_MODELS)],
)
def test_more_models_than_an_engine_can_have_are_none(
    num_base: int, num_adapters: int, most: int
) -> None:
    cards = [{"id": f"m{n}"} for n in range(num_base)]
    cards += [{"id": f"a{n}", "parent": "m0"} for n in range(num_adapters)]

    with pytest.raises(NoEngineError, match=f"expected at most {most}; give the URL of one"):
        parse_models(msgspec.json.encode({"data": cards}))
    assert len(parse_models(msgspec.json.encode({"data": cards[:-1]}))[0]) == len(cards) - 1


def test_the_adapters_of_a_large_fleet_have_place_on_a_page() -> None:
    # as vLLM 0.32 tells one
    permission = {
        "id": f"modelperm-{'0' * 32}",
        "object": "model_permission",
        "created": 1_764_000_000,
        **dict.fromkeys(("allow_create_engine", "allow_sampling", "allow_logprobs"), False),
        **dict.fromkeys(("allow_search_indices", "allow_view", "allow_fine_tuning"), False),
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    path = "/mnt/models/adapters/" + 40 * "a"
    card = {"id": path, "object": "model", "created": 1_764_000_000, "owned_by": "vllm"}
    card |= {"root": path, "parent": "m", "max_model_len": None, "permission": [permission]}

    assert MAX_MODELS * len(msgspec.json.encode(card)) < MAX_PAGE_BYTES


def test_more_ranks_than_an_engine_can_have_are_none() -> None:
    one = msgspec.json.decode(sources("tcp://*:5557"))["0"]
    raw = msgspec.json.encode({str(rank): one for rank in range(MAX_RANKS + 1)})

    assert resolve_sources("h", raw) == (
        (),
        (
            f"/kv_event_sources names {MAX_RANKS + 1} ranks; expected at most {MAX_RANKS}; "
            "give the sockets by hand: --engine URL,events=tcp://HOST:PORT",
        ),
    )


def test_sources_without_end_are_not_read() -> None:
    found, (finding,) = resolve_sources("h", b" " * (MAX_SOURCES_BYTES + 1))

    assert found == ()
    assert f"expected at most {MAX_SOURCES_BYTES}; give the sockets by hand" in finding


def test_block_size_and_room_of_a_cache_are_labels_and_not_their_namesakes() -> None:
    metrics = (
        'vllm:cache_config_info{_block_size_resolved="True",block_size="32",engine="0",'
        'mamba_block_size="None",num_gpu_blocks="1456"} 1.0\n'
    )

    cache = parse_cache_labels(metrics)
    assert (number_in(cache, "block_size"), number_in(cache, "num_gpu_blocks")) == (32, 1456)
    assert parse_cache_labels("vllm:other 1\n") == {}
    cache = parse_cache_labels('vllm:cache_config_info{num_gpu_blocks="None"} 1.0\n')
    assert number_in(cache, "num_gpu_blocks") is None


def test_an_engine_of_which_nothing_is_known_is_asked_at_once() -> None:
    assert FactsAge().are_due(0.0)


def test_an_engine_that_has_not_worked_since_it_told_all_is_asked_seldom() -> None:
    age = FactsAge()
    age.told(0.0, is_same=False)

    assert not age.are_due(MOST_SECONDS)
    assert age.are_due(MOST_SECONDS + 1)


def test_an_engine_that_works_and_tells_the_same_is_asked_ever_more_seldom() -> None:
    age, now, pauses = FactsAge(), 0.0, []
    age.told(now, is_same=False)
    for _ in range(5):
        age.has_worked = True
        asked = now
        while not age.are_due(now):
            now += 1.0
        pauses.append(now - asked - 1.0)
        age.told(now, is_same=True)

    assert pauses == [10.0, 40.0, 160.0, 300.0, 300.0]


def test_an_engine_that_tells_something_else_is_asked_soon_again() -> None:
    age = FactsAge(asked=0.0, has_worked=True, holds=160.0)
    age.told(100.0, is_same=False)
    age.has_worked = True

    assert age.are_due(100.0 + FIRST_SECONDS + 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20), st.booleans())
def test_none_is_asked_sooner_or_later_than_it_says(
    told: list[tuple[bool, bool]], has_worked: bool
) -> None:
    age = FactsAge()
    for worked, is_same in told:
        age.has_worked = worked
        age.told(0.0, is_same=is_same)
    age.told(0.0, is_same=True)
    age.has_worked = has_worked

    assert age.are_due(MOST_SECONDS + 1)
    assert not age.are_due(FIRST_SECONDS)


@pytest.mark.parametrize("has_worked", [False, True])
def test_what_may_be_another_engine_is_asked_at_once(has_worked: bool) -> None:
    age = FactsAge(0.0, has_worked, 160.0)
    age.asked = None

    assert age.are_due(1.0)
