"""An engine is lost in the middle of a stream, and the client sees the answer of one engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from itertools import groupby
from typing import Any

import openai
import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.routing.continuing import MOST_BODY_BYTES
from inferway_sim.config import LatencyModel
from inferway_sim.engine import SimulatedEngine
from inferway_sim.replies import RECITED

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": LONG}]},
    COMPLETIONS: {"prompt": LONG},
}
MESSAGE = {"messages": [{"role": "user", "content": LONG}]}
TOKENS = 600
SLOW = LatencyModel(inter_token_latency=0.002)
SLOWER = LatencyModel(inter_token_latency=0.02)  # its stream is not over before it is drained


async def reciting(
    start_fleet: StartFleet, number: int = 3, latency: LatencyModel = SLOW, **settings: Any
) -> Fleet:
    """Engines that say the same long text."""
    engine = simulated(mode="recite", latency=latency)
    return await start_fleet([engine] * number, **settings)


async def stream(fleet: Fleet, path: str, **more: Any) -> AsyncGenerator[bytes]:
    """The answer's head as one line, and its events."""
    body = {
        "model": "smollm2",
        **BODIES.get(path, MESSAGE),
        "max_tokens": TOKENS,
        "stream": True,
        **more,
    }
    async with fleet.http.post(fleet.url + path, json=body) as answer:
        yield json.dumps({**answer.headers}).encode()
        async for line in answer.content:
            if line.strip():
                yield line


async def busy_engine(fleet: Fleet) -> SimulatedEngine:
    """The one that has the most requests of clients, as soon as one has any. (Probes ask, too.)"""
    counts: list[float] = []

    async def is_busy() -> bool:
        counts[:] = [
            await fleet.metric("inferway_engine_in_flight", engine=name_of(engine))
            for engine in fleet.engines
        ]
        return any(counts)

    await until(is_busy)
    return fleet.engines[counts.index(max(counts))]


def name_of(engine: SimulatedEngine) -> str:
    return engine.url.removeprefix("http://")


async def stop_the_busy_one(fleet: Fleet) -> None:
    """Cut off all that the engine answers which has the most requests."""
    await (await busy_engine(fleet)).stop()


async def whole(
    fleet: Fleet, path: str, lose_after: tuple[int, ...] = (), **more: Any
) -> list[bytes]:
    """The lines of an answer; the engine that streams is stopped after so many of them."""
    lines = []
    async for line in stream(fleet, path, **more):
        lines.append(line)
        if len(lines) in lose_after:
            await stop_the_busy_one(fleet)
    return lines


def told(lines: list[bytes]) -> list[Any]:
    return [json.loads(line[6:]) for line in lines[1:] if line.startswith(b"data: {")]


def text_of(lines: list[bytes]) -> str:
    choices = [choice for each in told(lines) for choice in each["choices"]]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        for choice in choices
    )


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("lost", [(2,), (3,), (60,), (150,)])
async def test_the_rest_comes_from_another_engine(
    start_fleet: StartFleet, path: str, lost: tuple[int, ...]
) -> None:
    fleet = await reciting(start_fleet)
    usage = {"include_usage": True}
    undisturbed = await whole(fleet, path, stream_options=usage)

    lines = await whole(fleet, path, lost, stream_options=usage)

    assert text_of(lines) == text_of(undisturbed) != ""
    events = told(lines)
    assert {(each["id"], each["created"], each["model"]) for each in events} == {
        (events[0]["id"], events[0]["created"], "smollm2")
    }
    ends = [choice["finish_reason"] for each in events for choice in each["choices"]]
    assert [end for end in ends if end] == ["length"]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    counted, right = events[-1]["usage"], told(undisturbed)[-1]["usage"]
    assert [counted[name] for name in counts] == [right[name] for name in counts]
    matched = int(json.loads(lines[0])["x-inferway-matched-blocks"])  # at the first engine
    reusable = min(matched, (counted["prompt_tokens"] - 1) // 16) * 16
    assert counted["prompt_tokens_details"] == {"cached_tokens": reusable}
    assert lines[-1] == b"data: [DONE]\n"
    assert sum(line.startswith(b": x-inferway-continued engine=") for line in lines) == len(lost)
    assert await fleet.metric("inferway_continued_streams_total", outcome="ok") == len(lost)
    assert await fleet.metric("inferway_kept_stream_bytes") == 0


async def test_a_rest_that_is_too_large_to_be_kept_follows_what_the_client_has(
    start_fleet: StartFleet,
) -> None:
    fleet = await reciting(start_fleet)
    undisturbed = await whole(fleet, CHAT)
    body = {"model": "smollm2", **MESSAGE, "max_tokens": TOKENS, "stream": True, "user": ""}
    user = "u" * (MOST_BODY_BYTES - len(json.dumps(body)) - 20)  # its rest has more than the most

    lines = await whole(fleet, CHAT, (60,), user=user)

    assert text_of(lines) == text_of(undisturbed) != ""
    assert len({each["id"] for each in told(lines)}) == 1
    assert await fleet.metric("inferway_continued_streams_total", outcome="ok") == 1


async def test_an_engine_that_says_messages_back_goes_on(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(mode="echo", latency=SLOWER)] * 3)

    lines = await whole(fleet, CHAT, (20,), max_tokens=None)

    assert text_of(lines) == LONG
    assert sum(line.startswith(b": x-inferway-continued") for line in lines) == 1


