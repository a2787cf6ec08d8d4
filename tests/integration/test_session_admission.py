"""The whole gateway with session-admission: a new session waits while the caches are full."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.integration.conftest import Answer, Fleet, StartFleet, simulated, until

SCHEDULING: dict[str, Any] = {
    "apiVersion": "llm-d.ai/v1",
    "kind": "EndpointPickerConfig",
    "plugins": [{"type": "expected-ttft"}, {"type": "session-admission"}],
}
SMALL = simulated(kv_cache_size=64, max_model_len=900)  # a cache of 1,024 tokens
PROMPT = "You read every file twice before you change a word of it. " * 40  # about 500 tokens


async def turn(fleet: Fleet, session: str, **headers: str) -> Answer:
    """A turn of a session that has a prompt of its own."""
    body = {
        "model": "smollm2",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": f"{session}. {PROMPT}"}],
    }
    return await fleet.post(
        "/v1/chat/completions", body, **{"x-claude-code-session-id": session, **headers}
    )


async def waiting(fleet: Fleet, number: int) -> None:
    async def wait() -> bool:
        return await fleet.metric("inferway_sessions_waiting") == number

    await until(wait)


async def test_a_new_session_waits_and_those_that_are_alive_do_not(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([SMALL], scheduling=SCHEDULING)

    assert (await turn(fleet, "first")).status == 200
    refused = await turn(fleet, "second", **{"x-request-timeout-ms": "300"})
    assert (refused.status, refused.body["error"]["code"]) == (429, "wait_too_long")
    assert refused.headers["Retry-After"] == "30"
    assert (await turn(fleet, "first")).status == 200
    assert (await fleet.chat("hello")).status == 200  # of no session
    assert await fleet.metric("inferway_sessions_alive", model="smollm2") == 1
    assert await fleet.metric("inferway_sessions_waited_total", outcome="too-long") == 1


async def test_a_client_that_goes_away_leaves_the_line(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([SMALL], scheduling=SCHEDULING)
    await turn(fleet, "first")

    asked = asyncio.ensure_future(turn(fleet, "second"))
    await waiting(fleet, 1)
    asked.cancel()

    await waiting(fleet, 0)


async def test_one_that_waits_goes_on_once_it_is_overdue(start_fleet: StartFleet) -> None:
    admission = {"type": "session-admission", "parameters": {"maxWaitSeconds": 1.0}}
    plugins = [{"type": "expected-ttft"}, admission]
    fleet = await start_fleet([SMALL], scheduling={**SCHEDULING, "plugins": plugins})
    await turn(fleet, "first")

    assert (await turn(fleet, "second")).status == 200
    assert await fleet.metric("inferway_sessions_waited_total", outcome="overdue") == 1


async def test_an_agent_that_names_no_session_has_one_by_its_messages(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([SMALL], scheduling=SCHEDULING)
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]

    async def agent(*contents: str, **headers: str) -> Answer:
        messages = [
            {"role": "assistant" if number % 2 else "user", "content": content}
            for number, content in enumerate(contents)
        ]
        body = {"model": "smollm2", "max_tokens": 8, "messages": messages, "tools": tools}
        return await fleet.post("/v1/chat/completions", body, **headers)

    assert (await agent(PROMPT)).status == 200
    refused = await agent("Another task. " + PROMPT, **{"x-request-timeout-ms": "300"})
    assert (refused.status, refused.body["error"]["code"]) == (429, "wait_too_long")
    assert (await agent(PROMPT, "Yes.", "Go on.")).status == 200
    assert await fleet.metric("inferway_sessions_alive", model="smollm2") == 1


async def test_sessions_stay_at_their_engines_and_fill_them_alike(start_fleet: StartFleet) -> None:
    middle = simulated(kv_cache_size=160, max_model_len=900)  # 2,560 tokens: of four sessions
    fleet = await start_fleet([middle, middle], scheduling=SCHEDULING)

    homes = [[(await turn(fleet, str(name))).engine for name in range(6)] for _ in range(3)]

    assert homes[1] == homes[2]
    assert sorted(Counter(homes[2]).values()) == [3, 3]


async def test_nobody_waits_while_caches_have_room(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(kv_cache_size=4_096)], scheduling=SCHEDULING)

    answers = await asyncio.gather(*[turn(fleet, str(number)) for number in range(8)])

    assert [answer.status for answer in answers] == [200] * 8
    assert await fleet.metric("inferway_sessions_alive", model="smollm2") == 8
    assert await fleet.metric("inferway_sessions_waited_total", outcome="room") == 0
