from __future__ import annotations

import asyncio
import socket
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web

from inferway.doctor.machine import (
    check_cache,
    check_hub,
    check_interpreter,
    check_packages,
    check_port,
    core_dependencies,
)
from inferway.doctor.rules import CheckResult, Level

from .servers import serving

ROOT = Path(__file__).parents[2]


def test_an_old_interpreter_fails_and_detect_python_is_named() -> None:
    assert check_interpreter().level is Level.OK

    finding = check_interpreter((3, 10, 12))

    assert finding.level is Level.FAIL
    assert finding.evidence.startswith("Python 3.10.12 (")
    assert finding.evidence.endswith(") is older than 3.11")
    assert "make detect-python" in finding.cure


def test_every_core_dependency_of_pyproject_imports_here_and_they_are_one_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    (finding,) = check_packages(core_dependencies())

    assert finding.level is Level.OK
    assert finding.evidence.count(", ") + 1 == len(project["dependencies"])
    assert "pyzmq 2" in finding.evidence


def test_a_package_that_does_not_import_fails_by_name() -> None:
    (finding,) = check_packages(["no-such-package"])

    assert finding.level is Level.FAIL
    assert finding.evidence == "no-such-package: No module named 'no_such_package'"


def test_a_cache_directory_need_not_exist_yet(tmp_path: Path) -> None:
    assert check_cache(tmp_path / "not" / "yet").level is Level.OK
    assert not (tmp_path / "not").exists()


def test_a_cache_that_cannot_be_written_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    finding = check_cache(file / "cache")

    assert finding.level is Level.FAIL
    assert finding.evidence.endswith("cannot be written: Not a directory")
    assert "INFERWAY_CACHE" in finding.cure


def test_an_occupied_port_fails_and_names_http_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])

        finding = check_port({"HTTP_PORT": port})

    assert finding.level is Level.FAIL
    assert finding.evidence == f"{port}: in use by another program"
    assert f"lsof -i :{port}" in finding.cure
    assert "HTTP_PORT=" in finding.cure


def test_a_port_that_is_none_fails_and_without_http_port_it_is_8080() -> None:
    assert "not a port number" in check_port({"HTTP_PORT": "http"}).evidence
    assert check_port({}).evidence.startswith("8080")


def ask(requests: list[str | None], status: int = 200, **environment: str) -> CheckResult:
    """Ask a hub that knows one token, and note what it is sent."""

    async def answer(request: web.Request) -> web.Response:
        requests.append(request.headers.get("authorization"))
        return web.Response(status=status if requests[-1] in (None, "Bearer good") else 401)

    async def run() -> CheckResult:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with serving(app) as url:
            return await asyncio.to_thread(check_hub, {"HF_ENDPOINT": url, **environment})

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "token", "level", "said"),
    [
        (200, "", Level.OK, "answers; no HF_TOKEN: public models only"),
        (403, "", Level.OK, "answers; no HF_TOKEN"),  # any answer will do
        (200, "good", Level.OK, "answers; HF_TOKEN is accepted"),
        (200, "bad", Level.WARN, "refuses HF_TOKEN (status 401)"),
        (503, "", Level.WARN, "answered 503"),
    ],
)
def test_a_hub_s_answer_shows_that_it_is_there(
    status: int, token: str, level: Level, said: str
) -> None:
    finding = ask([], status, HF_TOKEN=token)

    assert finding.level is level
    assert said in finding.evidence


def test_an_offline_hub_is_not_asked() -> None:
    requests: list[str | None] = []

    finding = ask(requests, HF_HUB_OFFLINE="1")

    assert (finding.level, requests) == (Level.WARN, [])
    assert "HF_HUB_OFFLINE" in finding.evidence


@pytest.mark.parametrize(
    ("url", "said"), [("http://127.0.0.1:1", "refused"), ("hub", "unknown url type")]
)
def test_a_hub_out_of_reach_only_warns(url: str, said: str) -> None:
    finding = check_hub({"HF_ENDPOINT": url})

    assert finding.level is Level.WARN
    assert said in finding.evidence
    assert "--tokenizer MODEL=PATH" in finding.cure


def test_a_hub_that_is_silent_is_given_up_on() -> None:
    answer = threading.Event()

    def never(_url: str, _headers: Mapping[str, str], _seconds: float) -> int:
        answer.wait()
        return 200

    found = check_hub({}, seconds=0.05, get=never)
    answer.set()

    assert found.evidence.endswith("no answer in 0.05 s")
