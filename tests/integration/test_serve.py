"""`inferway serve` and `inferway simulate` as processes, with signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

INFERWAY = str(Path(sys.executable).parent / "inferway")

Start = Callable[..., "Program"]


class Program:
    """A running command; its output is read up to a line, and kept."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [INFERWAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output = ""

    def read_until(self, pattern: str) -> str:
        """The pattern's first group, once it has been printed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if match := re.search(pattern, line):
                return match[1]
        raise AssertionError(f"ended without {pattern!r}:\n{self.output}")

    def ends(self) -> int:
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait(timeout=30)


@pytest.fixture
def start() -> Iterator[Start]:
    programs: list[Program] = []

    def starting(*arguments: str) -> Program:
        programs.append(Program(*arguments))
        return programs[-1]

    yield starting
    for program in programs:
        program.process.kill()
        program.process.communicate()


def test_the_readmes_first_steps_on_simulated_engines(start: Start) -> None:
    engines = [start("simulate", "--port", "0") for _ in range(2)]
    urls = [engine.read_until(r"simulated engine (http://\S+)") for engine in engines]
    gateway = start("serve", "--port", "0", "--engine", urls[0], "--engine", urls[1])
    url = gateway.read_until(r"listening on (http://\S+)")
    model = "HuggingFaceTB/SmolLM2-135M-Instruct"
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    request = urllib.request.Request(
        url + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.headers["x-inferway-engine"] in [u.removeprefix("http://") for u in urls]

    for program in (gateway, *engines):
        program.process.send_signal(signal.SIGTERM)

    assert [program.ends() for program in (gateway, *engines)] == [0, 0, 0]
    assert gateway.output.rstrip().endswith("all components stopped")


def test_a_signal_ends_the_start_before_everything_has_answered(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        gateway = start("serve", "--port", "0", "--engine", f"http://127.0.0.1:{port}")
        connection, _ = silent.accept()

        gateway.process.send_signal(signal.SIGINT)

        assert gateway.ends() == 0
        connection.close()
    assert "stopped before everything had started" in gateway.output
    assert "HTTP server stopped" in gateway.output
    assert "is not there" not in gateway.output


def test_a_second_signal_cuts_off_what_the_first_waits_for(start: Start) -> None:
    engine = start("simulate", "--port", "0", "--time-to-first-token", "600s")
    url = engine.read_until(r"simulated engine (http://\S+)")
    gateway = start("serve", "--port", "0", "--engine", url)
    base = gateway.read_until(r"listening on (http://\S+)")
    body = {"model": "HuggingFaceTB/SmolLM2-135M-Instruct", "prompt": "Hi", "max_tokens": 4}
    client = subprocess.Popen(
        [sys.executable, "-c", _POST, base + "/v1/completions", json.dumps(body)]
    )
    has_sent_it(base)

    gateway.process.send_signal(signal.SIGINT)
    gateway.read_until(r"(another Ctrl-C)")
    gateway.process.send_signal(signal.SIGINT)

    assert gateway.ends() == 0
    assert "1 answers were cut off" in gateway.output
    assert client.wait(timeout=30) != 0


_POST = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], sys.argv[2].encode()))"


def has_sent_it(gateway: str) -> None:
    """Waits until the client's request is at the engine (where a probe of ours may be, too)."""
    for _ in range(3000):
        with urllib.request.urlopen(gateway + "/metrics", timeout=30) as page:
            if re.search(r"^inferway_engine_in_flight\S* 1\.0", page.read().decode(), re.MULTILINE):
                return
    raise AssertionError("the engine has never been asked")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "inferway serve: no engine: give at least one --engine URL"),
        (["serve", "--engine", "x"], "inferway serve: engine 'x': expected http://HOST:PORT"),
        (
            ["serve", "--engine", "http://h:1", "--tokenizer", "x"],
            "--tokenizer 'x': expected MODEL=PATH",
        ),
        (
            ["serve", "--engine", "http://h:1", "--chat-template", "=x"],
            "--chat-template '=x': expected MODEL=PATH",
        ),
        (
            ["serve", "--engine", "http://h:1", "--log-level", "loud"],
            "log level 'loud': expected one of debug, info, warning, error",
        ),
        (["serve", "--config", "/nope.yaml"], "/nope.yaml: cannot be read"),
    ],
)
def test_a_setting_that_cannot_hold_is_one_line(
    start: Start, arguments: list[str], message: str
) -> None:
    program = start(*arguments)

    assert program.ends() == 2
    assert message in program.output
    assert len(program.output.splitlines()) == 1
