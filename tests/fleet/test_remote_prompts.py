"""Prompts that we cannot derive are rendered by engines, in time or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from tests.fleet.render_servers import RenderServer, chat_ids, running, text_ids
from tests.fleet.servers import until

from inferway.config import ModelSettings
from inferway.errors import RenderError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.remote_prompts import MAX_ASKING, MISSES, RemotePrompts, RemoteRenderers
from inferway.model import Reason, Tokenized
from inferway.openai_api.requests import (
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    PromptBody,
)
from inferway.prompts.remote_render_cache import MARGIN, QUARTER_SECONDS, as_ids
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource

NOON = 1_763_726_400.0 + 400
SOURCE = ModelSource("m", "org/m", ModelSettings())
LONG = 30.0  # seconds: a budget that no test waits for


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


class OwnPrompts(NoPrompts):
    """Renders chats of one message itself."""

    def within(self, contexts: object, rules: object) -> OwnPrompts:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:
        if isinstance(body, ChatRequest) and len(body.messages) == 1:
            return Tokenized([as_ids([1, 2, 3])])
        return await NoPrompts.tokenize(self, body)


class Remote:
    """A model that engines render, and those engines."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.clock = Clock()

    async def start(
        self,
        *servers: RenderServer,
        budget: float = LONG,
        own: PromptSource | None = None,
        names: Callable[[Engine], dict[str, str]] = lambda _: {SOURCE.key: "m"},
    ) -> RemotePrompts:
        for server in servers:
            await self._stack.enter_async_context(running(server))
        engines = [server.engine for server in servers]
        client = await self._stack.enter_async_context(EngineClient())
        renderers = RemoteRenderers(engines, client, names, budget, wall_clock=self.clock)
        self._stack.push_async_callback(renderers.close)
        own = own or NoPrompts(Reason.NO_TOKENIZER, "no tokenizer")
        prompts = renderers.around(SOURCE, own)
        assert isinstance(prompts, RemotePrompts)
        return prompts


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    async with AsyncExitStack() as stack:
        yield Remote(stack)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(*contents: Any, **fields: Any) -> ChatRequest:
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": c} for i, c in enumerate(contents)
    ]
    return ChatRequest(model="m", messages=messages, **fields)


def ids_of(body: ChatRequest) -> list[int]:
    return chat_ids({"messages": body.messages})


async def refusal(prompts: RemotePrompts, body: PromptBody) -> str:
    """The reason that it is routed by load."""
    with pytest.raises(RenderError) as e:
        await prompts.tokenize(body)
    return e.value.reason


async def test_an_engine_renders_what_we_cannot(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)

    found = await prompts.tokenize(chat("Hi"))

    assert found.reason is Reason.REMOTE
    assert [ids.tolist() for ids in found.token_ids] == [ids_of(chat("Hi"))]
    assert server.rendered == [{"model": "m", "messages": [user("Hi")]}]


async def test_what_we_can_render_no_engine_is_asked_for(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server, own=OwnPrompts(Reason.OWN_RENDERER, "in code"))

    mine, theirs = await prompts.tokenize(chat("Hi")), await prompts.tokenize(chat("a", "b", "c"))

    assert (mine.reason, theirs.reason) == (Reason.KV_AWARE, Reason.REMOTE)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "reason", [Reason.TOKENIZER_LOADING, Reason.REQUEST_TEMPLATE, Reason.MEDIA, Reason.OUR_FAULT]
)
async def test_nor_for_what_is_no_engines_affair(remote: Remote, reason: Reason) -> None:
    server = RenderServer()
    prompts = await remote.start(server, own=NoPrompts(reason, "why"))

    assert await refusal(prompts, chat("Hi")) == reason
    assert server.asked == []


async def test_with_no_budget_no_engine_is_ever_asked() -> None:
    own = NoPrompts(Reason.NO_TOKENIZER, "no tokenizer")

    assert RemoteRenderers([], EngineClient(), lambda _: {}, 0.0).around(SOURCE, own) is own


