"""Who sees the page, how one logs in to it, and what its stream costs others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.integration.conftest import StartFleet
from tests.integration.recorders import Front, Recorder, in_front_of

from inferway.routing.limits.callers import hash_of, new_key
from inferway_console.page.routes import static_files

HTML = {"accept": "text/html,*/*"}
PAGE = {"x_inferway_page": "1"}


@pytest.fixture
def admin_key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ADMIN_KEY", "s3cret")
    return "s3cret"


async def log_in(front: Front, key: str, **headers: str) -> tuple[int, str]:
    """(status, the cookie to send)."""
    body = msgspec.json.encode({"key": key})
    status, told, _ = await front.ask("/page/login", body, **{**PAGE, **headers})
    return status, told.get("set-cookie", "").partition(";")[0]


# ------------------------------------------------------------------------------- without a key


async def test_a_browser_gets_the_page_and_a_program_the_paths() -> None:
    async with in_front_of(Recorder()) as front:
        page = await front.ask("/", method="GET", **HTML)
        paths = await front.ask("/", method="GET")

    assert page[0] == paths[0] == 200
    assert page[1]["content-type"].startswith("text/html")
    assert b'"/admin/live":["GET"]' in paths[2]


async def test_every_file_comes_with_a_policy_and_is_not_sent_twice() -> None:
    async with in_front_of(Recorder()) as front:
        for name, file in static_files().items():
            status, told, body = await front.ask(f"/page/{name}", method="GET")
            again = await front.ask(f"/page/{name}", method="GET", if_none_match=told["etag"])

            assert (status, body) == (200, file.body)
            assert "'unsafe" not in told["content-security-policy"]
            assert "script-src 'self'" in told["content-security-policy"]
            assert again[0] == 304


@pytest.mark.parametrize("path", ["/page/nothing", "/page/..%2fapp.py", "/page/__init__.py"])
async def test_there_is_no_other_file(path: str) -> None:
    async with in_front_of(Recorder()) as front:
        assert (await front.ask(path, method="GET"))[0] in (400, 404)


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip"])
@pytest.mark.parametrize("path", ["/", "/page/main.js", "/admin/live"])
async def test_clients_of_a_proxy_do_not_see_it_without_a_key(header: str, path: str) -> None:
    async with in_front_of(Recorder()) as front:
        status, _, body = await front.ask(path, method="GET", **HTML, **{header: "10.1.2.3"})

    assert status == 403
    assert b"--admin-key-env" in body


async def test_who_comes_from_another_address_does_not_see_it_without_a_key() -> None:
    """The machine's own address, which is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            address = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but loopback")
    async with in_front_of(Recorder(), host="0.0.0.0") as front:
        url = f"http://{address}:{front.gateway.port}"
        outside = await front.ask(f"{url}/", method="GET", **HTML)
        inside = await front.ask("/", method="GET", **HTML)

    assert (outside[0], inside[0]) == (403, 200)


async def test_another_sites_page_gets_nothing() -> None:
    async with in_front_of(Recorder()) as front:
        for path in ("/", "/admin/live", "/page/main.js"):
            foreign = await front.ask(path, method="GET", origin="http://evil.example", **HTML)
            assert foreign[0] == 403


async def test_it_can_be_switched_off() -> None:
    async with in_front_of(Recorder(), ui=False) as front:
        root = await front.ask("/", method="GET", **HTML)
        rest = [
            (await front.ask(path, method="GET"))[0] for path in ("/page/main.js", "/admin/live")
        ]

    assert root[1]["content-type"] == "application/json"
    assert rest == [404, 404]


async def test_it_is_on_the_port_for_admins_alone() -> None:
    async with in_front_of(Recorder(), admin_port=0) as front:
        here = await front.ask("/", method="GET", **HTML)
        file = await front.ask("/page/main.js", method="GET")
        there = await front.ask(front.admin_url + "/", method="GET", **HTML)
        its_file = await front.ask(front.admin_url + "/page/main.js", method="GET")

    assert here[1]["content-type"] == "application/json"
    assert file[0] == 404
    assert there[1]["content-type"].startswith("text/html")
    assert its_file[0] == 200


# ---------------------------------------------------------------------------------- with a key


