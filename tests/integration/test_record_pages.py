"""GET /admin/requests, /admin/requests/ID and /admin/cache-breakers, and `inferway explain`."""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from typing import Any
from urllib.parse import quote

import pytest
from tests.fork_server import INFERWAY
from tests.integration.conftest import LONG, Fleet, StartFleet, until
from yarl import URL

REQUESTS = "/admin/requests"
RULES = "\n".join(f"Rule {i}: count to {i * i} before you answer, and say so." for i in range(40))


async def _told(*words: str) -> tuple[int, str]:
    """The exit status of `inferway explain` and all that it has printed."""
    process = await asyncio.create_subprocess_exec(
        *(str(INFERWAY), "explain", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "utf-8", "KEY": "secret"},
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def _say(fleet: Fleet, request_id: str, text: str, **fields: Any) -> str:
    """Sends a chat, and waits for its record. Returns the engine that has answered."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    answer = await fleet.post(
        "/v1/chat/completions", {**body, **fields}, **{"x-request-id": request_id}
    )
    assert answer.status == 200

    async def kept() -> bool:
        url = URL(f"{fleet.url}{REQUESTS}/{quote(request_id, safe='')}", encoded=True)
        async with fleet.http.get(url, headers=fleet.admin) as r:
            return r.status == 200

    await until(kept)
    return answer.headers.get("x-inferway-engine", "")


async def test_the_last_requests_are_listed_newest_first(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    for name in ("a", "b", "c"):
        await _say(fleet, name, f"{LONG} {name}")

    told = (await fleet.get(f"{REQUESTS}?limit=2")).body

    assert [each["id"] for each in told["requests"]] == ["c", "b"]
    assert (told["kept"], told["capacity"]) == (3, 10_000)
    assert 0 <= told["oldest_seconds"] < 60


async def test_a_record_says_what_each_candidate_held(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    engine = await _say(fleet, "a/b?c", LONG)

    url = URL(f"{fleet.url}{REQUESTS}/a%2Fb%3Fc", encoded=True)
    async with fleet.http.get(url) as answer:
        told = await answer.json()

    assert (told["id"], told["chosen"], told["num_candidates"]) == ("a/b?c", engine, 2)


async def test_an_id_that_is_gone_is_404_and_it_says_how_long_records_are_kept(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    await _say(fleet, "a", LONG)

    answer = await fleet.get(f"{REQUESTS}/nobody")

    assert answer.status == 404
    message = answer.body["error"]["message"]
    assert "'nobody'" in message
    assert "the last 10000 requests are kept (records.requests)" in message
    assert "the oldest came" in message


async def test_records_can_be_chosen(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    await _say(fleet, "a", LONG)
    await _say(fleet, "b", LONG, model="alias")

    async def ids(query: str) -> list[str]:
        return [each["id"] for each in (await fleet.get(f"{REQUESTS}?{query}")).body["requests"]]

    assert await ids("model=alias") == ["b"]
    assert await ids("outcome=ok") == ["b", "a"]
    assert await ids("outcome=error") == []
    assert set(await ids("slowest")) == {"a", "b"}
    assert await ids("slowest&model=alias") == ["b"]
    assert await ids("missed=evicted") == []


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "slowest=maybe", "size=3"])
async def test_a_wrong_query_names_what_is_wrong(start_fleet: StartFleet, query: str) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.get(f"{REQUESTS}?{query}")

    assert answer.status == 400
    assert answer.body["error"]["param"] == query.partition("=")[0]


@pytest.mark.parametrize("path", [REQUESTS, f"{REQUESTS}/a", "/admin/cache-breakers"])
async def test_these_paths_are_for_admins(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("KEY", "secret")
    fleet = await start_fleet(1, admin_key_env="KEY")

    assert (await fleet.get(path)).status == 401


async def test_readers_that_do_not_read_cost_requests_nothing(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    for number in range(30):
        await _say(fleet, f"r{number}", f"{LONG} {number}")
    writers = []
    for _ in range(40):
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.port)
        writer.write(b"GET /admin/requests?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3)
        writers.append(writer)

    answers = await asyncio.gather(*(fleet.chat(f"{n}") for n in range(20)))
    listed = await fleet.get(f"{REQUESTS}?limit=1")

    assert {answer.status for answer in answers} == {200}
    assert listed.status == 200
    for writer in writers:
        writer.close()


async def test_cache_breakers_are_found_and_told_without_text(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    minutes = count()

    async def found() -> bool:
        minute = next(minutes)
        now = f"{minute // 60:02}:{minute % 60:02}:11"
        await _say(fleet, f"r{minute}", f"It is {now}. {RULES}")
        return bool((await fleet.get("/admin/cache-breakers")).body["breakers"])

    await until(found, seconds=30)
    [told] = (await fleet.get("/admin/cache-breakers")).body["breakers"]
    assert (told["kind"], told["model"]) == ("time", "smollm2")
    assert told["requests"] >= 3
    assert told["tokens_a_day"] > told["lost_tokens"] > 0
    assert ":11" not in json.dumps(told)


async def test_texts_are_shown_to_admins_who_have_asked_for_them(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "secret")
    fleet = await start_fleet(1, admin_key_env="KEY", explain_text=True)
    fleet.admin = {"authorization": "Bearer secret"}
    await _say(fleet, "a", f"It is 07:16 now. {LONG}")
    await _say(fleet, "b", f"It is 08:48 now. {LONG}")

    async with fleet.http.get(f"{fleet.url}{REQUESTS}/b?text", headers=fleet.admin) as answer:
        told = (await answer.json())["text"]
    status, printed = await _told(fleet.url, "b", "--admin-key-env", "KEY", "--text")

    assert told["nearest"]["id"] == "a"
    assert told["nearest"]["kind"] == "time"
    assert "08:48" in told["before"] + told["behind"]
    assert status == 0
    assert "08:48" in printed


async def test_without_being_asked_for_no_text_is_kept(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await _say(fleet, "a", "a secret word")

    answer = await fleet.get(f"{REQUESTS}/a?text")

    assert answer.status == 400
    assert "--explain-text" in answer.body["error"]["message"]
    assert "secret" not in json.dumps((await fleet.get(f"{REQUESTS}/a")).body)


async def test_explain_tells_a_request_in_words_and_a_picture(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    await _say(fleet, "a", LONG)
    engine = await _say(fleet, "b", LONG)

    status, printed = await _told(fleet.url, "--last")

    assert status == 0
    assert printed.startswith("request b: /v1/chat/completions, model smollm2\n")
    assert f"It went to {engine}" in printed
    assert "█" in printed
    assert "·" in printed
    assert "Reachable" in printed


async def test_explain_draws_in_ascii_and_prints_json(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    await _say(fleet, "a", LONG)

    _, drawn = await _told(fleet.url, "a", "--ascii")
    _, as_json = await _told(fleet.url, "--slowest", "--json")

    assert drawn.isascii()
    assert json.loads(as_json)["id"] == "a"


async def test_explain_says_what_it_cannot_tell(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    none = await _told(fleet.url, "--missed")
    gone = await _told("nobody", fleet.url)
    both = await _told("a", fleet.url, "--last")

    assert none[0] == 2
    assert "no request has missed anything" in none[1]
    assert gone[0] == 2
    assert "no record of request 'nobody'" in gone[1]
    assert both[0] == 2
    assert "exactly one of ID" in both[1]