async def test_texts_are_rendered_too(remote: Remote) -> None:
    prompts = await remote.start(RenderServer())

    found = await prompts.tokenize(CompletionRequest(model="m", prompt=["one", "two"]))

    assert [ids.tolist() for ids in found.token_ids] == [text_ids("one"), text_ids("two")]
    assert found.reason is Reason.REMOTE


@pytest.mark.parametrize(
    "body",
    [
        CompletionRequest(model="m", prompt=[5, 6]),
        CompletionRequest(model="m", prompt=[[5, 6]]),
        chat("Hi", kv_transfer_params={"prompt_token_ids": [5, 6]}),
    ],
)
async def test_ids_in_a_request_are_known_without_rendering(
    remote: Remote, body: PromptBody
) -> None:
    server = RenderServer()
    prompts = await remote.start(server)

    found = await prompts.tokenize(body)

    assert [ids.tolist() for ids in found.token_ids] == [[5, 6]]
    assert found.reason is Reason.KV_AWARE
    assert server.asked == []


async def test_embeddings_are_beyond_engines_too(remote: Remote) -> None:
    prompts = await remote.start(RenderServer())

    body = CompletionRequest(model="m", prompt="x", prompt_embeds="AAAA")

    assert await refusal(prompts, body) == Reason.MEDIA


async def test_the_same_request_is_rendered_once(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)

    first = await prompts.tokenize(chat("Hi"))
    again = await prompts.tokenize(chat("Hi", max_tokens=3))

    assert again.reason is Reason.REMOTE
    assert again.token_ids[0].tolist() == first.token_ids[0].tolist()
    assert len(server.rendered) == 1
    assert prompts.stats.prompts == {"rendered": 1, "cached": 1}


async def test_the_same_request_at_the_same_time_is_asked_for_once(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)

    found = await asyncio.gather(*(prompts.tokenize(chat("Hi")) for _ in range(10)))

    assert {each.reason for each in found} == {Reason.REMOTE}
    assert len(server.rendered) == 1


async def test_nothing_is_served_across_a_quarter_of_an_hour(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)
    await prompts.tokenize(chat("Hi"))
    server.render = lambda body: [*chat_ids(body), 2026, 11, 22]  # it writes the date

    remote.clock.now += QUARTER_SECONDS

    found = await prompts.tokenize(chat("Hi"))
    assert found.token_ids[0].tolist()[-3:] == [2026, 11, 22]


async def test_what_is_rendered_at_the_stroke_of_a_quarter_is_not_kept(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)
    remote.clock.now = NOON - NOON % QUARTER_SECONDS + 1

    await prompts.tokenize(chat("Hi"))
    await prompts.tokenize(chat("Hi"))

    assert len(server.rendered) == 2


async def test_one_tenants_rendering_is_not_served_to_another(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)

    for salt in ("a", "b", None):
        await prompts.tokenize(chat("Hi", cache_salt=salt))

    assert len(server.rendered) == 3
    assert "cache_salt" not in server.rendered[0]


async def test_a_late_answer_is_kept_for_the_next_time(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server, budget=0.02)
    server.may_answer.clear()

    assert await refusal(prompts, chat("Hi")) == Reason.REMOTE_LATE

    server.may_answer.set()
    await until(lambda: prompts.renderings.num_bytes > 0)
    assert (await prompts.tokenize(chat("Hi"))).reason is Reason.REMOTE
    assert prompts.stats.prompts == {"late": 1, "cached": 1}
    assert prompts.stats.questions == {(server.engine.name, "late"): 1}


async def grown(prompts: RemotePrompts) -> None:
    """A chat has been seen to grow, so that such chats' earlier turns are trusted."""
    await prompts.tokenize(chat("first chat"))
    await prompts.tokenize(chat("first chat", "its answer", "and then?"))


def hold(server: RenderServer, prompts: RemotePrompts) -> None:
    """From now on answers are late."""
    server.may_answer.clear()
    prompts.budget_seconds = 0.02


ONE, TWO = ("a second chat, longer",), ("a second chat, longer", "answer", "more?")


