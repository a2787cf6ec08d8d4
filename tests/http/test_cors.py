"""Pages of other origins: who may ask, and what a browser is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.http.clients import connected, echo, get, post, serving
from tests.http.gateways import gateway
from tests.upstream.engines import answer, in_loop, running

from inferway.http.cors import Cors
from inferway.http.message import Request
from inferway.http.responder import Responder

HERE = b"https://app.example"


def preflight(origin: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return (
        b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: gw\r\norigin: %b\r\n"
        b"access-control-request-method: POST\r\n%b\r\n" % (origin, lines)
    )


@in_loop
async def test_a_preflight_is_answered_with_what_is_allowed() -> None:
    async with serving(Cors(echo, [HERE.decode()])) as server, connected(server) as client:
        told = await client.ask(
            preflight(HERE, b"access-control-request-headers: authorization, content-type")
        )

    assert (told.status, told.body) == (204, b"")
    assert told.values(b"access-control-allow-origin") == [HERE]
    assert told.values(b"vary") == [b"origin"]
    assert b"POST" in told.values(b"access-control-allow-methods")[0]
    assert told.values(b"access-control-allow-headers") == [b"authorization, content-type"]


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", HERE + b".evil", b"https://"])
@in_loop
async def test_other_origins_are_told_nothing(origin: bytes) -> None:
    async with serving(Cors(echo, [HERE.decode()])) as server, connected(server) as client:
        refused = await client.ask(preflight(origin))
        simple = await client.ask(get(b"/", b"origin: " + origin))

    assert refused.status == 403
    assert simple.status == 200  # a browser keeps it from the page
    assert not [n for a in (refused, simple) for n, _ in a.headers if n.startswith(b"access-")]


@in_loop
async def test_a_star_is_everybody() -> None:
    async with serving(Cors(echo, ["*"])) as server, connected(server) as client:
        asked = await client.ask(preflight(b"null"))
        simple = await client.ask(post(b"{}", b"origin: https://any.example"))

    assert asked.status == 204
    assert simple.values(b"access-control-allow-origin") == [b"*"]
    assert b"x-request-id" in simple.values(b"access-control-expose-headers")[0]


@in_loop
async def test_errors_are_told_to_the_page_too() -> None:
    async def failing(_: Request, __: Responder) -> None:
        raise RuntimeError

    async with serving(Cors(failing, ["*"])) as server, connected(server) as client:
        told = await client.ask(get(b"/", b"origin: " + HERE))

    assert (told.status, told.values(b"access-control-allow-origin")) == (500, [b"*"])


@in_loop
async def test_without_an_origin_nothing_is_said() -> None:
    async with serving(Cors(echo, ["*"])) as server, connected(server) as client:
        told = await client.ask(get())

    assert not [name for name, _ in told.headers if name.startswith(b"access-")]


@in_loop
async def test_an_engine_is_not_asked_for_its_opinion() -> None:
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.ask(post(b"{}", b"Origin: " + HERE))

    assert engine.seen[0].values(b"origin") == []


@in_loop
async def test_scripts_may_read_every_header_of_ours_that_the_docs_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    section = page.partition("## Headers of an answer")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(x-inferway-[a-z-]+)`", section))
    async with serving(Cors(echo, ["*"])) as server, connected(server) as client:
        told = await client.ask(get(b"/", b"origin: https://any.example"))

    exposed = told.values(b"access-control-expose-headers")[0].decode().split(", ")
    assert named == {name for name in exposed if name.startswith("x-inferway-")}
