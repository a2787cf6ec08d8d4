from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import zmq
from aiohttp import web

from inferway.config import EngineSettings
from inferway.doctor.engines import ask_engines
from inferway.doctor.facts import EngineReport

from .servers import serving

CACHE_CONFIG = 'vllm:cache_config_info{block_size="32",enable_prefix_caching="False"} 1.0\n'


OFFLOADING = "# TYPE vllm:kv_offload_store_bytes_total counter\n"


# As vLLM 0.32 says it.
NO_TOOLS = (
    '{"error": {"message": "\\"auto\\" tool choice requires --enable-auto-tool-choice and'
    ' --tool-call-parser to be set", "type": "BadRequestError", "param": null, "code": 400}}'
)


def engine(
    event_port: int,
    *,
    key: str | None = None,
    page: str = CACHE_CONFIG,
    chat: tuple[int, str] = (200, "{}"),
) -> web.Application:
    """Answers as vLLM does, for what a doctor asks."""

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def models(request: web.Request) -> web.Response:
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            return web.Response(status=401)
        return web.json_response({"data": [{"id": "m", "root": "/models/m"}]})

    async def sources(_: web.Request) -> web.Response:
        endpoint = f"tcp://*:{event_port}"
        return web.json_response({"0": {"endpoint": endpoint, "publisher": "zmq"}})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=page)

    async def complete(request: web.Request) -> web.Response:
        asked = await request.json()
        assert (asked["model"], asked["max_tokens"], len(asked["tools"])) == ("m", 1, 1)
        status, text = chat
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/kv_event_sources", sources)
    app.router.add_get("/metrics", metrics)
    return app


def ask(app: web.Application, **settings: str) -> EngineReport:
    async def run() -> EngineReport:
        async with serving(app) as url:
            (found,) = await ask_engines([EngineSettings(url=url, **settings)])  # type: ignore[arg-type]
        return found

    return asyncio.run(run())


@pytest.fixture
def event_port() -> Iterator[int]:
    """A real publisher's port."""
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        yield publisher.bind_to_random_port("tcp://127.0.0.1")


def test_an_engine_tells_what_it_is(event_port: int) -> None:
    found = ask(engine(event_port))

    assert (found.health, found.error) == (200, None)
    assert found.told is not None
    assert [model.name for model in found.told.models] == ["m"]
    assert found.told.block_size == 32


def test_prefix_caching_is_read_from_its_metrics(event_port: int) -> None:
    assert ask(engine(event_port)).prefix_caching is False


@pytest.mark.parametrize("page", ["", OFFLOADING])
def test_whether_it_offloads_is_read_from_its_metrics(event_port: int, page: str) -> None:
    assert ask(engine(event_port, page=CACHE_CONFIG + page)).offloads is bool(page)


@pytest.mark.parametrize(
    ("chat", "takes"),
    [
        ((200, "{}"), True),
        ((400, NO_TOOLS), False),
        ((400, '{"error": {"message": "the template takes no user"}}'), None),
        ((500, NO_TOOLS), None),
    ],
)
def test_whether_it_takes_tools_is_seen_from_a_chat_with_one(
    event_port: int, chat: tuple[int, str], takes: bool | None
) -> None:
    assert ask(engine(event_port, chat=chat)).takes_tools is takes


def test_a_publisher_answers_a_knock(event_port: int) -> None:
    (socket,) = ask(engine(event_port)).sockets

    assert (socket.endpoint, socket.error) == (f"tcp://127.0.0.1:{event_port}", None)


def test_a_closed_event_port_is_an_error() -> None:
    (socket,) = ask(engine(1)).sockets

    assert socket.error == "Connection refused"


def test_an_event_host_that_nobody_knows_is_an_error(event_port: int) -> None:
    (socket,) = ask(engine(event_port), events="tcp://nobody.invalid:5557").sockets

    assert socket.error is not None
    assert "name" in socket.error.lower()  # "Name or service not known", or another resolver's


def test_a_port_that_speaks_something_else_is_an_error() -> None:
    async def run() -> str | None:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example ready\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with serving(engine(port)) as url:
                (found,) = await ask_engines([EngineSettings(url=url)])
        return found.sockets[0].error

    error = asyncio.run(run())
    assert error is not None
    assert error.startswith("what answers is no ZeroMQ socket: it begins with b'220 mail")


def test_a_replay_socket_where_events_should_be_is_an_error() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as replay:
        port = replay.bind_to_random_port("tcp://127.0.0.1")
        (socket,) = ask(engine(port)).sockets

    assert socket.error == "what answers is a ROUTER socket; expected PUB or XPUB"


def test_a_replay_socket_answers_a_knock(event_port: int) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as replay:
        port = replay.bind_to_random_port("tcp://127.0.0.1")
        found = ask(
            engine(event_port),
            events=f"tcp://127.0.0.1:{event_port}",
            replay=f"tcp://127.0.0.1:{port}",
        )

    assert [(socket.what, socket.error) for socket in found.sockets] == [
        ("events", None),
        ("replay", None),
    ]


def test_sockets_given_by_hand_are_the_ones_tried(event_port: int) -> None:
    found = ask(engine(1), events=f"tcp://localhost:{event_port}")

    assert [(s.endpoint, s.error) for s in found.sockets] == [
        (f"tcp://localhost:{event_port}", None)
    ]


def test_a_wildcard_given_by_hand_is_not_tried(event_port: int) -> None:
    (socket,) = ask(engine(event_port), events="tcp://*:5557").sockets

    assert socket.bind


def test_nobody_there_is_an_error() -> None:
    (found,) = asyncio.run(ask_engines([EngineSettings(url="http://127.0.0.1:1")]))

    assert found.error is not None
    assert "http://127.0.0.1:1/health" in found.error


def test_an_unset_key_is_an_error_with_the_variables_name(event_port: int) -> None:
    found = ask(engine(event_port, key="secret"), api_key_env="NO_SUCH_VARIABLE")

    assert found.error is not None
    assert "'NO_SUCH_VARIABLE' is not set" in found.error


def test_the_engines_key_is_sent(event_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "secret")

    assert ask(engine(event_port, key="secret"), api_key_env="ENGINE_KEY").error is None
