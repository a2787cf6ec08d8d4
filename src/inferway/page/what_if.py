"""What-if on the recorded hours: `inferway what-if`, run by a program beside the gateway, one at a
time. It may take `MOST_SECONDS` and print `MOST_BYTES`.

A thread waits for the program and reads what it prints. Whoever asks for the state gets what the
thread has found by then, and never waits.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from inferway.config import Policy
from inferway.errors import ConflictError

MOST_SECONDS = 600.0
MOST_BYTES = 4 * 1024 * 1024
MOST_LINE = 300  # characters that are told of a line
_TAIL = 4096  # bytes of what it says, that are kept
_PIECE = 64 * 1024
_CLOSE_SECONDS = 5.0
_DISTRIBUTION = "inferway_bench"  # brings `inferway what-if`; it is never imported here
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_COMMAND = (sys.executable, "-P", "-m", "inferway.cli.beside")

Figure = float | str | None


class WhatIfQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be otherwise. If nothing is, other policies are compared."""

    policy: Policy | None = None  # None: as recorded
    engines: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    cache: Literal["0.5x", "1x", "2x", "4x"] = "1x"  # times its own
    prefill_apart: bool = False
    hours: Literal[1, 6, 24] | None = None  # the last ones; None: all

    def arguments(self, directory: str, now: float) -> list[str]:
        """Return the command line of `inferway what-if`. `now` is Unix time."""
        found = ["what-if", directory, "--json", "--processes", str(_num_processes())]
        if self.policy is not None:
            found += ["--policy", self.policy]
        if self.engines is not None:
            found += ["--engines", str(self.engines)]
        if self.cache != "1x":
            found += ["--cache", self.cache]
        if self.prefill_apart:
            found += ["--prefill-apart"]
        if self.hours is not None:
            found += ["--from", str(int(now - self.hours * 3600))]
        return found


class WhatIfCase(msgspec.Struct, frozen=True):
    """A line of the table: times in ms, shares in %, means over the seeds; of "the model is off
    by", words."""

    name: str
    ttft_p50: Figure = None
    ttft_p90: Figure = None
    ttft_p99: Figure = None
    cached: Figure = None
    busy: Figure = None  # utilization
    engines: Figure = None
    cost: Figure = None  # engine-hours


class WhatIfResult(msgspec.Struct, frozen=True):
    """What came of it: `sentences` in words, those of the cases last."""

    sentences: Sequence[str]
    cases: Sequence[WhatIfCase]


class WhatIfState(msgspec.Struct, frozen=True):
    """How it stands."""

    state: Literal["idle", "running", "done", "failed"]
    lacks: Literal["", "record", "bench"] = ""  # what there must be first
    message: str = ""  # why it cannot be asked, or has failed
    question: WhatIfQuestion | None = None  # the last one
    seconds: float = 0.0  # that it has taken so far, or in all
    progress: str = ""
    result: WhatIfResult | None = None


class _Head(msgspec.Struct, frozen=True):
    """The first line that `--json` prints (inferway_bench.rows)."""

    about: list[str]


class _Row(msgspec.Struct, frozen=True):
    table: str
    keys: dict[str, str | float]
    values: dict[str, float | str | list[float] | None]


class _Failed(Exception):
    """It has not answered; the text says why."""


