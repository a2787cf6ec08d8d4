"""Child processes of a benchmark: started, awaited, always ended; asked in JSON lines, or run once
under a Python that may be one of a venv that is made and kept."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self, TypeVar

from inferway.errors import InferwayError

OnStep = Callable[..., None]
"""Called with what is under way, and how much of it is done, and of how much, where that is known:
`on_step("short chat")`, `on_step("requests", 35, 100)`."""
# Loopback only: a proxy from the environment would measure the proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class BenchError(InferwayError):
    """A measurement that cannot be made, or does not count; the message says the cure."""


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`command` with its output in `log`, ended on the way out with all that it has started: asked
    first, then killed."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_environment(), **(env or {})},
            start_new_session=True,  # a group of its own, for what it leaves behind
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_until(
    condition: Callable[[], bool],
    what: str,
    process: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
    seconds: float = 60.0,
) -> None:
    """Raises BenchError, with the end of `log`, when it takes too long or `process` ends."""
    deadline = time.monotonic() + seconds
    while not condition():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            why = "the process ended" if ended else f"not within {seconds:.0f} s"
            tail = log.read_text(errors="replace")[-800:] if log is not None else ""
            raise BenchError(f"{what}: {why}; {log}: {tail}" if tail else f"{what}: {why}")
        time.sleep(0.1)


def answers(url: str, body: bytes | None = None) -> bool:
    """Return whether a GET, or a POST of JSON, is answered with a success."""
    try:
        request(url, body)
    except (OSError, BenchError):
        return False
    return True


def get(url: str) -> bytes:
    """Return the body of a 2xx. Raises OSError if nobody listens, BenchError for other statuses."""
    return request(url)[0]


def request(
    url: str, body: bytes | None = None, seconds: float = 10
) -> tuple[bytes, Mapping[str, str]]:
    """Return body and headers (names in lower case) of a GET, or of a POST of JSON.

    Raises OSError when nobody listens, BenchError for a status that is not 2xx.
    """
    wanted = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    try:
        with _OPENER.open(wanted, timeout=seconds) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.read(), headers
    except urllib.error.HTTPError as e:
        raise BenchError(f"{url}: answered {e.code}: {e.read(300)!r}") from e


def free_port() -> int:
    """Return a port that was free just now, for programs that cannot bind port 0 and tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}


def with_sources() -> dict[str, str]:
    """Return the environment of a Python that need not have our packages installed."""
    packages = ("inferway", "inferway_structured", "inferway_bench")
    files = (find_spec(name) for name in packages)
    folders = dict.fromkeys(str(Path(str(one.origin)).parents[1]) for one in files if one)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


@dataclass(frozen=True, slots=True)
class Venv:
    """A venv's directory."""

    directory: Path

    def executable(self, name: str) -> Path:
        return self.directory / "bin" / name


def install_venv(
    directory: Path, wanted: Sequence[str], on_step: OnStep, cure: str, instead: Sequence[str] = ()
) -> Venv:
    """Return the venv in `directory` with exactly the packages `wanted` (NAME==VERSION) and what
    they require, or the packages `instead` of that; made of this process's interpreter if it is not
    there or holds others.

    Raises BenchError with pip's own words and `cure` when they cannot be had.
    """
    venv = Venv(directory / "venv")
    installed = directory / "installed.txt"
    if installed.is_file() and installed.read_text().split() == [*wanted, *instead]:
        return venv
    on_step(f"making a venv in {venv.directory}")
    _run([sys.executable, "-m", "venv", "--clear", str(venv.directory)], cure)
    on_step(f"installing {' and '.join(wanted)} from PyPI (once)")
    install = [str(venv.executable("python")), "-m", "pip", "install", "--quiet"]
    if instead:
        _run([*install, *instead], cure)
    _run([*install, *(["--no-deps"] if instead else []), *wanted], cure)
    installed.write_text("\n".join([*wanted, *instead]) + "\n")
    return venv


def of_vllm(program: str) -> Path:
    """Return a program of the virtual environment that has vLLM. Raises BenchError without it."""
    path = Path(os.environ.get("INFERWAY_VLLM_VENV", "/nowhere"), "bin", program)
    if not path.is_file():
        raise BenchError(
            f"{path}: not there; fix: scripts/install_vllm.sh, and INFERWAY_VLLM_VENV=/its/venv"
        )
    return path


def _run(command: list[str], cure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(
            f"{' '.join(command)}: ended with {done.returncode}: {done.stderr.strip()[-500:]}; "
            f"fix: {cure}"
        )


_TAIL = 800  # characters of its standard error, told with an error
_Side = TypeVar("_Side")


def in_turn(sides: Sequence[_Side], repeat: int) -> list[_Side]:
    """Return `sides` in the order of a repeat: another one is first each time, so that what the
    machine does meets all alike."""
    first = repeat % len(sides)
    return [*sides[first:], *sides[:first]]


def result_of(python: object, module: str, *words: str) -> Any:
    """Run a module of ours under a Python that need not have it installed, and return the JSON
    value that it prints. Raises BenchError, with what it said last, when it fails."""
    command = [str(python), "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=with_sources(), check=False)
    if done.returncode != 0:
        raise BenchError(
            f"{module}: its process ended with {done.returncode}: {done.stderr.strip()[-_TAIL:]}"
        )
    return json.loads(done.stdout)


class JsonWorker:
    """A process that answers each JSON line on its standard input with one on its standard output.
    It lives as long as the `with`. Not for several threads."""

    def __init__(self, name: str, command: Sequence[object], env: Mapping[str, str]) -> None:
        self.name = name
        self._errors = TemporaryFile()  # noqa: SIM115 closed in __exit__
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(env),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, question: object) -> Any:
        """Return the answer. Raises BenchError, with what the process said last, when it has
        ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self.read()

    def read(self) -> Any:
        """Return what the process says next. Raises BenchError as `ask` does."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> BenchError:
        status = self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace")[-_TAIL:]
        return BenchError(f"{self.name}: its worker ended with {status}: {tail}")