async def test_the_client_of_an_undisturbed_stream_sees_no_ids(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet, 1)

    (head, *lines) = await whole(fleet, CHAT)

    assert "return_token_ids" in json.loads(head)["x-inferway-edited"]
    assert not any(b'token_ids":[' in line for line in lines)
    plain = await reciting(start_fleet, 1, continue_streams=False)
    (head, *others) = await whole(plain, CHAT)
    assert "return_token_ids" not in json.loads(head).get("x-inferway-edited", "")
    assert [shape(line) for line in lines] == [shape(line) for line in others]


def shape(line: bytes) -> Any:
    if not line.startswith(b"data: {"):
        return line
    return {**json.loads(line[6:]), "id": "", "created": 0}


async def test_who_is_no_admin_is_told_nothing_of_it(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_ADMINS", "of admins")
    fleet = await reciting(start_fleet, admin_key_env="KEY_OF_ADMINS")
    fleet.admin = {"authorization": "Bearer of admins"}

    (head, *lines) = await whole(fleet, CHAT, (60,))

    assert "x-inferway-edited" not in json.loads(head)
    assert RECITED.startswith(text_of([head, *lines]))
    assert lines[-1] == b"data: [DONE]\n"
    assert not any(line.startswith(b":") for line in lines)


async def test_openais_client_gets_the_whole_text(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet)
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none") as people:
        pieces = []
        async for each in await people.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": LONG}],
            max_tokens=TOKENS,
            stream=True,
        ):
            pieces.append(each.choices[0].delta.content or "")
            if len(pieces) == 50:
                await stop_the_busy_one(fleet)

    text = "".join(pieces)
    assert RECITED.startswith(text)
    assert len(text) > 1000


async def test_a_chat_that_may_call_tools_goes_on(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    undisturbed = await whole(fleet, CHAT, tools=[tool])

    lines = await whole(fleet, CHAT, (100,), tools=[tool])

    assert text_of(lines) == text_of(undisturbed)
    assert any(line.startswith(b": x-inferway-continued") for line in lines)


async def test_a_text_of_its_own_length_comes_to_its_own_end(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet)

    lines = await whole(fleet, CHAT, (30,), max_tokens=None)

    assert text_of(lines) == RECITED


@pytest.mark.parametrize("lost", [(3,), (60,), (400,)])
async def test_messages_go_on_where_the_engine_has_our_tokens(
    start_fleet: StartFleet, lost: tuple[int, ...]
) -> None:
    fleet = await reciting(start_fleet)

    async def proven() -> bool:
        return all([await agrees(fleet, engine) for engine in fleet.engines])

    await until(proven)
    undisturbed = await whole(fleet, MESSAGES)

    lines = await whole(fleet, MESSAGES, lost)

    events, right = messages_in(lines), messages_in(undisturbed)
    texts = [
        "".join(each["delta"].get("text", "") for each in found if "delta" in each)
        for found in (events, right)
    ]
    assert texts[0] == texts[1] != ""
    kinds = [kind for kind, _ in groupby(each["type"] for each in events)]
    assert kinds == [kind for kind, _ in groupby(each["type"] for each in right)]
    made = [found[-2]["usage"]["output_tokens"] for found in (events, right)]
    assert made[0] == made[1] == TOKENS
    assert await fleet.metric("inferway_continued_streams_total", outcome="ok") == 1


async def agrees(fleet: Fleet, engine: SimulatedEngine) -> bool:
    return await fleet.metric("inferway_engine_proof", engine=name_of(engine), state="agrees") == 1


def messages_in(lines: list[bytes]) -> list[Any]:
    return [json.loads(line[6:]) for line in lines[1:] if line.startswith(b"data: ")]


async def test_where_nobody_is_left_the_client_hears_of_the_loss(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet, 1)

    lines = await whole(fleet, CHAT, (50,))

    assert b"data: [DONE]\n" not in lines
    assert "closed the connection" in told(lines)[-1]["error"]["message"]
    assert await fleet.metric("inferway_continued_streams_total", outcome="failed") == 1
    assert await fleet.metric("inferway_kept_stream_bytes") == 0


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"truncate_prompt_tokens": 30}, "truncate_prompt_tokens"),
        ({"return_token_ids": True}, "return_token_ids"),
    ],
)
async def test_a_request_whose_rest_would_be_another_ends_with_its_engine(
    start_fleet: StartFleet, more: Mapping[str, Any], name: str
) -> None:
    fleet = await reciting(start_fleet)

    lines = await whole(fleet, CHAT, (50,), **more)

    assert "error" in told(lines)[-1]
    assert await fleet.metric("inferway_continued_streams_total", outcome=name) == 1