class _Replay:
    """One run. Its thread writes what it finds; all others only read, and may `kill` it."""

    def __init__(
        self,
        question: WhatIfQuestion,
        command: Sequence[str],
        clock: Callable[[], float],
        most_seconds: float,
    ) -> None:
        self.question = question
        self.progress = "starting"
        self.result: WhatIfResult | None = None
        self.failed = ""
        self._command = command
        self._clock = clock
        self._most_seconds = most_seconds
        self._said = b""  # the end of it
        self._began = clock()
        self._ended: float | None = None
        self._lock = threading.Lock()
        self._is_killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="what-if", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return self._ended is not None

    @property
    def seconds(self) -> float:
        ended = self._ended
        return (self._clock() if ended is None else ended) - self._began

    def kill(self) -> None:
        """End the program, and all that it has started."""
        with self._lock:
            self._is_killed = True
            if self._process is not None and self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def join(self) -> None:
        self._thread.join(_CLOSE_SECONDS)

    # the thread

    def _run(self) -> None:
        try:
            self.result = self._answered()
        except _Failed as e:
            self.failed = str(e)
        except Exception as e:
            self.failed = f"its answer could not be had: {e}"
        finally:
            self._ended = self._clock()

    def _answered(self) -> WhatIfResult:
        with self._lock:
            if self._is_killed:
                raise _Failed("it was stopped")
            self._process = process = _started(self._command)
        with process:
            try:
                out = self._read(process)
                status = process.wait(max(self._left, 0))
            except subprocess.TimeoutExpired:
                self.kill()
                raise _Failed(_too_long(self._most_seconds)) from None
            except BaseException:
                self.kill()
                raise
        if self._is_killed:
            raise _Failed("it was stopped")
        if status:
            raise _Failed(_reason(self._said) or f"it ended with status {status}")
        return _result(out)

    @property
    def _left(self) -> float:
        return self._most_seconds - self.seconds

    def _read(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return what it prints, to the end; meanwhile note what it says of its progress."""
        assert process.stdout is not None
        assert process.stderr is not None
        out = bytearray()
        takes = {process.stdout.fileno(): out.extend, process.stderr.fileno(): self._note}
        with selectors.DefaultSelector() as selector:
            for stream in takes:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                stream = self._next(selector)
                piece = os.read(stream, _PIECE)
                takes[stream](piece)
                if not piece:
                    selector.unregister(stream)
                if len(out) > MOST_BYTES:
                    raise _Failed(f"it printed more than {MOST_BYTES:,} bytes; ask for less")
        return bytes(out)

    def _next(self, selector: selectors.BaseSelector) -> int:
        """Wait for a stream that can be read. Raises _Failed when it takes too long."""
        left = self._left
        ready = selector.select(left) if left > 0 else []
        if not ready:
            raise _Failed(_too_long(self._most_seconds))
        return ready[0][0].fd

    def _note(self, piece: bytes) -> None:
        self._said = (self._said + piece)[-_TAIL:]
        lines = self._said.decode(errors="replace").rpartition("\n")[0].splitlines()
        if lines:
            self.progress = lines[-1][:MOST_LINE]


class WhatIfReplays:
    """The last run. All methods are for the event loop; none waits but `close`."""

    def __init__(
        self,
        directory: str | None,
        *,
        command: Sequence[str] = _COMMAND,
        distribution: str = _DISTRIBUTION,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        """`directory` is what requests are recorded in; None: they are not. `now` is Unix time."""
        self._directory = None if directory is None else str(Path(directory).absolute())
        self._command = command
        self._distribution = distribution
        self._clock = clock
        self._now = now
        self._most_seconds = most_seconds
        self._replay: _Replay | None = None
        self._is_closed = False

    def ask(self, question: WhatIfQuestion) -> None:
        """Begin. Raises ConflictError while one runs, and where none can."""
        lacks = self._lacks()
        if lacks:
            raise ConflictError(_CURES[lacks])
        replay = self._replay
        if self._is_closed:
            raise ConflictError("the gateway is shutting down")
        if replay is not None and not replay.is_over:
            raise ConflictError(
                f"another question has been computed for {replay.seconds:.0f} s; wait for it, or"
                " stop it (the page's Stop, or DELETE /admin/what-if)"
            )
        assert self._directory is not None
        command = [*self._command, *question.arguments(self._directory, self._now())]
        self._replay = _Replay(question, command, self._clock, self._most_seconds)

    def stop(self) -> None:
        """End the run, if there is one, and forget what came of it."""
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.kill()

    def told(self) -> WhatIfState:
        """Return how it stands."""
        replay, lacks = self._replay, self._lacks()
        if replay is None:
            return WhatIfState("idle", lacks, _CURES.get(lacks, ""))
        is_over, seconds, question = replay.is_over, round(replay.seconds, 1), replay.question
        if not is_over:
            return WhatIfState("running", "", "", question, seconds, replay.progress)
        if replay.result is None:
            return WhatIfState("failed", lacks, replay.failed, question, seconds)
        return WhatIfState("done", lacks, "", question, seconds, result=replay.result)

    def close(self) -> None:
        """End the run; waits until it has ended."""
        self._is_closed = True
        if self._replay is not None:
            self._replay.kill()
            self._replay.join()

    def _lacks(self) -> Literal["", "record", "bench"]:
        if self._directory is None:
            return "record"
        return "" if find_spec(self._distribution) is not None else "bench"


_CURES = {
    "record": "nothing is recorded here; start the gateway with --record DIR",
    "bench": "inferway-bench, which replays it, is missing: pip install ./bench in a checkout",
}


def _num_processes() -> int:
    """Half of the cores: each holds the recording, and the gateway has to work."""
    return max(1, (os.cpu_count() or 1) // 2)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start it with nothing of our environment but what programs need, and with our own path. It
    ends when our end of its standard input is closed."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    path = os.pathsep.join(entry for entry in sys.path if os.path.isabs(entry))
    return subprocess.Popen(
        command,
        env={**kept, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # No session of its own: niceness counts within a session.
        process_group=0,
    )


def _too_long(seconds: float) -> str:
    return f"it took more than {seconds / 60:g} minutes; ask for fewer hours"


def _reason(said: bytes) -> str:
    """Return what the command says in the end."""
    text = said.decode(errors="replace").strip()
    _, _, error = text.rpartition("Error: ")
    last = error.strip() if error else text
    return " ".join(last.split())[: 4 * MOST_LINE]


def _result(out: bytes) -> WhatIfResult:
    """Raises msgspec.MsgspecError."""
    head, *rows = out.splitlines() or [b""]
    about = msgspec.json.decode(head, type=_Head).about
    found = [msgspec.json.decode(row, type=_Row) for row in rows]
    return WhatIfResult(
        [line.removeprefix("- ") for line in about],
        [_case(row) for row in found if row.table == "cases"],
    )


def _case(row: _Row) -> WhatIfCase:
    figures = {name: _mean(row.values.get(name)) for name in WhatIfCase.__struct_fields__[1:]}
    return WhatIfCase(str(row.keys["case"]), **figures)


def _mean(value: float | str | list[float] | None) -> Figure:
    if isinstance(value, list):
        return sum(value) / len(value) if value else None
    return value
