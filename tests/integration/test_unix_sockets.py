"""Unix sockets on both sides of a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.http.clients import Client, get, post

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings, load_settings, parse_engine
from inferway.doctor.engines import ask_engines
from inferway.errors import ConfigError
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.http.server import HttpServer

CHAT = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
MODELS = b'{"data":[{"id":"m","root":"m","max_model_len":100}]}'
SOURCES = b'{"0":{"endpoint":"tcp://*:5557","publisher":"zmq"}}'
HOSTS: set[bytes] = set()


async def engine(request: Request, responder: Responder) -> None:
    HOSTS.add(request.fields[b"host"])
    told = {"/v1/models": MODELS, "/kv_event_sources": SOURCES}
    known = request.path in (*told, "/health", "/v1/chat/completions")
    responder.send(200 if known else 404, JSON, told.get(request.path, b"{}"))


async def test_a_gateway_and_its_engine_are_met_at_sockets(tmp_path: Path) -> None:
    behind = HttpServer(engine, host=f"unix:{tmp_path}/Engine 1.sock")
    await behind.start()
    gateway = Gateway(
        ServeSettings(
            engines=[EngineSettings(url=behind.url)],
            host=f"unix:{tmp_path}/gateway.sock",
            scoring=False,
            access_log=None,
        )
    )
    await gateway.start()
    try:
        client = Client(*await asyncio.open_unix_connection(tmp_path / "gateway.sock"))
        ready = await client.ask(get(b"/ready"))
        answer = await client.ask(post(CHAT))
        client.close()
        await client.writer.wait_closed()
    finally:
        await gateway.close()
        await behind.stop(1)

    assert msgspec.json.decode(ready.body)["ready"]
    assert (answer.status, answer.body) == (200, b"{}")
    assert answer.values(b"x-inferway-engine") == [b"Engine 1.sock"]


async def test_the_doctor_asks_at_a_socket_and_looks_for_events_on_this_machine(
    tmp_path: Path,
) -> None:
    behind = HttpServer(engine, host=f"unix:{tmp_path}/engine.sock")
    await behind.start()
    try:
        [found] = await ask_engines([EngineSettings(url=behind.url)])
    finally:
        await behind.stop(1)

    assert (found.error, found.health) == (None, 200)
    assert [socket.endpoint for socket in found.sockets] == ["tcp://127.0.0.1:5557"]


async def test_a_socket_that_nobody_listens_on_is_named(tmp_path: Path) -> None:
    [found] = await ask_engines([EngineSettings(url=f"unix:{tmp_path}/none.sock")])

    assert found.error is not None
    assert f"{tmp_path}/none.sock" in found.error


def test_an_engine_at_a_socket_is_called_after_its_file() -> None:
    assert parse_engine("unix:/run/vllm/a.sock,block_size=16").label == "a.sock"


@pytest.mark.parametrize("url", ["unix:", "unix:run/a.sock", "unix:/run/vllm/"])
def test_a_socket_needs_a_whole_path(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected unix:/PATH/OF/A/SOCKET"):
        load_settings(None, {"engines": [EngineSettings(url=url)]})