async def test_a_login_opens_what_is_for_admins(admin_key: str) -> None:
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        before = await front.ask("/admin/engines", method="GET")
        status, cookie = await log_in(front, admin_key)
        after = await front.ask("/admin/engines", method="GET", cookie=cookie)
        drained = await front.ask("/admin/engines/e0/drain", b"", cookie=cookie, **PAGE)

    assert (before[0], status, after[0], drained[0]) == (401, 200, 200, 200)
    assert admin_key not in cookie


async def test_a_wrong_key_opens_nothing(admin_key: str) -> None:
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        for key in ("", "wrong", admin_key + "x", "\ud800"):
            body = b'{"key": "\\ud800"}' if key == "\ud800" else msgspec.json.encode({"key": key})
            status, told, _ = await front.ask("/page/login", body, **PAGE)
            assert status in (400, 401)
            assert "set-cookie" not in told


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"key": 1}', b'{"key":"a","b":1}', b"\xff"])
async def test_a_login_that_is_none_is_refused(admin_key: str, body: bytes) -> None:
    del admin_key
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        assert (await front.ask("/page/login", body, **PAGE))[0] == 400


async def test_a_long_login_is_refused(admin_key: str) -> None:
    del admin_key
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        assert (await log_in(front, "k" * 10_000))[0] == 400


async def test_another_sites_page_can_neither_log_in_nor_change_anything(admin_key: str) -> None:
    evil = {"origin": "http://evil.example"}
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        _, cookie = await log_in(front, admin_key)
        drain, body = "/admin/engines/e0/drain", msgspec.json.encode({"key": admin_key})
        refused = [
            await front.ask("/page/login", body),  # a form cannot send the header
            await front.ask("/page/login", body, **PAGE, **evil),
            await front.ask("/page/logout", b"", cookie=cookie),
            await front.ask(drain, b"", cookie=cookie),
            await front.ask(drain, b"", cookie=cookie, **PAGE, **evil),
            await front.ask(drain, b"", cookie=cookie, sec_fetch_site="same-site", **PAGE),
            await front.ask("/admin/live", method="GET", cookie=cookie, **evil),
        ]

    assert all(status in (401, 403) for status, _, _ in refused), refused


async def test_who_logs_out_is_out(admin_key: str) -> None:
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        _, cookie = await log_in(front, admin_key)
        await front.ask("/page/logout", b"", cookie=cookie, **PAGE)
        after = await front.ask("/admin/engines", method="GET", cookie=cookie)

    assert after[0] == 401


async def test_the_cookie_stands_for_no_api_key_and_travels_to_no_engine(
    admin_key: str, tmp_path: Path
) -> None:
    key = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: a, hash: '{hash_of(key)}'}}]")
    engine = Recorder()
    async with in_front_of(engine, admin_key_env="ADMIN_KEY", api_keys=str(file)) as front:
        _, cookie = await log_in(front, admin_key)
        ask: dict[str, Any] = {"data": b'{"model": "m"}', "cookie": f"a=b; {cookie}"}
        without = await front.ask("/tokenize", **ask)
        with_key = await front.ask("/tokenize", authorization=f"Bearer {key}", **ask)

    assert (without[0], with_key[0]) == (401, 200)
    assert [seen.headers.get("cookie") for seen in engine.seen] == ["a=b"]


async def test_where_callers_have_keys_the_key_of_an_admin_logs_in_and_no_other(
    tmp_path: Path,
) -> None:
    plain, admin = new_key(), new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"keys: [{{name: a, hash: '{hash_of(plain)}'}},"
        f" {{name: b, hash: '{hash_of(admin)}', admin: true}}]"
    )
    async with in_front_of(Recorder(), api_keys=str(file)) as front:
        shown = await front.ask("/", method="GET", **HTML)
        _, _, session = await front.ask("/page/session", method="GET")
        statuses = [(await log_in(front, key))[0] for key in (plain, admin)]

    assert shown[0] == 200
    assert session == b'{"in":false,"wants_key":true}'
    assert statuses == [401, 200]


