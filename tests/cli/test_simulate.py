"""The command: what it prints, how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.simulator.doubles import write_tiny_model

from inferway.cli import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_tiny_model(tmp_path)
    return str(tmp_path)


@contextmanager
def simulating(*args: str) -> Iterator[subprocess.Popen[str]]:
    code = "from inferway.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_serves_and_stops_cleanly(model: str, sig: signal.Signals) -> None:
    with simulating("--model", model, "--served-model-name", "tiny", "--port", "0") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split()[2]
        with urllib.request.urlopen(f"{url}/v1/models") as response:
            listing = json.load(response)
        process.send_signal(sig)
        rest, errors = process.communicate(timeout=20)

    assert "serves tiny · block size 16 · KV events tcp://127.0.0.1:" in line
    assert [card["id"] for card in listing["data"]] == ["tiny"]
    assert (process.returncode, rest, errors) == (0, "", "")


def test_a_taken_port_is_one_line_that_names_it(model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with simulating("--model", model, "--port", str(port)) as process:
            _, errors = process.communicate(timeout=20)

    assert process.returncode == 2
    assert errors == (
        f"inferway simulate: port {port} on 127.0.0.1 cannot be had: address already in use; "
        "choose another with --port\n"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--lora-modules", "x"], "--lora-modules 'x': expected NAME=PATH"),
        (["--model", str(Path(__file__).parent)], "no tokenizer.json"),
        (["--max-model-len", "99999"], "raise --kv-cache-size or lower --max-model-len"),
        (["--time-to-first-token", "soon"], "expected a time like 250ms"),
    ],
)
def test_a_setting_that_cannot_hold_is_one_clear_line(args: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--model", "m", "--port", "0", *args])

    assert result.exit_code == 2
    assert message in result.output
