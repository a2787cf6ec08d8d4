"""What an engine says of a prompt's ids, and what is no verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from inferway.errors import UpstreamError
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_token_ids import NoTokenIdsError, ask, parse_answer
from inferway.openai_api.requests import CHAT, COMPLETION
from inferway.prompts.fidelity import NotRendered, Outcome

Ask = Callable[[int, str], Awaitable[Outcome]]


def lists(outcome: Outcome) -> list[list[int]]:
    assert not isinstance(outcome, NotRendered)
    return [ids.tolist() for ids in outcome]


@pytest.fixture
async def ask_engine() -> AsyncIterator[Ask]:
    """ask_engine(status, body) of an engine that answers so."""
    runners = []

    async def asking(status: int, body: str) -> Outcome:
        async def answer(request: web.Request) -> web.Response:
            assert msgspec.json.decode(await request.read()) == {"model": "m"}
            assert request.headers["authorization"] == "Bearer key"
            return web.Response(status=status, text=body)

        app = web.Application()
        app.router.add_post(CHAT, answer)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
        headers = [(b"authorization", b"Bearer key")]
        async with EngineClient() as client:
            return await ask(client, url, headers, CHAT, {"model": "m"})

    yield asking
    for runner in runners:
        await runner.cleanup()


async def test_a_chat_is_one_prompt(ask_engine: Ask) -> None:
    outcome = await ask_engine(200, '{"choices": [{}], "prompt_token_ids": [1, 2]}')

    assert lists(outcome) == [[1, 2]]


def test_a_completion_has_its_prompts_in_their_order() -> None:
    raw = b"""{"choices": [{"index": 1, "prompt_token_ids": [3]},
                           {"index": 0, "prompt_token_ids": [1, 2]}]}"""

    assert lists(parse_answer(COMPLETION, raw)) == [[1, 2], [3]]


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "no system role", "type": "BadRequestError"}}',
        '{"object": "error", "message": "no system role"}',
    ],
)
async def test_a_refusal_has_its_reason(ask_engine: Ask, body: str) -> None:
    assert await ask_engine(400, body) == NotRendered("no system role")


async def test_a_refusal_may_have_no_reason(ask_engine: Ask) -> None:
    assert await ask_engine(422, "<html>") == NotRendered("no reason given")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, "", "answered 404"),
        (200, '{"choices": []}', "no prompt_token_ids in its answer; is it an older vLLM?"),
        (200, "<html>", "its answer cannot be read"),
        (200, '{"prompt_token_ids": [-1]}', "its answer cannot be read"),
    ],
)
async def test_an_engine_that_never_tells_is_no_oracle(
    ask_engine: Ask, status: int, body: str, message: str
) -> None:
    with pytest.raises(NoTokenIdsError, match=message):
        await ask_engine(status, body)


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_what_may_pass_is_no_verdict(ask_engine: Ask, status: int) -> None:
    with pytest.raises(UpstreamError, match=f"answered {status}") as e:
        await ask_engine(status, "")

    assert not isinstance(e.value, NoTokenIdsError)


async def test_an_engine_that_is_gone_is_no_verdict() -> None:
    async with EngineClient() as client:
        with pytest.raises(UpstreamError, match="/v1/chat/completions: "):
            await ask(client, "http://127.0.0.1:9", [], CHAT, {})
