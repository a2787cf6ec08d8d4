"""What somebody finds who looks around: GET /, /version, /ping, and paths that do not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from aiohttp import web
from tests.integration.conftest import StartFleet, answering
from tests.integration.recorders import Recorder, in_front_of

from inferway import __version__
from inferway.config import EngineSettings
from inferway.http.discovery_pages import near


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/models", "/v1/models"),
    ],
)
async def test_an_unknown_path_is_a_404_that_names_the_one_that_was_meant(
    path: str, meant: str
) -> None:
    async with in_front_of(Recorder()) as front:
        status, _, body = await front.ask(path, b"{}")

    error = msgspec.json.decode(body)["error"]
    assert (status, error["code"]) == (404, "path_not_found")
    assert error["message"] == (
        f"no path {path!r} here; did you mean {meant!r}? GET / lists all paths"
    )


async def test_a_path_like_none_is_a_404_that_says_where_all_are_listed() -> None:
    async with in_front_of(Recorder()) as front:
        status, _, body = await front.ask("/docs", method="GET")

    assert status == 404
    message = msgspec.json.decode(body)["error"]["message"]
    assert message == "no path '/docs' here; GET / lists all paths"


def test_a_path_is_compared_in_full_with_those_alone_of_which_it_has_one_half() -> None:
    known = ("/health", "/metrics", "/v1/models", "/v1/embeddings", "/tokenize")

    assert near("/nothing", known) == []
    assert near("/v1/modles", known) == ["/v1/models"]
    assert near("/v2/models", known) == ["/v1/models"]


async def test_the_root_lists_the_paths_with_their_methods() -> None:
    async with in_front_of(Recorder(), allow_paths=["GET /server_info"]) as front:
        status, _, body = await front.ask("/", method="GET")

    told = msgspec.json.decode(body)
    assert (status, told["server"], told["version"]) == (200, "inferway", __version__)
    assert told["paths"]["/v1/chat/completions"] == ["POST"]
    assert told["paths"]["/server_info"] == ["GET"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping_is_what_vllm_calls_health_too(method: str) -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        status, _, _ = await front.ask("/ping", method=method)

    assert status == 200
    assert engine.seen == []


async def test_the_version_is_the_engines_beside_our_own(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    async with fleet.http.get(f"{fleet.engines[0].url}/version") as answer:
        own = await answer.json()

    assert (await fleet.get("/version")).body == {**own, "inferway": __version__}


async def test_of_several_versions_the_oldest_is_told(start_fleet: StartFleet) -> None:
    async with answering(_versioned("0.9.1")) as old, answering(_versioned("0.32.0+cpu")) as new:
        fleet = await start_fleet([], [EngineSettings(url=new), EngineSettings(url=old)])

        told = (await fleet.get("/version")).body

    assert told["version"] == "0.9.1"


async def test_the_version_is_null_while_no_engine_tells_one() -> None:
    async with in_front_of(Recorder()) as front:
        _, _, body = await front.ask("/version", method="GET")

    assert msgspec.json.decode(body) == {"version": None, "inferway": __version__}


async def test_a_version_that_an_operator_lets_through_is_the_engines_answer() -> None:
    engine = Recorder(answer=b'{"version": "0.1"}')
    async with in_front_of(engine, allow_paths=["GET /version"]) as front:
        _, _, body = await front.ask("/version", method="GET")

    assert body == b'{"version": "0.1"}'


def _versioned(version: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def engine(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.path == "/version":
            return web.json_response({"version": version})
        return web.Response(status=404)

    return engine
