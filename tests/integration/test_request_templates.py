"""Chat templates that clients send through the gateway: followed, refused, survived."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, until

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


async def test_a_clients_template_is_left_to_the_engine_unless_it_is_trusted(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(2)

    answer = await fleet.chat("Hi", chat_template=TEMPLATE)

    assert "--trust-request-chat-template is not set" in answer.body["error"]["message"]
    assert await fleet.metric("inferway_decisions_total", reason="request-template") == 1
    assert await fleet.metric("inferway_helper_jobs_total", work="request-templates") == 0


async def scores(fleet: Fleet, template: str, *contents: str) -> int:
    return max((await fleet.scores(*contents, chat_template=template)).values())


async def test_a_trusted_template_decides_what_is_found(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2, trust_request_chat_template=True)
    # What the engine caches is what this template makes of the chat, in tokens of its own.
    prompt = f"[user] {LONG}\n"
    await fleet.post("/v1/completions", {"model": "smollm2", "prompt": prompt, "max_tokens": 1})

    async def found() -> bool:
        return await scores(fleet, TEMPLATE, LONG) > 4

    await until(found)
    assert await scores(fleet, "{{ messages[0].content }}", LONG) == 0


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Roles must alternate!') }}", "refuses .* Roles must alternate!"),
        ("{{ ('x' * 10**9)|length }}", "more memory than 256 MiB"),
        ("{% for %}", "does not compile"),
        ("{{ messages[0].content.x.y }}", "fails on these messages: UndefinedError"),
        (ENDLESS, "took more than [25] s"),
    ],
)
async def test_a_template_that_fails_is_the_clients_fault_and_the_next_request_is_answered(
    start_fleet: StartFleet, template: str, words: str
) -> None:
    fleet = await start_fleet(1, trust_request_chat_template=True)

    answer = await fleet.chat("Hi", chat_template=template)

    error: dict[str, Any] = answer.body["error"]
    assert (answer.status, error["param"]) == (400, "chat_template")
    assert error["code"] == "chat_template_error"
    assert re.search(words, error["message"])
    assert (await fleet.chat("Hi")).status == 200
    assert await fleet.metric("inferway_helper_jobs_total", work="request-templates") > 0


async def test_ordinary_requests_are_answered_while_hostile_templates_are_rendered(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1, trust_request_chat_template=True)
    hostile = [
        asyncio.create_task(fleet.chat(str(i), chat_template=ENDLESS, max_tokens=1))
        for i in range(16)
    ]

    async def at_work() -> bool:
        return await fleet.metric("inferway_helper_jobs_total", work="request-templates") > 1

    await until(at_work)
    answered = 0
    while not all(task.done() for task in hostile):
        assert (await fleet.chat(f"ordinary {answered}", max_tokens=1)).status == 200
        answered += 1

    # Some were killed here; the others went by load only, and the engine trusts none of them.
    assert {(await task).status for task in hostile} == {400}
    assert answered > 16
    assert await fleet.metric("inferway_helper_kills_total", work="request-templates") >= 1
    assert await fleet.metric("inferway_decisions_total", reason="helper-busy") >= 1


async def test_a_client_that_leaves_does_not_take_the_helper_with_it(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1, trust_request_chat_template=True)
    leaving = asyncio.create_task(fleet.chat("Hi", chat_template=ENDLESS))

    async def at_work() -> bool:
        return await fleet.metric("inferway_helper_jobs_total", work="request-templates") > 1

    await until(at_work)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving

    async def killed() -> bool:
        return await fleet.metric("inferway_helper_kills_total", work="request-templates") == 1

    await until(killed, seconds=30)
    found = await fleet.scores("Hi", chat_template=TEMPLATE)
    assert found == {fleet.engines[0].url.removeprefix("http://"): 0}
