"""A stream that a worker answers survives its engine, and moves if the hub is told to drain it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.workers.serving import (
    LONG,
    MODEL,
    Serving,
    serving,
    serving_of,
    simulated_by_a_process,
)

from inferway.simulator.replies import RECITED

CHAT = "/v1/chat/completions"
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": LONG}],
    "max_tokens": 600,
    "stream": True,
}
RECITING = ("--mode", "recite", "--inter-token-latency", "5ms")


@pytest.fixture
def drained(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, engine_flags=RECITING) as found:
        yield found


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Serving]:
    with ExitStack() as stack:
        logs = [tmp_path / f"engine{number}.log" for number in range(2)]
        engines = [stack.enter_context(simulated_by_a_process(log, *RECITING)) for log in logs]
        yield stack.enter_context(serving_of(tmp_path, engines))


def lines_of(served: Serving, *, kill: bool) -> list[str]:
    """Of a stream whose engine is killed, or drained, in the middle."""
    with client.open_stream(served.url + CHAT, BODY) as stream:
        name = stream.headers["x-inferway-engine"]
        lines = [stream.readline() for _ in range(40)]
        if kill:
            [victim] = [engine for engine in served.engines if engine.url.endswith(name)]
            assert isinstance(victim, Program)
            os.kill(victim.pid, signal.SIGKILL)
        else:
            client.post(f"{served.url}/admin/engines/{name}/drain?streams_after=0", b"")
        lines += stream
    return [line.decode().strip() for line in lines if line.strip()]


@pytest.mark.parametrize("trouble", ["killed", "drained"])
def test_the_other_engine_goes_on(trouble: str, request: pytest.FixtureRequest) -> None:
    reciting: Serving = request.getfixturevalue(trouble)
    lines = lines_of(reciting, kill=trouble == "killed")

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
