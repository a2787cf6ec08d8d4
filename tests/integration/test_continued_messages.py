"""A message of a model that thinks outlives its engine: the text and the thought that Anthropic's
client gets are those of one engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import anthropic
import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until
from tests.integration.program import Program, Start
from tests.integration.test_anthropic_client import prompt_tokens
from tests.integration.test_continued import agrees, stop_the_busy_one
from tests.thinking_model import thinking_smollm2

from inferway.config import EngineSettings
from inferway_sim.config import LatencyModel
from inferway_sim.replies import RECITED, THOUGHT

# As Claude Code asks.
BODY: Any = {
    "model": "smollm2",
    "max_tokens": 120,
    "messages": [{"role": "user", "content": LONG}],
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "extra_body": {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    },
}


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_smollm2(tmp_path_factory.mktemp("thinker"))


@pytest.fixture
async def fleet(start_fleet: StartFleet, thinker: Path) -> Fleet:
    """Three engines that think and say the same, and are known to make our tokens of a prompt."""
    engine = simulated(
        model=str(thinker), mode="recite", latency=LatencyModel(inter_token_latency=0.02)
    )
    fleet = await start_fleet([engine] * 3)

    async def proven() -> bool:
        return all([await agrees(fleet, engine) for engine in fleet.engines])

    await until(proven)
    return fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=fleet.url, api_key="none", max_retries=0
    ) as client:
        yield client


async def said(
    client: anthropic.AsyncAnthropic, fleet: Fleet, lost_after: int, **more: Any
) -> anthropic.types.Message:
    """The message, whose engine is stopped after so many events of its stream."""
    async with client.messages.stream(**{**BODY, **more}) as stream:
        number = 0
        async for _ in stream:
            number += 1
            if number == lost_after:
                await stop_the_busy_one(fleet)
        return await stream.get_final_message()


def blocks_of(message: anthropic.types.Message) -> list[tuple[str, str]]:
    return [
        (block.type, block.thinking if block.type == "thinking" else block.text)
        for block in message.content
        if block.type in ("thinking", "text")
    ]


@pytest.mark.parametrize(
    ("lost_after", "more"),
    [
        *[(number, {}) for number in (1, 3, 40, 100, 160)],
        (40, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (40, {"thinking": {"type": "disabled"}}),
        (40, {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_a_message_of_claude_code_goes_on(
    fleet: Fleet, client: anthropic.AsyncAnthropic, lost_after: int, more: dict[str, Any]
) -> None:
    body = {**BODY, **more}
    counted = {name: body[name] for name in ("model", "messages", "thinking", "output_config")}

    message = await said(client, fleet, lost_after, **more)

    [thought, text] = blocks_of(message)
    assert thought == ("thinking", THOUGHT)
    assert text[0] == "text"
    assert RECITED.startswith(text[1])
    count = await client.messages.count_tokens(**counted)
    assert prompt_tokens(message.usage) == count.input_tokens
    assert (message.usage.output_tokens, message.stop_reason) == (120, "max_tokens")
    assert await fleet.metric("inferway_continued_streams_total", outcome="ok") == 1


# --------------------------------------------------------------------- 40 losses, by processes

LOSSES = 40
AT_ONCE = 10  # streams, half of them at the engine that is lost
SEED = 7


class Engine:
    """A simulated engine in a process of its own, which comes back at its address."""

    def __init__(self, start: Start, thinker: Path) -> None:
        self._start = start
        self._flags = (
            *("simulate", "--model", str(thinker), "--served-model-name", "smollm2"),
            *("--mode", "recite", "--inter-token-latency", "20ms"),
        )
        self.begin("0")

    def begin(self, port: str) -> None:
        self._program: Program = self._start(*self._flags, "--port", port)
        self.url = self._program.read_until(r"simulated engine (http://\S+)")
        self.name = self.url.removeprefix("http://")

    def lose(self, how: signal.Signals) -> None:
        os.kill(self._program.process.pid, how)

    def come_back(self, how: signal.Signals) -> None:
        if how is signal.SIGSTOP:
            os.kill(self._program.process.pid, signal.SIGCONT)
        else:
            self._program.process.wait(timeout=30)
            self.begin(self.name.rpartition(":")[2])


@pytest.fixture
def engines(start: Start, thinker: Path) -> Iterator[list[Engine]]:
    engines = [Engine(start, thinker) for _ in range(2)]
    yield engines
    for engine in engines:  # else its process does not hear that it is to end
        with suppress(ProcessLookupError):
            engine.lose(signal.SIGCONT)


async def a_message(
    client: anthropic.AsyncAnthropic, number: int, has_said: Callable[[int], None]
) -> list[tuple[str, str]]:
    """What the model says; `has_said` is called with the number of events so far."""
    body = {**BODY, "messages": [{"role": "user", "content": f"{number}: {LONG}"}]}
    async with client.messages.stream(**body) as stream:
        count = 0
        async for _ in stream:
            has_said(count := count + 1)
        return blocks_of(await stream.get_final_message())


@pytest.mark.slow
async def test_40_messages_whose_engines_are_killed_or_frozen_at_any_moment_have_their_text(
    start_fleet: StartFleet, engines: list[Engine]
) -> None:
    fleet = await start_fleet(
        0, more=[EngineSettings(url=engine.url) for engine in engines], scheduling=None
    )
    ways = [signal.SIGKILL, signal.SIGSTOP]
    random, lost, texts = Random(SEED), dict.fromkeys(ways, 0), set()

    async def are_back() -> bool:
        states = [
            await fleet.metric(name, engine=engine.name, **labels)
            for engine in engines
            for name, labels in (
                ("inferway_engine_proof", {"state": "agrees"}),
                ("inferway_engine_up", {}),
            )
        ]
        return all(states)

    async with anthropic.AsyncAnthropic(
        base_url=fleet.url, api_key="none", max_retries=0
    ) as client:
        while sum(lost.values()) < LOSSES:
            await until(are_back, 60)
            way, engine = min(ways, key=lost.__getitem__), random.choice(engines)
            before = await continued(fleet)
            moment = random.randrange(2, 220)  # event of the stream that is the first to have it
            is_lost: list[Engine] = []

            def has_said(
                count: int,
                moment: int = moment,
                way: signal.Signals = way,
                engine: Engine = engine,
                is_lost: list[Engine] = is_lost,
            ) -> None:
                if count == moment and not is_lost:
                    is_lost.append(engine)
                    engine.lose(way)

            numbers = [random.randrange(10**9) for _ in range(AT_ONCE)]
            asked = [a_message(client, number, has_said) for number in numbers]
            texts |= {tuple(blocks) for blocks in await asyncio.gather(*asked)}
            engine.come_back(way)
            lost[way] += round(await continued(fleet) - before)
            print(f"{way.name}: {lost}")

    ((_, thought), (_, text)) = next(iter(texts))
    assert len(texts) == 1
    assert thought == THOUGHT
    assert RECITED.startswith(text)
    assert min(lost.values()) >= LOSSES / 4


async def continued(fleet: Fleet) -> float:
    return await fleet.metric("inferway_continued_streams_total", outcome="ok")