async def test_when_the_answer_is_late_earlier_turns_are_known(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)
    await grown(prompts)
    await prompts.tokenize(chat(*ONE))
    hold(server, prompts)

    found = await prompts.tokenize(chat(*TWO))

    start = found.token_ids[0].tolist()
    assert found.reason is Reason.REMOTE_PREFIX
    assert start == ids_of(chat(*TWO))[: len(start)]
    assert len(start) == len(ids_of(chat(*ONE))) - 2 - MARGIN  # [7, 7] asked for an answer


async def test_whether_a_served_start_was_right_is_counted_when_the_answer_comes(
    remote: Remote,
) -> None:
    server = RenderServer()
    prompts = await remote.start(server)
    await grown(prompts)
    await prompts.tokenize(chat(*ONE))
    hold(server, prompts)
    await prompts.tokenize(chat(*TWO))
    await prompts.tokenize(chat(*TWO))
    server.may_answer.set()
    await until(lambda: prompts.stats.right_prefixes == 2)

    server.render = lambda body: [9, *chat_ids(body)]
    server.may_answer.clear()
    await prompts.tokenize(chat(*TWO, "on", "on?"))
    server.may_answer.set()
    await until(lambda: prompts.stats.wrong_prefixes == 1)

    assert prompts.stats.prompts["prefix"] == 3  # type: ignore[index]


async def test_a_question_holds_no_more_places_than_there_are(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server, budget=0.02)
    server.may_answer.clear()

    reasons = await asyncio.gather(*(refusal(prompts, chat(str(i))) for i in range(MAX_ASKING + 3)))

    assert reasons.count(Reason.REMOTE_LATE) == MAX_ASKING
    assert reasons.count(Reason.REMOTE_FAILED) == 3
    await until(lambda: len(server.rendered) == MAX_ASKING)  # late is ours, not the engine's
    assert prompts.stats.prompts == {"late": MAX_ASKING, "busy": 3}


async def test_a_saturated_service_is_not_waited_for(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server, budget=LONG)
    breaker = prompts.renderers.breaker(server.engine)
    breaker.misses = MISSES
    server.may_answer.clear()

    reasons = [await refusal(prompts, chat(str(i))) for i in range(20)]  # at once, or never ends

    assert set(reasons) == {Reason.REMOTE_FAILED}
    await until(lambda: len(server.rendered) == 1)
    server.may_answer.set()
    await until(lambda: breaker.closed)
    assert (await prompts.tokenize(chat("now"))).reason is Reason.REMOTE


async def test_so_many_late_answers_open_the_breaker(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server, budget=0.005)
    for i in range(MISSES):
        server.may_answer.clear()
        await refusal(prompts, chat(str(i)))
        server.may_answer.set()
        await until(lambda: not prompts._flights)

    assert not prompts.renderers.breaker(server.engine).closed


async def test_engines_take_turns(remote: Remote) -> None:
    servers = [RenderServer(), RenderServer()]
    prompts = await remote.start(*servers)

    for i in range(6):
        await prompts.tokenize(chat(str(i)))

    assert [len(server.rendered) for server in servers] == [3, 3]


async def test_only_healthy_engines_that_serve_the_model_are_asked(remote: Remote) -> None:
    ill, other, good = RenderServer(), RenderServer(), RenderServer()
    prompts = await remote.start(
        ill,
        other,
        good,
        names=lambda engine: {} if engine is other.engine else {SOURCE.key: "m"},
    )
    ill.engine.healthy = False

    for i in range(4):
        await prompts.tokenize(chat(str(i)))

    assert [len(server.asked) for server in (ill, other, good)] == [0, 0, 4]


async def test_each_engine_is_asked_under_its_own_name_for_the_model(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server, names=lambda _: {SOURCE.key: "theirs"})

    await prompts.tokenize(chat("Hi"))

    assert server.rendered[0]["model"] == "theirs"


