"""A program beside a replica: started, asked whether it is well, ended."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from inferway.errors import ConfigError, UpstreamError
from inferway_ray.observed import AnswerHead
from inferway_ray.programs import INFERWAY, EngineProgram, RunningProgram

SIMULATE = [*INFERWAY, "simulate", "--port", "$port", "--zmq-endpoint", "tcp://*:$events_port"]
HEADERS = ((b"content-type", b"application/json"), (b"host", b"elsewhere"))


@asynccontextmanager
async def running(command: Sequence[str], seconds: float = 60.0) -> AsyncIterator[RunningProgram]:
    program = RunningProgram(command, seconds, "127.0.0.1")
    try:
        yield program
    finally:
        await program.close()
        program.process.wait(60)


async def test_it_answers_at_its_url_until_it_ends() -> None:
    async with running(SIMULATE) as program:
        await program.answers()
        await program.check()

        program.stop()
        program.process.wait(60)

        with pytest.raises(UpstreamError, match=r"has ended with status"):
            await program.check()


async def test_one_that_ends_at_once_is_not_waited_for() -> None:
    async with running([sys.executable, "-c", "raise SystemExit(3)"]) as program:
        with pytest.raises(UpstreamError, match=r"has ended with status 3"):
            await program.answers()


async def test_one_that_never_answers_is_waited_for_so_long() -> None:
    async with running([sys.executable, "-c", "input()"], seconds=0.3) as program:
        with pytest.raises(UpstreamError, match=r"did not answer within 0\.3 s|has ended"):
            await program.answers()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/nowhere/vllm"], r"'/nowhere/vllm': there is no such program"),
        ([sys.executable, "$prot"], r"'\$prot': .*expected no \$ but in \$port, \$events_port"),
        ([sys.executable, "5 $"], r"write \$\$ for a plain one"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(command: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RunningProgram(command, 1.0, "127.0.0.1")


async def test_an_engines_answer_is_its_head_and_then_its_body() -> None:
    engine = EngineProgram(SIMULATE, 60.0, "127.0.0.1")
    metadata = await engine.record_replica_metadata()
    body = b'{"model": "HuggingFaceTB/SmolLM2-135M-Instruct", "prompt": "hi", "max_tokens": 1}'

    good = [piece async for piece in engine.answer("/v1/completions", HEADERS, body)]
    bad = [piece async for piece in engine.answer("/v1/completions", HEADERS, b"{")]
    await engine.check_health()

    assert metadata["engine"].startswith("http://127.0.0.1:")
    assert isinstance(good[0], AnswerHead)
    assert good[0].status == 200
    assert dict(good[0].headers)[b"content-type"].startswith(b"application/json")
    assert b"".join(piece for piece in good[1:] if isinstance(piece, bytes)).startswith(b'{"id"')
    assert isinstance(bad[0], AnswerHead)
    assert bad[0].status == 400
    await engine.close()
    assert engine.process.wait(60) == 0


async def test_an_engine_that_has_died_is_unhealthy() -> None:
    engine = EngineProgram(SIMULATE, 60.0, "127.0.0.1")
    await engine.record_replica_metadata()
    os.kill(engine.process.pid, 9)
    engine.process.wait(60)

    with pytest.raises(UpstreamError, match="has ended"):
        await engine.check_health()
    await engine.close()
