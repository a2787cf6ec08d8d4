"""When engines are asked, how often, and what stands in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from tests.fleet.servers import serving

from inferway.config import EngineSettings, ProbeSettings
from inferway.fleet.engine import Engine, ProofState
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.load import Load
from inferway.fleet.prober import ATTEMPTS, ENGINES_AT_ONCE, LivePrompt, Prober
from inferway.model import Endpoint, TokenIds, Tokenized
from inferway.openai_api.kinds import COUNT_TOKENS
from inferway.openai_api.requests import (
    CHAT,
    COMPLETION,
    ChatRequest,
    CountTokensRequest,
    PromptBody,
)
from inferway.prompts.fidelity import BODIES, PROBES
from inferway.prompts.scoring_input import Join, PoolingFacts, Scored
from inferway.prompts.served import ServedModel

AGREES, DIFFERS, UNPROVEN = ProofState.AGREES, ProofState.DIFFERS, ProofState.UNPROVEN

Reply = Callable[[str, dict[str, Any]], Awaitable[web.Response]]


class Lengths:
    """A prompt's only token is its number of messages, or 1; `drift` is added once for each
    rendering, as a clock would."""

    local = None

    def __init__(self, drift: int = 0) -> None:
        self.drift = drift
        self.rendered = 0

    def within(self, contexts: object, rules: object) -> Lengths:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:
        self.rendered += 1
        counts = [len(body.messages)] if isinstance(body, ChatRequest) else [1] * len(body.prompts)
        moved = [count + self.drift * self.rendered for count in counts]
        return Tokenized([np.array([count], dtype=np.uint32) for count in moved])

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return ChatRequest(messages=body.messages)


def ids_answer(path: str, body: dict[str, Any], more: int = 0) -> web.Response:
    """What an engine says that renders as `Lengths` does, give or take."""
    if path == CHAT:
        answer: dict[str, Any] = {"prompt_token_ids": [len(body["messages"]) + more]}
    else:
        answer = {
            "choices": [
                {"index": i, "prompt_token_ids": [1 + more]} for i in range(len(body["prompt"]))
            ]
        }
    return web.json_response(answer)


async def like_us(path: str, body: dict[str, Any]) -> web.Response:
    return ids_answer(path, body)


async def unlike_us(path: str, body: dict[str, Any]) -> web.Response:
    return ids_answer(path, body, more=1)


async def busy(path: str, body: dict[str, Any]) -> web.Response:  # noqa: ARG001
    return web.Response(status=503)


@dataclass
class Bench:
    """A prober and engines that reply as they are told."""

    reply: Reply = like_us
    asked: list[dict[str, Any]] = field(default_factory=list)
    changes: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.asked.append(msgspec.json.decode(await request.read()))
            return await self.reply(request.path, self.asked[-1])
        finally:
            self.at_once -= 1

    def changed(self) -> None:
        self.changes += 1


@dataclass
class Asked:
    """A bench with its parts."""

    bench: Bench
    prober: Prober
    engines: list[Engine]

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    def live(self, body: dict[str, Any]) -> LivePrompt:
        endpoint = Endpoint(self.engine.name, self.engine.url, 0)
        model = ServedModel("m", Lengths())
        path = CHAT if "messages" in body else COMPLETION
        return LivePrompt(model, endpoint, path, body, None)

    async def sample(self, body: dict[str, Any]) -> None:
        """Until the comparison is over."""
        done = asyncio.Event()
        self.prober.sample(self.live(body), done.set)
        await done.wait()

    async def until(self, state: ProofState, times: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.prober.counts.get(("join", state), 0) < times:
                await asyncio.sleep(0.001)


Start = Callable[..., Awaitable[Asked]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """start(number of engines, reply=…, settings of the probe); retries come at once."""
    async with AsyncExitStack() as stack:

        async def starting(
            num: int = 1,
            reply: Reply = like_us,
            *,
            pause: float = 0.001,
            sends_ids: bool = False,
            **settings: Any,
        ) -> Asked:
            bench = Bench(reply)
            url = await stack.enter_async_context(serving(bench.answer))
            engines = [
                Engine(EngineSettings(url=url, name=f"e{i}"), (), healthy=True) for i in range(num)
            ]
            client = await stack.enter_async_context(EngineClient())
            prober = Prober(
                ProbeSettings(**settings),
                {engine.name: engine for engine in engines},
                client,
                lambda _, model: model,
                bench.changed,
                retry_seconds=pause,
                recheck_seconds=pause,
                sends_ids=sends_ids,
            )
            prober.open()
            stack.push_async_callback(prober.close)
            return Asked(bench, prober, engines)

        yield starting


class LocalLengths(Lengths):
    """The same, made in this process."""

    @property
    def local(self) -> Any:  # type: ignore[override]
        return self

    async def tokenize_scores(self, scored: Scored, join: Join) -> list[TokenIds]:
        assert join is Join.APART
        return [np.zeros(1, np.uint32) for _ in (*scored.first, *scored.second)]


class TestMessages:
    """Of which an engine tells how many tokens they have."""

    @staticmethod
    def counting(more: int) -> Reply:
        async def reply(path: str, body: dict[str, Any]) -> web.Response:
            if path == COUNT_TOKENS:
                return web.json_response({"input_tokens": 1 + more})
            return ids_answer(path, body)

        return reply

    async def until(self, asked: Asked, state: ProofState) -> None:
        async with asyncio.timeout(10):
            while asked.engine.proofs["m"].messages is not state:
                await asyncio.sleep(0.001)

    async def test_they_are_asked_for_once_the_chats_agree(self, start: Start) -> None:
        asked = await start(reply=self.counting(0))

        asked.prober.join(asked.engine, "m", LocalLengths())
        await self.until(asked, AGREES)

        assert len(asked.bench.asked) == len(PROBES) + len(BODIES)
        assert asked.bench.changes == 1

    async def test_what_differs_concerns_messages_alone_until_it_is_gone(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        asked = await start(reply=self.counting(2))

        asked.prober.join(asked.engine, "m", LocalLengths())
        await self.until(asked, DIFFERS)
        proof = asked.engine.proofs["m"]
        told = proof.state, proof.fault, proof.messages_why
        problems = asked.engine.problems()
        asked.bench.reply = self.counting(0)
        await self.until(asked, AGREES)

        assert told == (AGREES, None, "in probe 1 it counts 3 tokens, and we 1")
        assert f"it renders messages to 'm' otherwise: {told[2]}" in problems
        assert proof.messages_why == ""
        lines = [line for line in caplog.messages if line.startswith("messages to model 'm' go by")]
        assert len(lines) == 1

    async def test_an_engine_without_the_path_proves_nothing(self, start: Start) -> None:
        async def reply(path: str, body: dict[str, Any]) -> web.Response:
            if path == COUNT_TOKENS:
                return web.Response(status=404)
            return ids_answer(path, body)

        asked = await start(reply=reply)

        asked.prober.join(asked.engine, "m", LocalLengths())
        await asked.until(AGREES)

        assert asked.engine.proofs["m"].messages is UNPROVEN
        assert asked.bench.changes == 0


class TestPooling:
    """Of an engine that answers no chats."""

    @staticmethod
    def pooling(num_tokens: int, status: int = 200) -> Reply:
        async def reply(path: str, body: dict[str, Any]) -> web.Response:
            if path == "/pooling":
                return web.Response(status=200 if body["task"] == "embed" else 400)
            if path != "/score":
                return web.Response(status=404)
            used = {"prompt_tokens": num_tokens * (1 + len(body["text_2"]))}
            return web.json_response({"usage": used}, status=status)

        return reply

    async def until(self, asked: Asked, facts: PoolingFacts) -> None:
        async with asyncio.timeout(10):
            while asked.engine.proofs["m"].pooling != facts:
                await asyncio.sleep(0.001)

    async def test_it_is_asked_how_it_joins_texts(self, start: Start) -> None:
        asked = await start(reply=self.pooling(1))

        asked.prober.join(asked.engine, "m", LocalLengths())
        await self.until(asked, PoolingFacts("embed", Join.APART))

        assert asked.engine.proofs["m"].state is UNPROVEN
        assert asked.bench.changes == 1
        assert asked.engine.probed

    async def test_what_was_known_is_not_believed_of_one_that_is_back(self, start: Start) -> None:
        asked = await start(reply=self.pooling(1))
        asked.prober.join(asked.engine, "m", LocalLengths())
        await self.until(asked, PoolingFacts("embed", Join.APART))
        asked.bench.reply = self.pooling(2)

        asked.prober.join(asked.engine, "m", LocalLengths())
        await self.until(asked, PoolingFacts("embed"))

        assert asked.bench.changes == 3

    async def test_it_is_asked_again_after_a_fault(self, start: Start) -> None:
        asked = await start(reply=self.pooling(1, status=503))
        asked.prober.join(asked.engine, "m", LocalLengths())
        await asked.until(UNPROVEN, times=2)
        asked.bench.reply = self.pooling(1)

        await self.until(asked, PoolingFacts("embed", Join.APART))


class TestJoining:
    async def test_an_engine_is_asked_each_probe_once_if_it_agrees(self, start: Start) -> None:
        asked = await start()

        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(AGREES)

        assert len(asked.bench.asked) == len(PROBES)
        assert asked.engine.proofs["m"].state is AGREES
        assert asked.bench.changes == 0

    async def test_what_differs_is_asked_again_before_it_counts(self, start: Start) -> None:
        asked = await start(reply=unlike_us, pause=600)

        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(DIFFERS)

        assert len(asked.bench.asked) == ATTEMPTS * len(PROBES)
        assert asked.bench.changes == 1

    async def test_a_clock_that_ticks_between_both_renderings_is_no_difference(
        self, start: Start
    ) -> None:
        late = iter([1, 0])

        async def ticking(path: str, body: dict[str, Any]) -> web.Response:
            return ids_answer(path, body, more=next(late, 0))

        asked = await start(reply=ticking)

        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(AGREES)

        assert len(asked.bench.asked) == len(PROBES) + 1

    async def test_a_difference_is_told_once_and_asked_for_until_it_is_gone(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "inferway.probe")
        asked = await start(reply=unlike_us)
        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(DIFFERS, times=3)

        asked.bench.reply = like_us
        await asked.until(AGREES)

        assert asked.engine.proofs["m"].fault is None
        assert asked.bench.changes == 2
        lines = [message for message in caplog.messages if "goes by load only" in message]
        assert len(lines) == 1
        assert "engine e0 renders other prompts than we do" in lines[0]
        assert caplog.messages[-1] == "model 'm' is rendered by engine e0 as by the gateway, now"

    async def test_no_verdict_is_asked_for_again(self, start: Start) -> None:
        asked = await start(reply=busy)
        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(UNPROVEN, times=2)
        assert asked.engine.proofs["m"].why == "/v1/chat/completions answered 503"

        asked.bench.reply = like_us
        await asked.until(AGREES)

        assert asked.bench.changes == 0

    async def test_that_an_engine_differs_stands_until_there_is_another_verdict(
        self, start: Start
    ) -> None:
        asked = await start(reply=unlike_us)
        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(DIFFERS)

        asked.bench.reply = busy
        await asked.until(UNPROVEN)

        assert asked.engine.proofs["m"].state is DIFFERS
        assert asked.engine.proofs["m"].fault is not None

    async def test_an_engine_too_old_to_tell_is_unproven_and_left_alone(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "inferway.probe")

        async def old(path: str, body: dict[str, Any]) -> web.Response:  # noqa: ARG001
            return web.json_response({"choices": [{"index": 0, "text": "x"}]})

        asked = await start(reply=old)
        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(UNPROVEN)
        await asyncio.gather(*asked.prober.asking)

        assert len(asked.bench.asked) == 1
        assert asked.engine.proofs["m"].fault is None
        assert "is it an older vLLM?" in asked.engine.proofs["m"].why
        assert "it is unproven how engine e0 renders" in caplog.text

    async def test_an_engine_that_refuses_everything_is_unproven(self, start: Start) -> None:
        async def refusing(path: str, body: dict[str, Any]) -> web.Response:  # noqa: ARG001
            return web.json_response({"error": {"message": "cache_salt: no"}}, status=400)

        asked = await start(reply=refusing, pause=600)
        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(UNPROVEN)

        assert asked.engine.proofs["m"].why == "it refuses every probe: cache_salt: no"

    async def test_a_few_engines_are_asked_at_a_time(self, start: Start) -> None:
        asked = await start(20)

        for engine in asked.engines:
            asked.prober.join(engine, "m", Lengths())
        await asked.until(AGREES, times=20)

        assert asked.bench.most_at_once <= ENGINES_AT_ONCE

    async def test_an_engine_that_is_gone_is_asked_no_more(self, start: Start) -> None:
        async def never(path: str, body: dict[str, Any]) -> web.Response:  # noqa: ARG001
            await asyncio.Event().wait()
            raise AssertionError

        asked = await start(reply=never)
        asked.prober.join(asked.engine, "m", Lengths())
        [task] = asked.prober.asking

        asked.prober.leave(asked.engine, "m")

        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_what_an_engine_no_longer_serves_is_forgotten(self, start: Start) -> None:
        asked = await start(reply=unlike_us)
        asked.prober.join(asked.engine, "m", Lengths())
        await asked.until(DIFFERS)

        asked.prober.forget_others(asked.engine, ["other"])

        assert asked.engine.proofs == {}

    async def test_nothing_is_asked_once_it_is_stopped(self, start: Start) -> None:
        asked = await start()
        asked.prober.stop()

        asked.prober.join(asked.engine, "m", Lengths())
        await asked.sample({"model": "m", "prompt": ["x"]})

        assert asked.bench.asked == []
        assert not asked.prober.may_ask(Endpoint("e0", asked.engine.url, 0))

    async def test_a_fault_of_ours_is_no_verdict(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Lengths):
            def within(self, contexts: object, rules: object) -> Broken:  # noqa: ARG002
                return self

            async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
                raise ZeroDivisionError(" ".join(["not", "for", "logs"]))

        asked = await start()
        asked.prober.join(asked.engine, "m", Broken())
        await asked.until(UNPROVEN)

        assert asked.engine.proofs["m"].why == "a fault of ours; it is in the log"
        assert "ZeroDivisionError" in caplog.text
        assert "not for logs" not in caplog.text


CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "secret"}], "n": 3}


class TestLivePrompts:
    async def test_a_copy_is_sent_that_costs_one_token(self, start: Start) -> None:
        asked = await start()

        await asked.sample(CHAT_BODY)

        assert asked.bench.asked == [
            {
                "model": "m",
                "messages": [{"role": "user", "content": "secret"}],
                "max_tokens": 1,
                "stream": False,
                "return_token_ids": True,
            }
        ]
        assert asked.prober.counts == {("live", AGREES): 1}

    async def test_a_difference_is_told_once_for_each_kind_of_request(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "inferway.probe")
        asked = await start(reply=unlike_us)

        for body in (CHAT_BODY, CHAT_BODY, {**CHAT_BODY, "documents": [{"text": "secret"}]}):
            await asked.sample(body)

        assert len(caplog.messages) == 2
        assert "a chat: token 0 is 1 here and 2 there (1 and 1 tokens)" in caplog.messages[0]
        assert "a chat with documents: token 0" in caplog.messages[1]
        assert "secret" not in caplog.text
        assert asked.prober.any_stray
        assert asked.prober.strayed(asked.live(CHAT_BODY).model, asked.live(CHAT_BODY).endpoint)

    async def test_one_difference_ends_the_sending_of_ids_for_good(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "inferway.probe")
        asked = await start(reply=unlike_us, sends_ids=True)
        await asked.sample(CHAT_BODY)
        await asked.sample(CHAT_BODY)
        asked.bench.reply = like_us

        while asked.engine.proofs["m"].fault is not None:
            await asked.sample(CHAT_BODY)

        assert asked.prober.differed == {"m"}
        [line] = [each for each in caplog.messages if "tokens_once" in each]
        assert line == (
            "model 'm': engines get no token ids of its prompts until the gateway is started anew,"
            " because engine e0 has rendered a live one otherwise (tokens_once)"
        )

    @pytest.mark.parametrize("body", [CHAT_BODY, {"model": "m", "prompt": ["a", "b"]}])
    async def test_it_takes_many_in_a_row_to_trust_again(
        self, start: Start, body: dict[str, Any]
    ) -> None:
        asked = await start(reply=unlike_us)
        await asked.sample(body)
        asked.bench.reply = like_us
        agreed = 0

        while asked.engine.proofs["m"].fault is not None:
            await asked.sample(body)
            agreed += 1

        assert agreed == 20
        assert asked.bench.changes == 2
        assert not asked.prober.any_stray

    @pytest.mark.parametrize("status", [400, 500])
    async def test_an_engine_that_does_not_take_the_copy_gives_no_verdict(
        self, start: Start, status: int
    ) -> None:
        async def not_now(path: str, body: dict[str, Any]) -> web.Response:  # noqa: ARG001
            return web.Response(status=status, text="{}")

        asked = await start(reply=not_now)

        await asked.sample(CHAT_BODY)

        assert asked.prober.counts == {("live", UNPROVEN): 1}
        assert asked.engine.proofs == {}

    async def test_what_cannot_be_copied_is_not_sent(self, start: Start) -> None:
        asked = await start()

        await asked.sample({**CHAT_BODY, "kv_transfer_params": {"do_remote_decode": True}})

        assert asked.bench.asked == []

    @pytest.mark.parametrize(
        ("waiting", "healthy", "may"), [(0, True, True), (1, True, False), (0, False, False)]
    )
    async def test_an_engine_is_asked_only_if_nobody_has_to_wait(
        self, start: Start, waiting: int, healthy: bool, may: bool
    ) -> None:
        asked = await start()
        asked.engine.load = Load({"running": 3, "waiting": waiting, "kv_usage": 0.5})
        asked.engine.healthy = healthy

        assert asked.prober.may_ask(Endpoint("e0", asked.engine.url, 0)) is may


async def test_what_an_engine_was_asked_is_noted_for_who_looks_for_its_blocks(
    start: Start,
) -> None:
    asked = await start()

    asked.prober.join(asked.engine, "m", Lengths())
    await asked.until(AGREES)

    assert len(asked.engine.probed) >= len(PROBES)