async def test_a_request_that_the_engine_refuses_is_not_kept_and_no_miss(remote: Remote) -> None:
    server = RenderServer(status=400)
    prompts = await remote.start(server)
    for _ in range(MISSES + 1):
        assert await refusal(prompts, chat("Hi")) == Reason.REMOTE_FAILED

    server.status = 200

    assert (await prompts.tokenize(chat("Hi"))).reason is Reason.REMOTE
    assert prompts.stats.prompts == {"refused": MISSES + 1, "rendered": 1}


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"{}", b'{"token_ids":[-1]}', b'{"token_ids":[4294967296]}', b'{"token_ids":"x"}'],
)
async def test_an_answer_that_is_no_rendering_is_a_failure(remote: Remote, answer: bytes) -> None:
    server = RenderServer(answer=answer)
    prompts = await remote.start(server)

    assert await refusal(prompts, chat("Hi")) == Reason.REMOTE_FAILED
    assert prompts.stats.questions == {(server.engine.name, "failed"): 1}


async def test_a_failing_engine_is_left_alone_for_a_while(remote: Remote) -> None:
    server = RenderServer(status=500)
    prompts = await remote.start(server)

    for i in range(MISSES + 10):
        await refusal(prompts, chat(str(i)))

    assert len(server.rendered) == MISSES


async def test_an_engine_that_is_gone_costs_no_answer() -> None:
    gone = RenderServer()
    async with running(gone):
        pass
    async with EngineClient() as client:
        renderers = RemoteRenderers([gone.engine], client, lambda _: {SOURCE.key: "m"}, LONG)
        prompts = renderers.around(SOURCE, NoPrompts(Reason.NO_TOKENIZER, "none"))
        assert isinstance(prompts, RemotePrompts)

        assert await refusal(prompts, chat("Hi")) == Reason.REMOTE_FAILED
        await renderers.close()


# engines without --enable-scale-out


async def proven(prompts: RemotePrompts) -> None:
    """The first request finds out that there is no render endpoint; then /tokenize is tried."""
    await refusal(prompts, chat("first"))
    await until(lambda: "proving" not in prompts.report()["rendered_by"].values())


async def test_tokenize_stands_in_once_it_gave_the_ids_of_the_engines_own_prompts(
    remote: Remote,
) -> None:
    server = RenderServer(scale_out=False)
    prompts = await remote.start(server)
    await proven(prompts)

    found = await prompts.tokenize(chat("Hi"))

    assert found.token_ids[0].tolist() == ids_of(chat("Hi"))
    assert server.asked[-1][0] == "/tokenize"
    assert prompts.report()["rendered_by"] == {server.engine.name: "tokenize"}


async def test_texts_are_asked_for_one_by_one(remote: Remote) -> None:
    server = RenderServer(scale_out=False)
    prompts = await remote.start(server)
    await proven(prompts)

    found = await prompts.tokenize(CompletionRequest(model="m", prompt=["one", "two"]))

    assert [ids.tolist() for ids in found.token_ids] == [text_ids("one"), text_ids("two")]


async def test_where_tokenize_differs_it_is_of_no_use(remote: Remote) -> None:
    server = RenderServer(scale_out=False, tokenize=lambda body: [1, *chat_ids(body)])
    prompts = await remote.start(server)
    await proven(prompts)

    assert await refusal(prompts, chat("Hi")) == Reason.REMOTE_FAILED
    assert prompts.report()["rendered_by"] == {server.engine.name: "nothing"}
    assert prompts.report()["why"].endswith("no engine renders them")


async def test_while_tokenize_is_being_proved_answers_are_late(remote: Remote) -> None:
    server = RenderServer(scale_out=False)
    prompts = await remote.start(server)

    assert await refusal(prompts, chat("Hi")) == Reason.REMOTE_LATE


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": "auto"}, True),
        ({"tools": TOOLS, "tool_choice": "none"}, False),
        ({"chat_template_kwargs": {"a": 1}, "add_generation_prompt": False}, True),
        ({"cache_salt": "s"}, True),
        ({"documents": [{"text": "x"}]}, False),
        ({"reasoning_effort": "low"}, False),
        ({"truncate_prompt_tokens": 9}, False),
    ],
)
async def test_tokenize_is_asked_only_for_what_it_looks_at(
    remote: Remote, fields: dict[str, Any], known: bool
) -> None:
    prompts = await remote.start(RenderServer(scale_out=False))
    await proven(prompts)

    body = chat("Hi", **fields)

    if known:
        assert (await prompts.tokenize(body)).reason is Reason.REMOTE
    else:
        assert await refusal(prompts, body) == Reason.REMOTE_FAILED


