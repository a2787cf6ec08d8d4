"""Child processes of a benchmark: started, awaited, always ended; their output goes to files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from inferway.errors import InferwayError

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
    """The body of a 2xx. Raises OSError when nobody listens, BenchError for another status."""
    return request(url)[0]


def request(
    url: str, body: bytes | None = None, seconds: float = 10
) -> tuple[bytes, Mapping[str, str]]:
    """Body and headers (names in lower case) of a GET, or of a POST of JSON.

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
    """A port that was free a moment ago, for programs that cannot bind port 0 and tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}


def with_sources() -> dict[str, str]:
    """The environment of a Python that need not have our packages installed."""
    packages = ("inferway", "inferway_structured", "inferway_bench")
    files = (find_spec(name) for name in packages)
    folders = dict.fromkeys(str(Path(str(one.origin)).parents[1]) for one in files if one)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
