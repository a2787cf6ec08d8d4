"""Engines of Ray's replicas, as a program beside the gateway writes them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fleet.discovery.told import running

from inferway.config import load_settings
from inferway.errors import ConfigError
from inferway.fleet.discovery.sources import RayReplicas, watching

A, B = '[{"url":"http://10.0.0.1:1","name":"a"}]', '[{"url":"http://10.0.0.2:2","name":"b"}]'
# Copies a file to standard output, then waits until its own standard input ends.
PRINT = "import sys; print(open(sys.argv[1]).read(), flush=True); sys.stdin.read()"
END = "import sys; sys.stderr.write('ConnectionError: no cluster'); sys.exit(1)"


def source(*programs: Sequence[str]) -> RayReplicas:
    """A source whose watch is each of these programs in turn, and the last one again and again."""
    left = list(programs)

    def command(deployment: str) -> Sequence[str]:
        assert deployment == "llm/Engine"
        return [sys.executable, "-c", *(left.pop(0) if len(left) > 1 else left[0])]

    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    return RayReplicas("llm/Engine", command, at_once)


def wrote(path: Path, *lines: str) -> Sequence[str]:
    path.write_text("\n".join(lines))
    return PRINT, str(path)


async def test_each_line_is_the_whole_list(tmp_path: Path) -> None:
    watched = source(wrote(tmp_path / "lines", A, "[]", B))

    async with running(watched) as told:
        await told.until("10.0.0.2:2")

    assert [[engine.label for engine in engines] for engines in told.lists] == [["a"], [], ["b"]]
    assert watched.synced


async def test_a_watch_that_ends_is_started_anew_and_leaves_the_engines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = wrote(tmp_path / "first", A)
    watched = source([ends[0].replace("sys.stdin.read()", END[12:]), ends[1]], [END],
                     wrote(tmp_path / "second", B))  # fmt: skip

    async with running(watched) as told:
        await told.until("10.0.0.2:2")

    assert [[engine.label for engine in engines] for engines in told.lists] == [["a"], ["b"]]
    assert caplog.text.count("is not followed: ConnectionError: no cluster") == 1
    assert "its engines stay as they were" in caplog.text


@pytest.mark.parametrize(
    "line", ["{", "5", '[{"url":"10.0.0.1:1"}]', '[{"url":"http://h:1","colour":"red"}]', "\\xff"]
)
async def test_a_line_that_cannot_be_read_leaves_the_engines(
    line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = source(wrote(tmp_path / "lines", A, line, B))

    async with running(watched) as told:
        await told.until("10.0.0.2:2")

    assert len(told.lists) == 2
    assert "cannot be used" in caplog.text


async def test_nothing_of_it_is_left_when_it_is_cancelled(tmp_path: Path) -> None:
    """The program sees the end of its standard input, or is killed."""
    path = tmp_path / "pid"
    code = (
        "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()));"
        f" print({A!r}, flush=True); time.sleep(600)"
    )
    async with running(source([code, str(path)])) as told:
        await told.until("10.0.0.1:1")

    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


@pytest.mark.parametrize("name", ["", "app", "/", "app/", "a/b/c", "a b/c"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--engines-ray .*: expected APP/DEPLOYMENT"):
        RayReplicas(name)


def test_without_ray_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'inferway\[ray\]'"):
        RayReplicas("app/Engine", watching)


def test_a_deployment_is_engines_enough() -> None:
    settings = load_settings(None, {"engines": [], "discovery": {"ray": ["app/Engine"]}})

    assert settings.discovery.is_any
