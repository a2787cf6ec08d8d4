"""A test that leaves something behind fails itself (`tests/leftovers.py`)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORTS = "import asyncio, gc, pytest, signal, socket, subprocess, sys, threading\n"

# What a test does -> what is said of it.
LEAVES = {
    "cycle_with_socket": ("cycle = [socket.socket()]; cycle.append(cycle)", "ResourceWarning"),
    "child": (
        "kept.append(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1))",
        "input()",
    ),
    "coroutine_in_cycle": (
        "cycle = [asyncio.sleep(0)]; cycle.append(cycle)",
        "was never awaited",
    ),
}
BEFORE = """
kept = []

def test_first():
    pass

"""
AFTER = "def test_later():\n    gc.collect()\n"


def ran(file: Path, text: str, *flags: str) -> str:
    """What pytest prints of the tests in a text."""
    file.write_text(IMPORTS + text)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-W", "error", "-c", str(ROOT / "pyproject.toml"), "-rA", str(file), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> str:
    tests = [f"def test_{what}():\n    {does}\n" for what, (does, _) in LEAVES.items()]
    return ran(tmp_path_factory.mktemp("left") / "test_it.py", BEFORE + "\n".join([*tests, AFTER]))


@pytest.mark.parametrize("what", LEAVES)
def test_the_test_that_leaves_something_behind_fails(what: str, left: str) -> None:
    _, said = LEAVES[what]
    found = re.search(
        rf"ERROR at teardown of test_{what} _+\nthe test left behind:\n(.*?)\n(?:_|=)+ ",
        left,
        re.DOTALL,
    )

    assert found is not None, left
    assert said in found[1]
    assert f"{len(LEAVES)} errors" in left, left


def test_what_a_fixture_of_several_tests_has_opened_may_stay(tmp_path: Path) -> None:
    text = """
@pytest.fixture(scope="module")
def opened():
    with socket.socket() as opened:
        yield opened

def test_none():
    pass

def test_first(opened):
    pass

def test_second(opened):
    opened.listen()
"""
    assert "3 passed" in ran(tmp_path / "test_it.py", text)


def test_the_fixture_of_several_tests_that_leaves_garbage_fails_the_last_of_them(
    tmp_path: Path,
) -> None:
    text = """
@pytest.fixture(scope="module")
def opened():
    cycle = [socket.socket()]
    cycle.append(cycle)
    yield cycle

def test_first(opened):
    pass

def test_last(opened):
    pass
"""
    out = ran(tmp_path / "test_it.py", text)

    assert "::test_last - Failed: the test left behind" in out, out


def test_children_get_the_signals_that_a_shell_has_us_ignore(tmp_path: Path) -> None:
    child = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    text = f"""
def test_it():
    assert subprocess.run([sys.executable, "-c", {child!r}], stderr=-3).returncode < 0
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert "1 passed" in ran(tmp_path / "test_it.py", text)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one", "two"])
def test_a_seed_gives_an_order_and_no_seed_any(processes: tuple[str, ...], tmp_path: Path) -> None:
    text = "".join(f"def test_{number}():\n    pass\n\n" for number in range(8))
    file = tmp_path / "test_it.py"

    def order(*flags: str) -> list[str]:
        out = ran(file, text, "-v", *processes, *flags)
        assert "8 passed" in out, out
        return re.findall(r"::(test_\d) PASSED", out)

    assert "8 passed" in ran(file, text, *processes, "--shuffle")
    if not processes:
        assert order("--shuffle=7") == order("--shuffle=7") != order()
