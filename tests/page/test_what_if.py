"""The program that replays recorded hours beside the gateway: one at a time, and bounded."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import ConflictError
from inferway.page.what_if import MOST_BYTES, WhatIfQuestion, WhatIfReplays, WhatIfState

SENTENCES = ["60 requests", "with 6 engines p90 is 2 s instead of 1 s"]
HEAD = {"about": [f"- {each}" for each in SENTENCES], "plan": {}}
ROWS = [
    {"table": "cases", "keys": {"case": "measured"}, "values": {"ttft_p50": [10.0], "engines": 4}},
    {"table": "cases", "keys": {"case": "six"}, "values": {"ttft_p50": [8.0, 10.0], "cost": 2.5}},
    {"table": "cases", "keys": {"case": "the model is off by"}, "values": {"ttft_p50": "+1%"}},
    {"table": "sizes", "keys": {"engines": 4}, "values": {}},
]
ANSWER = b"".join(msgspec.json.encode(line) + b"\n" for line in (HEAD, *ROWS)).decode()
WAIT = "import sys; sys.stderr.write('simulating\\n'); sys.stderr.flush(); sys.stdin.read()"

Make = Callable[..., WhatIfReplays]


@pytest.fixture
def replaying() -> Iterator[Make]:
    """replaying(the program's text): what runs it instead of inferway what-if."""
    made: list[WhatIfReplays] = []

    def make(program: str, **fields: Any) -> WhatIfReplays:
        command = [sys.executable, "-c", program]
        made.append(WhatIfReplays("/records", command=command, **fields))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ended(replays: WhatIfReplays) -> WhatIfState:
    """How it stands once its thread has ended."""
    assert replays._replay is not None
    replays._replay._thread.join(60)
    return replays.told()


def says(replays: WhatIfReplays, what: str) -> WhatIfState:
    """Waits until that is under way."""
    pause = threading.Event()
    for _ in range(6000):
        told = replays.told()
        if told.progress == what or told.state != "running":
            break
        pause.wait(0.01)
    assert told.progress == what, told
    return told


def test_what_it_prints_is_told(replaying: Make) -> None:
    replays = replaying(f"print({ANSWER!r}, end='')")
    assert replays.told().state == "idle"

    replays.ask(WhatIfQuestion())
    told = ended(replays)

    assert (told.state, told.message) == ("done", "")
    assert told.result is not None
    assert told.result.sentences == SENTENCES
    assert [case.name for case in told.result.cases] == ["measured", "six", "the model is off by"]
    assert [case.ttft_p50 for case in told.result.cases] == [10.0, 9.0, "+1%"]
    assert [case.cost for case in told.result.cases] == [None, 2.5, None]


@pytest.mark.parametrize("program", [f"print({ANSWER!r}, end='')", "raise SystemExit(3)"])
def test_once_it_is_over_its_seconds_are_what_it_has_taken(replaying: Make, program: str) -> None:
    now = 5.0
    replays = replaying(f"import sys; sys.stdin.read(1); {program}", clock=lambda: now)
    replays.ask(WhatIfQuestion())
    assert replays._replay is not None
    while (process := replays._replay._process) is None:
        threading.Event().wait(0.01)
    assert process.stdin is not None
    now = 8.5
    process.stdin.write(b"\n")
    process.stdin.flush()

    ended(replays)
    now = 100.0

    assert replays.told().seconds == 3.5


def test_while_it_runs_its_progress_is_told_and_nobody_else_may_ask(replaying: Make) -> None:
    replays = replaying(WAIT)
    replays.ask(WhatIfQuestion(engines=6))

    told = says(replays, "simulating")
    with pytest.raises(ConflictError, match="another question has been computed for"):
        replays.ask(WhatIfQuestion())

    assert (told.state, told.question) == ("running", WhatIfQuestion(engines=6))
    assert told.seconds >= 0


def test_who_stops_it_may_ask_again(replaying: Make) -> None:
    replays = replaying(WAIT)
    replays.ask(WhatIfQuestion())
    says(replays, "simulating")
    first = replays._replay
    assert first is not None

    replays.stop()
    assert replays.told().state == "idle"
    replays.ask(WhatIfQuestion())

    first.join()
    assert first.failed == "it was stopped"
    assert says(replays, "simulating").state == "running"


def test_what_it_complains_of_is_the_message(replaying: Make) -> None:
    replays = replaying("import sys; sys.exit('reading\\nError: nothing was\\nrecorded there')")
    replays.ask(WhatIfQuestion())

    told = ended(replays)

    assert (told.state, told.message) == ("failed", "nothing was recorded there")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(3)", "status 3"),
        ("pass", "could not be had"),
        ("print('no JSON')", "could not be had"),
        ("""print('{"about": []}'); print('{"table":"cases","keys":{},"values":{}}')""", "case"),
        (f"import sys; sys.stdout.write('x' * {MOST_BYTES + 1}); sys.stdin.read()", "more than"),
        ("import os; os.close(1); os.close(2); os.read(0, 1)", "ask for fewer"),
    ],
)
def test_an_answer_that_is_none_is_said_to_be_none(
    replaying: Make, program: str, message: str
) -> None:
    is_late = "os.close(1)" in program
    replays = replaying(program, **({"most_seconds": 0.5} if is_late else {}))
    replays.ask(WhatIfQuestion())

    told = ended(replays)

    assert told.state == "failed"
    assert message in told.message