async def test_wrong_keys_are_heard_ten_times_a_minute(admin_key: str) -> None:
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        wrong = [(await log_in(front, "wrong"))[0] for _ in range(10)]
        body = msgspec.json.encode({"key": admin_key})
        status, told, answer = await front.ask("/page/login", body, **PAGE)
        rest = await front.ask("/admin/engines", method="GET", authorization="Bearer s3cret")

    assert wrong == [401] * 10
    assert status == 429
    assert 1 <= int(told["retry-after"]) <= 60
    assert f"heard in {told['retry-after']} s" in answer.decode()
    assert rest[0] == 429  # else guesses could go on there


async def test_wrong_keys_in_headers_are_heard_ten_times_a_minute(admin_key: str) -> None:
    guess = {"authorization": "Bearer wrong"}
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        paths = ("/admin/engines", "/admin/requests", "/admin/live", "/metrics")
        wrong = [(await front.ask(p, method="GET", **guess))[0] for p in paths * 3][:10]
        right = {"authorization": f"Bearer {admin_key}"}
        waits = await front.ask("/admin/engines", method="GET", **right)
        large = await front.ask("/query", b"[" * 500_000, **right)
        login = await log_in(front, admin_key)
        ready = await front.ask("/ready", method="GET", **right)
        without = await front.ask("/admin/engines", method="GET")
        chat = await front.ask("/v1/chat/completions", b'{"model": "m", "messages": []}', **guess)

    assert wrong == [401] * 10
    assert (waits[0], large[0], login[0]) == (429, 429, 429)
    assert 1 <= int(waits[1]["retry-after"]) <= 60
    assert b'"too_many_guesses"' in waits[2]
    assert b"e0" not in ready[2]
    assert without[0] == 401
    assert chat[0] != 429  # it may be an engine's key


async def test_whose_key_was_right_is_not_kept_out_by_others_at_its_address(
    admin_key: str,
) -> None:
    """As behind a proxy."""
    right = {"authorization": f"Bearer {admin_key}"}
    async with in_front_of(Recorder(), admin_key_env="ADMIN_KEY") as front:
        statuses = [(await front.ask("/admin/engines", method="GET", **right))[0]]
        for _ in range(11):
            wrong = await front.ask("/admin/engines", method="GET", authorization="Bearer wrong")
        statuses += [(await front.ask("/admin/engines", method="GET", **right))[0]]

    assert statuses == [200, 200]
    assert wrong[0] == 429


# --------------------------------------------------------------------------------- its stream


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in answer.content:
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield name, msgspec.json.decode(line[6:])


async def test_the_stream_has_the_fleet_and_then_what_changes(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    async with fleet.http.get(f"{fleet.url}/admin/live") as answer:
        told = aiter(events(answer))
        first = await anext(told)
        name = first[1]["engines"][0]["name"]
        await fleet.post(f"/admin/engines/{name}/drain", b"")
        async with asyncio.timeout(10):
            async for event in told:
                drained = [row["name"] for row in event[1]["engines"] if row["drained"]]
                if drained:
                    break

    assert first[0] == "whole"
    assert len(first[1]["engines"]) == 2
    assert (event[0], drained) == ("changes", [name])


async def test_who_does_not_read_costs_nobody_anything(start_fleet: StartFleet) -> None:
    """What waits for one who hangs is an event at most, and others are told at their pace."""
    fleet = await start_fleet(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.port, limit=1)
    writer.write(b"GET /admin/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await writer.drain()
    async with fleet.http.get(f"{fleet.url}/admin/live") as answer:
        told = aiter(events(answer))
        for _ in range(4):
            async with asyncio.timeout(10):
                await anext(told)
    servers = fleet.gateway._servers
    assert servers is not None
    assert servers.public is not None
    assert servers.public.buffered_bytes() < 1_000_000
    assert (await fleet.chat("Hello")).status == 200
    del reader
    writer.close()


async def test_a_gateway_that_ends_does_not_wait_for_those_who_look() -> None:
    async with in_front_of(Recorder()) as front, front.http.get(front.url + "/admin/live") as live:
        await anext(aiter(events(live)))
        async with asyncio.timeout(10):  # timeouts.drain is 30 s
            await front.gateway.close()
        assert await asyncio.wait_for(live.content.read(), 5) is not None


async def test_head_of_the_stream_ends() -> None:
    async with in_front_of(Recorder()) as front:
        status, told, body = await front.ask("/admin/live", method="HEAD")

    assert (status, told["content-type"], body) == (200, "text/event-stream", b"")
