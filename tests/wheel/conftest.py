"""Wheels built from the checkout, in an environment that has nothing else; `make wheel`.

Building and installing needs a package index. The commands under test run as processes that see
neither the checkout nor a network, from another directory, with a home of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src")
PACKAGES = {  # and their folders
    "inferway": ROOT,
    "inferway_structured": ROOT / "structured",
    "inferway_bench": ROOT / "bench",
}
TOOLS = ("pip", "build", "twine")
SECONDS = 120  # for a command
TEST_SECONDS = 600  # the first test builds and installs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.wheel)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@dataclass(frozen=True)
class Installed:
    """An environment with the gateway's wheel and its dependencies: no pip, no extras, no
    checkout."""

    directory: Path
    elsewhere: Path  # where commands run, and their home

    @property
    def environment(self) -> dict[str, str]:
        nowhere = "http://127.0.0.1:9"  # nothing needs the network
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.elsewhere),
            "HTTP_PORT": "0",
            "PYTHONUNBUFFERED": "1",
            "http_proxy": nowhere,
            "https_proxy": nowhere,
            "no_proxy": "127.0.0.1",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What `inferway ARGUMENTS` prints, on both outputs."""
        return subprocess.run(
            [str(self.directory / "bin" / "inferway"), *arguments],
            cwd=self.elsewhere,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    @contextmanager
    def running(self, *arguments: str) -> Iterator[str]:
        """The URL at which `inferway ARGUMENTS` listens. It must end well when it is told to."""
        process = subprocess.Popen(
            [str(self.directory / "bin" / "inferway"), *arguments, "--port", "0"],
            cwd=self.elsewhere,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            try:
                assert process.stdout is not None
                said = ""
                for line in process.stdout:
                    said += line
                    if found := re.search(r"(?:listening on|simulated engine) (http://\S+)", line):
                        yield found[1]
                        break
                else:
                    raise AssertionError(f"it ended: {said}")
                process.send_signal(signal.SIGTERM)
                rest, _ = process.communicate(timeout=SECONDS)
                assert process.returncode == 0, said + rest
            finally:
                process.kill()


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with pip, build and twine."""
    directory = tmp_path_factory.mktemp("tools")
    succeed(sys.executable, "-m", "venv", str(directory))
    succeed(str(directory / "bin" / "pip"), "install", "--quiet", "--upgrade", *TOOLS)
    return directory / "bin"


@pytest.fixture(scope="session")
def distributions(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdists and the wheels built from them, as a release makes them."""
    directory = tmp_path_factory.mktemp("checkout")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for package, folder in PACKAGES.items():
        (directory / package).mkdir()
        for name in BUILT_FROM:
            if (folder / name).is_dir():
                shutil.copytree(folder / name, directory / package / name, ignore=leave)
            else:
                shutil.copy(folder / name, directory / package)
        out = ("--outdir", str(directory / "dist"))
        succeed(str(tools / "python"), "-m", "build", *out, str(directory / package))
    return sorted((directory / "dist").iterdir())


@pytest.fixture(scope="session")
def wheels(distributions: Sequence[Path]) -> dict[str, Path]:
    """By the name of the package."""
    return {path.name.split("-")[0]: path for path in distributions if path.suffix == ".whl"}


@pytest.fixture(scope="session")
def installed(
    wheels: dict[str, Path], tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    files = [wheels["inferway"], wheels["inferway_structured"]]
    return _install(files, tools, tmp_path_factory)


@pytest.fixture(scope="session")
def installed_with_bench(
    wheels: dict[str, Path], tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    return _install(wheels.values(), tools, tmp_path_factory)


def _install(
    files: Iterable[Path], tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    directory = tmp_path_factory.mktemp("installed")
    succeed(sys.executable, "-m", "venv", "--without-pip", str(directory))
    python = str(directory / "bin" / "python")
    succeed(str(tools / "pip"), "--python", python, "install", "--quiet", *map(str, files))
    return Installed(directory, tmp_path_factory.mktemp("elsewhere"))


def succeed(*command: str) -> str:
    """What it prints. Fails the test with that if it does not succeed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}"
    return done.stdout