def test_one_that_takes_too_long_is_ended(replaying: Make) -> None:
    replays = replaying(WAIT, most_seconds=0.3)
    replays.ask(WhatIfQuestion())

    assert "ask for fewer hours" in ended(replays).message


def test_it_gets_no_secrets_and_its_arguments_as_they_are(
    replaying: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "s3cret")
    program = (
        "import os, sys; sys.exit('Error: ' + repr(sys.argv[1:]) + str('ADMIN_KEY' in os.environ))"
    )
    replays = replaying(program, now=lambda: 100_000.5)
    replays.ask(WhatIfQuestion("round-robin", 6, "2x", prefill_apart=True, hours=6))

    message = ended(replays).message

    assert "['what-if', '/records', '--json'" in message
    assert (
        "'--policy', 'round-robin', '--engines', '6', '--cache', '2x', '--prefill-apart',"
        " '--from', '78400']False"
    ) in message


def test_it_ends_with_the_gateway_and_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Its standard input is the gateway's word that it lives: here this is closed, as the kernel
    does. `cat` holds the pipe open that is read to its end."""
    module = tmp_path / "slow.py"
    module.write_text(
        "import inferway.cli, subprocess, sys\n"
        "def main(**_):\n"
        "    subprocess.Popen(['cat'], stdin=subprocess.PIPE).wait()\n"
        "inferway.cli.main = main\n"
        "from inferway.cli.beside import main\n"
        "print('simulating', file=sys.stderr, flush=True)\n"
        "main()\n"
    )
    replays = WhatIfReplays("/records", command=[sys.executable, str(module)])
    replays.ask(WhatIfQuestion())
    says(replays, "simulating")
    replay = replays._replay
    assert replay is not None
    assert replay._process is not None
    assert replay._process.stdin is not None

    replay._process.stdin.close()
    replay.join()

    assert replay.is_over
    assert replay._process.returncode == -9
    assert os.getpgrp() != replay._process.pid


def test_nothing_runs_where_nothing_is_recorded_or_when_the_gateway_has_ended() -> None:
    replays = WhatIfReplays(None)
    closed = WhatIfReplays("/records")
    closed.close()
    without = WhatIfReplays("/records", distribution="no_such_distribution")

    assert (without.told().lacks, without.told().state) == ("bench", "idle")
    with pytest.raises(ConflictError, match=r"pip install \./bench"):
        without.ask(WhatIfQuestion())
    assert (replays.told().lacks, replays.told().state) == ("record", "idle")
    with pytest.raises(ConflictError, match="--record DIR"):
        replays.ask(WhatIfQuestion())
    with pytest.raises(ConflictError, match="shutting down"):
        closed.ask(WhatIfQuestion())


@given(st.builds(WhatIfQuestion))
def test_every_question_is_one_command_line_of_its_own_flags(question: WhatIfQuestion) -> None:
    found = question.arguments("/records", 1e9)

    assert found[:2] == ["what-if", "/records"]
    assert all(each.startswith("--") or each.replace("-", "").isalnum() or each.endswith("x")
               for each in found[2:])  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(question), type=WhatIfQuestion) == question
