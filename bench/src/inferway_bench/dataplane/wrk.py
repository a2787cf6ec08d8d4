"""Keep-alive load from `wrk`: as many requests as a few connections can push through.

Closed loop: each connection sends its next request when it has its answer. Good for CPU time
per request, which is what we count; its latencies are those of a saturated router.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferway_bench.conversations import NUMBER_DIGITS, BodyTemplate
from inferway_bench.processes import BenchError
from inferway_bench.templates import FOLDER

# What the official Python client sends, so that nobody is measured on three headers.
_HEADERS = (FOLDER / "openai_headers.txt").read_text().splitlines()

_SCRIPT = FOLDER / "load.lua"


class LoadResult(msgspec.Struct, frozen=True):
    """The counts that `wrk` has made of one load."""

    requests: int
    microseconds: int
    bad_status: int  # answers that are neither 2xx nor 3xx
    socket_errors: int
    p50_us: int


@dataclass(frozen=True, slots=True)
class Load:
    """POSTs `templates` in turn to /v1/chat/completions, `connections` at a time."""

    templates: Sequence[BodyTemplate]
    connections: int

    def run(self, url: str, seconds: int, first_number: int) -> LoadResult:
        """Load `url` for `seconds`; last turns are numbered from `first_number` on.

        Raises BenchError when wrk is missing or fails, or when an answer was not a success.
        """
        wrk = find_wrk()
        with TemporaryDirectory(prefix="inferway-bench-") as name:
            directory = Path(name)
            self._write(directory)
            command = [wrk, "-t1", f"-c{self.connections}", f"-d{seconds}s", "--timeout", "30s"]
            command += ["-s", str(directory / "load.lua"), url]
            command += ["--", name, str(len(self.templates)), str(first_number)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"wrk ended with {done.returncode}: {done.stderr.strip()!r}")
        return checked(parse_output(done.stdout), url)

    def _write(self, directory: Path) -> None:
        script = _SCRIPT.read_text().replace("DIGITS", str(NUMBER_DIGITS))
        (directory / "load.lua").write_text(script)
        for i, template in enumerate(self.templates, start=1):
            length = len(template.body(0))
            lines = ["POST /v1/chat/completions HTTP/1.1", *_HEADERS, f"Content-Length: {length}"]
            head = "\r\n".join(lines).encode() + b"\r\n\r\n"
            (directory / f"{i}.before").write_bytes(head + template.before)
            (directory / f"{i}.after").write_bytes(template.after)


def find_wrk() -> str:
    """The path of `wrk`. Raises BenchError with the cure."""
    found = shutil.which("wrk")
    if found is None:
        raise BenchError("wrk: not found in PATH; fix: apt-get install wrk")
    return found


def parse_output(text: str) -> LoadResult:
    """The line that our script writes at the end of wrk's output."""
    for line in text.splitlines():
        if line.startswith("INFERWAY "):
            return msgspec.json.decode(line.removeprefix("INFERWAY "), type=LoadResult)
    raise BenchError(f"wrk: no result in its output: {text[-500:]!r}")


def checked(result: LoadResult, url: str) -> LoadResult:
    """`result` if every answer was a success. CPU time over failures would say nothing."""
    if result.requests == 0 or result.bad_status or result.socket_errors:
        raise BenchError(
            f"{url}: {result.requests} answers, {result.bad_status} of them not 2xx, "
            f"{result.socket_errors} socket errors; all must succeed to be counted"
        )
    return result
