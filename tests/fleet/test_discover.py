"""Asking a real HTTP server what it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from tests.fleet.servers import serving

from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.engine_client import MAX_PAGE_BYTES, EngineClient, StatusError
from inferway.fleet.engine_facts import EngineFacts, ModelCard, discover
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
    assert sorted(asked) == sorted([*HEALTHY, "/v1/structured/warm", "/server_info"])


BUSY = "vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n"
PAGE = "python_info 1\n" * 20 + BUSY
LOAD_PATH = (
    "/metrics/?name%5B%5D=vllm:num_requests_running&name%5B%5D=vllm:kv_cache_usage_perc"
    "&name%5B%5D=vllm:lora_requests_info"
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