async def test_a_stream_with_a_shape_and_one_of_another_kind_are_counted_too(
    start_fleet: StartFleet,
) -> None:
    fleet = await reciting(start_fleet)
    shape = {"response_format": {"type": "json_object"}}

    await whole(fleet, CHAT, (30,), **shape)
    await whole(fleet, "/v1/responses", (60,), input=LONG, max_output_tokens=TOKENS)

    for why in ("shape", "kind"):
        assert await fleet.metric("inferway_continued_streams_total", outcome=why) == 1


async def test_a_stream_that_loses_a_second_engine_is_given_up_and_its_request_refused(
    start_fleet: StartFleet,
) -> None:
    fleet = await reciting(start_fleet, 4)

    lines = await whole(fleet, CHAT, (20, 40))
    again = await fleet.post(
        CHAT, {"model": "smollm2", **BODIES[CHAT], "max_tokens": TOKENS, "stream": True}
    )

    error = told(lines)[-1]["error"]
    assert error["code"] == "engines_lost"
    assert "tried no more" in error["message"]
    assert again.status == 400
    assert again.body["error"]["code"] == "request_quarantined"
    assert await fleet.metric("inferway_continued_streams_total", outcome="too-often") == 1
    assert await fleet.metric("inferway_continued_streams_total", outcome="failed") == 1
    assert await fleet.metric("inferway_quarantined_requests") == 1
    assert await fleet.metric("inferway_quarantine_refusals_total") == 1


async def test_a_client_that_leaves_while_the_rest_is_asked_for_leaves_nothing(
    start_fleet: StartFleet,
) -> None:
    fleet = await reciting(start_fleet, latency=SLOWER)
    lines = stream(fleet, CHAT)
    await anext(lines)
    await stop_the_busy_one(fleet)
    await lines.aclose()

    async def at_rest() -> bool:
        kept = await fleet.metric("inferway_kept_stream_bytes")
        return kept == 0 and not any(engine.num_requests for engine in fleet.engines)

    await until(at_rest)


async def test_many_streams_go_on_at_once(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet)
    loss = asyncio.Event()

    async def one(number: int) -> str:
        lines = []
        prompt = f"{number} {LONG}"
        async for line in stream(fleet, COMPLETIONS, prompt=prompt):
            lines.append(line)
            if len(lines) == 40 and not loss.is_set():
                loss.set()
                await stop_the_busy_one(fleet)
        return text_of(lines)

    texts = await asyncio.gather(*[one(number) for number in range(12)])

    assert len(set(texts)) == 1
    assert RECITED.startswith(texts[0])
    assert await fleet.metric("inferway_continued_streams_total", outcome="ok") > 0


async def drain(fleet: Fleet, query: str) -> str:
    """Drain the engine that streams; return its name."""
    name = name_of(await busy_engine(fleet))
    assert (await fleet.post(f"/admin/engines/{name}/drain?{query}", b"")).status == 200
    return name


@pytest.mark.parametrize("path", BODIES)
async def test_what_a_drained_engine_streams_moves_after_its_grace(
    start_fleet: StartFleet, path: str
) -> None:
    fleet = await reciting(start_fleet, latency=SLOWER)
    undisturbed = await whole(fleet, path, max_tokens=100)

    lines, drained = [], ""
    async for line in stream(fleet, path, max_tokens=100):
        lines.append(line)
        if len(lines) == 5:
            drained = await drain(fleet, "streams_after=0")

    assert text_of(lines) == text_of(undisturbed)
    (comment,) = [line.decode() for line in lines if line.startswith(b": x-inferway-continued")]
    assert drained not in comment
    assert await fleet.metric("inferway_continued_streams_total", outcome="ok") == 1
    assert await fleet.metric("inferway_requests_total", outcome="ok") == 2


async def test_what_the_last_engine_streams_stays_when_it_is_drained(
    start_fleet: StartFleet,
) -> None:
    fleet = await reciting(start_fleet, 1, SLOWER)

    lines = []
    async for line in stream(fleet, CHAT, max_tokens=100):
        lines.append(line)
        if len(lines) == 5:
            await drain(fleet, "streams_after=0")

    assert lines[-1] == b"data: [DONE]\n"
    assert not any(line.startswith(b": x-inferway-continued") for line in lines)


async def test_a_drained_engine_that_is_taken_back_keeps_its_streams(
    start_fleet: StartFleet,
) -> None:
    fleet = await reciting(start_fleet, latency=SLOWER)

    lines = []
    async for line in stream(fleet, CHAT, max_tokens=200):  # for longer than the grace
        lines.append(line)
        if len(lines) == 5:
            name = await drain(fleet, "streams_after=3")
            await fleet.post(f"/admin/engines/{name}/resume", b"")

    assert lines[-1] == b"data: [DONE]\n"
    assert not any(line.startswith(b": x-inferway-continued") for line in lines)


async def test_no_number_of_seconds_is_refused(start_fleet: StartFleet) -> None:
    fleet = await reciting(start_fleet, 1, SLOWER)
    name = name_of(fleet.engines[0])

    answer = await fleet.post(f"/admin/engines/{name}/drain?streams_after=soon", b"")

    assert answer.status == 400
    assert "streams_after: 'soon' is no number of seconds" in answer.body["error"]["message"]
