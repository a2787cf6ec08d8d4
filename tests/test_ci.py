""".ci/run with stand-ins for make, apt-get and id on a PATH of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What .ci/run needs of a bare system.
SYSTEM = ("bash", "dirname", "env")


CORE = [
    "make check",
    "make test",
    "make test-tools",
    "make wheel",
    "make browser",
    "make envoy",
    "make helm",
    "make demo ARGS=--exit",
]


class Machine:
    """A checkout, and what is installed beside it. `calls` is what make and apt-get were asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bin = path / "bin"
        self.bin.mkdir()
        (path / ".ci").mkdir()
        shutil.copy(ROOT / ".ci" / "run", path / ".ci")
        shutil.copytree(ROOT / "scripts", path / "scripts")
        for name in SYSTEM:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        self.install("python3", "echo 3.11.2")
        self.install("python3.13", "echo 3.13.0")
        self.install("id", "echo 0")
        for name in (
            "git",
            "ip",
            "wrk",
            "h2load",
            "curl",
            "redis-server",
            "npm",
            "promtool",
            "systemd-analyze",
        ):
            self.install(name, "exit 0")
        for name in ("make", "apt-get"):
            self.install(name, f'echo "{name} $*" >>calls')

    def install(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PATH": str(self.bin), "HOME": str(self.path)}  # no pyenv
        env |= variables
        env.pop("PYENV_ROOT", None)
        env.pop("PYTHON", None)
        return subprocess.run(
            [str(self.path / ".ci" / "run")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return (self.path / "calls").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_everything_is_run_in_order(machine: Machine) -> None:
    done = machine.run()

    assert done.returncode == 0, done.stdout
    beside, calls = "make fleet-install", machine.calls
    assert beside in calls[:3]
    calls.remove(beside)
    assert calls == [
        *CORE,
        "make fleet",
        "make test-slow",
        f"make test VENV=.venv-newest PYTHON={machine.bin}/python3.13"
        " ARGS=tests/scheduling tests/llmd/scheduling tests/routing tests/openai_api tests/config",
        "make ray",
        "make fuzz ARGS=--seconds 30 --out /dev/null",
        "make soak ARGS=--seconds 30 --out /dev/null",
        "make newest-vllm",
        "make fidelity NAMES=yi llama2 qwen3 mistral_nemo",
    ]


def test_long_proofs_that_do_not_fit_into_the_time_are_named_and_not_run(machine: Machine) -> None:
    done = machine.run(CI_SECONDS="-1")

    assert done.returncode == 0, done.stdout
    assert [call for call in machine.calls if call != "make fleet-install"] == CORE
    for name in ("fleet", "slow", "python", "ray", "fuzz", "soak", "newest", "fidelity"):
        assert f"=== {name} is not run: it takes about" in done.stdout


# Its programs cannot be had from Debian, PyPI or npm.
NOT_RUN = {"kube"}


def test_each_marked_test_has_a_target_that_is_run() -> None:
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "markers"
    ]
    targets = dict(re.findall(r"^(\w+): .*\(make ([\w-]+)\)", "\n".join(markers), re.MULTILINE))
    steps = re.findall(
        r"^(?:step \w+|proof \w+ \d+) make ([\w-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE
    )
    rest = re.search(r"^NEEDS_NOTHING := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert len(targets) == len(markers)
    assert set(targets.values()) - NOT_RUN <= set(steps)
    assert rest is not None
    assert rest[1] == " and ".join(f"not {marker}" for marker in targets if marker != "slow")


def test_each_step_is_timed(machine: Machine) -> None:
    timings = machine.run().stdout.split("=== timings\n")[1].splitlines()

    assert [line.split()[0] for line in timings[:-1]] == [
        "system",
        "check",
        "test",
        "tools",
        "wheel",
        "browser",
        "envoy",
        "helm",
        "demo",
        "engines",
        "fleet",
        "slow",
        "python",
        "ray",
        "fuzz",
        "soak",
        "newest",
        "fidelity",
    ]


def test_the_first_failure_ends_it(machine: Machine) -> None:
    machine.install("make", 'echo "make $*" >>calls; [ "$1" != test ]')

    done = machine.run()

    assert done.returncode == 1
    assert [call for call in machine.calls if call != "make fleet-install"] == [
        "make check",
        "make test",
    ]
    assert "failed after" in done.stdout


def test_what_could_not_be_installed_beside_the_steps_ends_it(machine: Machine) -> None:
    machine.install("make", 'echo "make $*" >>calls; [ "$1" != fleet-install ]')

    done = machine.run()

    assert done.returncode == 1
    assert "make helm" in machine.calls
    assert "make fleet" not in machine.calls
    assert "failed after" in done.stdout


def test_a_failure_ends_what_is_installed_beside_the_steps(machine: Machine) -> None:
    machine.install("make", '[ "$1" != fleet-install ] || exec sleep 600; [ "$1" != test ]')
    (machine.bin / "sleep").symlink_to(shutil.which("sleep") or "")

    assert machine.run().returncode == 1


@pytest.mark.parametrize(("name", "version"), [("python3", "3.11"), ("python3.13", "3.13")])
def test_without_the_oldest_or_the_newest_python_it_fails_with_a_cure(
    machine: Machine, name: str, version: str
) -> None:
    machine.install(name, "echo 3.12.1")

    done = machine.run()

    assert done.returncode == 1
    assert f"no Python {version} that can make a virtual environment" in done.stdout
    assert f"pyenv install {version}" in done.stdout
    assert not (machine.path / "calls").exists()


def test_root_installs_what_is_missing(machine: Machine) -> None:
    (machine.bin / "wrk").unlink()

    machine.run()

    assert machine.calls[:2] == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends wrk",
    ]


def test_redis_server_alone_needs_no_root(machine: Machine) -> None:
    (machine.bin / "redis-server").unlink()
    machine.install("id", "echo 1000")

    assert machine.run().returncode == 0
    assert "make check" in machine.calls[:2]


def test_a_python_without_venv_is_missing_too(machine: Machine) -> None:
    for name in ("python3", "python3.13"):
        machine.install(name, "echo 3.11.2 ensurepip")

    machine.run()

    assert machine.calls[1].endswith("python3 python3-venv")


def test_without_root_what_is_missing_is_a_failure_with_the_line_to_run(machine: Machine) -> None:
    (machine.bin / "wrk").unlink()
    machine.install("id", "echo 1000")

    done = machine.run()

    assert done.returncode == 1
    assert "missing: wrk; as root on Debian: apt-get install wrk" in done.stdout
    assert not (machine.path / "calls").exists()
