"""`inferway serve` and `inferway simulate` as processes, with signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.fork_server import INFERWAY
from tests.integration.program import Start


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
    assert "does not answer" not in gateway.output


def test_a_signal_in_the_start_closes_the_port_and_a_second_one_what_is_under_way(
    start: Start, tmp_path: Path
) -> None:
    path = str(tmp_path / "gw.sock")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.socket(socket.AF_UNIX) as client,
    ):
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        gateway = start("serve", "--host", f"unix:{path}", "--engine", url)
        connection, _ = silent.accept()  # the gateway looks at the engine
        client.connect(path)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 9\r\n\r\n")
        gateway.process.send_signal(signal.SIGTERM)
        gateway.read_until(r"(stopped before everything had started)")
        is_open = Path(path).exists()
        gateway.process.send_signal(signal.SIGTERM)

        assert (is_open, gateway.ends()) == (False, 0)
        connection.close()


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
        (["serve"], "inferway serve: no engine: give at least one URL"),
        (["serve", "--engine", "x"], "inferway serve: engine 'x': expected http://HOST:PORT"),
        (
            ["serve", "--engine", "http://h:1", "--tokenizer", "x"],
            "--tokenizer 'x': expected MODEL=PATH",
        ),
        (
            ["serve", "--engine", "http://h:1", "--chat-template", "=x"],
            "--chat-template '=x': expected MODEL=PATH",
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


def test_sighup_takes_the_file_as_it_is_now_or_says_why_not(start: Start, tmp_path: Path) -> None:
    engine = start("simulate", "--port", "0")
    url = engine.read_until(r"simulated engine (http://\S+)")
    file, keys = tmp_path / "gw.yaml", tmp_path / "keys.yaml"
    file.write_text(f"engines: [{{url: {url}}}]\nport: 0\n")
    gateway = start("serve", "--config", str(file))
    base = gateway.read_until(r"listening on (http://\S+)")

    file.write_text(f"engines: [{{url: {url}}}]\nport: 0\nflow: {{in_flight: none}}\n")
    gateway.process.send_signal(signal.SIGHUP)
    why = gateway.read_until(r"not reloaded, and all stays as it was: (.*)")
    assert why == f"{file}: flow.in_flight: 'none': expected `int | null`, got `str`"
    assert status(base + "/v1/models") == 200

    subprocess.run([INFERWAY, "keys", "add", str(keys), "one"], check=True)
    file.write_text(f"engines: [{{url: {url}}}]\nport: 0\napi_keys: {keys}\n")
    gateway.process.send_signal(signal.SIGHUP)
    gateway.read_until(r"(reloaded: )")
    assert status(base + "/v1/models") == 401

    for program in (gateway, engine):
        program.process.send_signal(signal.SIGTERM)
    assert [program.ends() for program in (gateway, engine)] == [0, 0]


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        e.close()
        return e.code


def test_the_last_line_of_a_start_names_what_one_wants_to_open(start: Start) -> None:
    engine = start("simulate", "--port", "0").read_until(r"simulated engine (http://\S+)")
    gateway = start("serve", "--port", "0", "--engine", engine, "--engine", "http://127.0.0.1:1")

    told = gateway.read_until(r"listening on (http://\S+ \(.*\))")
    url = told.partition(" ")[0]

    assert told == (
        f"{url} (for clients {url}/v1; page {url}/; 1 of 2 engines answer; "
        "models HuggingFaceTB/SmolLM2-135M-Instruct)"
    )
    assert "limits.connections" not in gateway.output


def test_a_start_that_fails_says_why_and_nothing_else(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        gateway = start("serve", "--port", port, "--engine", "http://127.0.0.1:1")
        status = gateway.ends()

    assert status == 2
    assert f"port {port} on 127.0.0.1 is in use" in gateway.output
    assert gateway.output.count("\n") == 1
