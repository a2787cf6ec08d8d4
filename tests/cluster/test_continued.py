"""A stream that a worker answers survives its engine, and moves if the hub is told to drain it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.cluster.serving import LONG, MODEL, Serving, serving_of, simulated_by_a_process
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until

from inferway_sim.replies import RECITED

CHAT = "/v1/chat/completions"
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": LONG}],
    "max_tokens": 600,
    "stream": True,
}
RECITING = ("--mode", "recite", "--inter-token-latency", "5ms")


@pytest.fixture
def reciting(tmp_path: Path) -> Iterator[Serving]:
    with ExitStack() as stack:
        logs = [tmp_path / f"engine{number}.log" for number in range(2)]
        engines = [stack.enter_context(simulated_by_a_process(log, *RECITING)) for log in logs]
        yield stack.enter_context(serving_of(tmp_path, engines))
        for engine in engines:
            with suppress(ProcessLookupError):
                os.kill(engine.pid, signal.SIGCONT)


def lose(served: Serving, name: str, how: str) -> None:
    """Lose the engine of that name, or drain it."""
    [engine] = [engine for engine in served.engines if engine.url.endswith(name)]
    assert isinstance(engine, Program)
    if how == "drained":
        client.post(f"{served.url}/admin/engines/{name}/drain?streams_after=0", b"")
    else:
        os.kill(engine.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)


def lines_of(served: Serving, how: str) -> list[str]:
    """Of a stream whose engine is lost in the middle."""
    with client.open_stream(served.url + CHAT, BODY) as stream:
        name = stream.headers["x-inferway-engine"]
        lines = [stream.readline() for _ in range(40)]
        lose(served, name, how)
        lines += stream
    return [line.decode().strip() for line in lines if line.strip()]


@pytest.mark.parametrize(
    "how", ["killed", "drained", pytest.param("frozen", marks=pytest.mark.slow)]
)
def test_the_other_engine_goes_on(reciting: Serving, how: str) -> None:
    lines = lines_of(reciting, how)

    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert lines[-1] == "data: [DONE]"
    assert RECITED.startswith(text)
    assert len(text) > 2000
    assert any(line.startswith(": x-inferway-continued") for line in lines)
    wait_until(
        lambda: reciting.metric("inferway_continued_streams_total", 'outcome="ok"') == 1,
        "the hub adds it up",
    )
