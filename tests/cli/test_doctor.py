from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inferway.cli import main


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("INFERWAY_CACHE", str(tmp_path))


def doctor(*arguments: str, port: int = 0) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments], env={"HTTP_PORT": str(port)})


def test_warnings_alone_exit_0() -> None:
    result = doctor()

    assert result.exit_code == 0, result.output
    assert "warn hub: HF_HUB_OFFLINE is set" in result.output


def test_a_failure_exits_1_and_prints_its_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        result = doctor(port=port)

    assert result.exit_code == 1
    assert f"fail port: {port}: in use by another program\n     fix: " in result.output


def test_an_engine_that_is_not_there_exits_1() -> None:
    result = doctor("--engine", "http://127.0.0.1:1")

    assert result.exit_code == 1
    assert "fail engine 127.0.0.1:1: http://127.0.0.1:1/health" in result.output


def test_an_engine_flag_that_cannot_hold_is_refused_with_the_keys_allowed() -> None:
    result = doctor("--engine", "http://127.0.0.1:1,size=4")

    assert result.exit_code == 1
    assert "'size=4' is not KEY=VALUE with KEY one of name, events" in result.output


def test_a_gateway_that_is_not_there_exits_1() -> None:
    result = doctor("--gateway", "http://127.0.0.1:1")

    assert result.exit_code == 1
    assert "fail gateway http://127.0.0.1:1: http://127.0.0.1:1/admin/traffic" in result.output
    assert "port:" not in result.output  # a gateway that runs has one


def test_a_key_that_is_not_set_is_refused() -> None:
    result = doctor("--gateway", "http://127.0.0.1:1", "--admin-key-env", "NO_SUCH_VARIABLE")

    assert result.exit_code == 1
    assert "--admin-key-env: the variable 'NO_SUCH_VARIABLE' is not set" in result.output