async def test_an_engine_that_has_lost_its_render_endpoint_is_looked_at_anew(
    remote: Remote,
) -> None:
    server = RenderServer()
    prompts = await remote.start(server)
    await prompts.tokenize(chat("Hi"))

    server.scale_out = False
    await proven(prompts)

    assert prompts.report()["rendered_by"] == {server.engine.name: "tokenize"}


# media

IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


async def test_no_engine_processes_an_image_for_routings_sake(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)
    await grown(prompts)
    body = chat("a chat without images yet", "yes", [{"type": "text", "text": "see"}, IMAGE])

    found = await prompts.tokenize(body)

    start = found.token_ids[0].tolist()
    assert found.reason is Reason.MEDIA_PREFIX
    assert len(start) > 0
    assert start == chat_ids({"messages": body.messages[:2]})[: len(start)]
    assert server.rendered[-1]["messages"] == body.messages[:1]


@pytest.mark.parametrize(
    "body",
    [chat([IMAGE]), chat("one", "two", [IMAGE], truncate_prompt_tokens=9), chat("x", "y", [IMAGE])],
    ids=["nothing before it", "the end is kept", "no such chat was seen to grow"],
)
async def test_a_chat_with_an_image_of_which_nothing_is_known(
    remote: Remote, body: ChatRequest
) -> None:
    prompts = await remote.start(RenderServer())

    assert await refusal(prompts, body) == Reason.MEDIA


# what is shown


async def test_ready_says_why_we_cannot_and_who_can(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)

    before = prompts.report()
    await prompts.tokenize(chat("Hi"))

    assert before["reason"] == Reason.NO_TOKENIZER
    assert before["why"] == "no tokenizer; rendered by engines"
    assert prompts.report()["rendered_by"] == {server.engine.name: "render"}


async def test_what_was_learned_stays_when_our_own_prompts_are_loaded_anew(
    remote: Remote,
) -> None:
    server = RenderServer()
    await remote._stack.enter_async_context(running(server))
    client = EngineClient()
    renderers = RemoteRenderers([server.engine], client, lambda _: {SOURCE.key: "m"}, LONG)

    first = renderers.around(SOURCE, NoPrompts(Reason.NO_TOKENIZER, "a"))
    second = renderers.around(SOURCE, NoPrompts(Reason.NO_TOKENIZER, "b"))

    assert first is second
    assert isinstance(first, RemotePrompts)
    assert first.report()["why"].startswith("b")


async def test_closing_gives_up_what_is_on_its_way(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server, budget=0.01)
    server.may_answer.clear()
    await refusal(prompts, chat("Hi"))

    await prompts.renderers.client.close()
    await prompts.renderers.close()

    assert await refusal(prompts, chat("Ho")) == Reason.REMOTE_FAILED


CALLED = MessagesRequest(
    model="m",
    system="Be brief.",
    messages=[
        {"role": "user", "content": "do"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"x": "1"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}]},
    ],
)


async def test_messages_are_rendered_as_the_chat_that_they_become(remote: Remote) -> None:
    server = RenderServer()
    prompts = await remote.start(server)

    made = await prompts.chat_of(CALLED)
    tokenized = await prompts.tokenize(made)

    assert [message["role"] for message in made.messages] == ["system", "user", "assistant", "tool"]
    assert made.messages[2]["tool_calls"][0]["function"]["arguments"] == '{"x": "1"}'
    assert tokenized.reason is Reason.REMOTE
    assert [int(id) for id in tokenized.token_ids[0]] == ids_of(made)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [user("a"), {"role": "system", "content": "b"}, user("c")]},
        {"thinking": {"type": "disabled"}},
    ],
)
async def test_of_messages_nothing_is_asked_that_a_template_we_do_not_have_decides(
    remote: Remote, fields: dict[str, Any]
) -> None:
    prompts = await remote.start(RenderServer())

    with pytest.raises(RenderError, match="which is not known here") as e:
        await prompts.chat_of(msgspec.structs.replace(CALLED, **fields))

    assert e.value.reason == Reason.MESSAGE_BLOCKS
