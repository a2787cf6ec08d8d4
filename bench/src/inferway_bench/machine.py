"""The machine that a result was measured on: without it two numbers cannot be compared."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec

CPUINFO = Path("/proc/cpuinfo")
_QUIET_LOAD = 0.5
_URL = re.compile(r"https?://\S+")
_YARDSTICKS = 15
_PACKAGES = ("uvloop", "httptools", "msgspec", "fastokens", "numpy", "jinja2", "pyzmq")


class Machine(msgspec.Struct, frozen=True):
    """Hardware, system, versions, and how busy it was before anything was started."""

    date: str  # UTC
    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    packages: dict[str, str]
    commit: str  # "+changes" when the checkout had uncommitted ones
    load_before: float  # 1-minute load average
    yardstick_us: list[float] = msgspec.field(default_factory=list)
    """CPU time of the same piece of Python each time, before the run: what the machine is like."""

    @property
    def is_busy(self) -> bool:
        """True if the machine had other load before anything was started."""
        return self.load_before > _QUIET_LOAD


def this_machine() -> Machine:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: version(name) for name in _PACKAGES},
        commit=_commit(),
        load_before=round(os.getloadavg()[0], 2),
        yardstick_us=[take_yardstick() for _ in range(_YARDSTICKS)],
    )


def command_line() -> list[str]:
    """Return the words of the command that is running. Of files and folders elsewhere they have the
    names, not the places, which are this machine's; of headers not the values, which may be
    secret; and of URLs nothing."""
    return ["inferway", *map(_without_place, without_secrets(sys.argv[1:]))]


def without_secrets(words: Sequence[str]) -> Iterator[str]:
    """Yield a command's words without URLs and the values of headers."""
    is_header = False
    for word in words:
        if is_header or word.startswith("--header="):
            word = word.partition(":")[0] + ": …"
        is_header = word == "--header"
        yield _URL.sub("URL", word)


def _without_place(argument: str) -> str:
    flag, _, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    path = Path(value)
    if not path.name or not (path.is_absolute() or ".." in path.parts):
        return argument
    return f"{flag}={path.name}" if flag else path.name


def times_as_slow(now: Machine, then: Machine) -> float | None:
    """Return how many times as slow `now` is as `then`, by the yardstick; None where a machine is
    of a run older than the yardstick."""
    if not now.yardstick_us or not then.yardstick_us:
        return None
    return median(now.yardstick_us) / median(then.yardstick_us)


def take_yardstick() -> float:
    """Return the CPU time, us, of words to a dict and back: interpreter, allocator and caches."""
    started = time.thread_time_ns()
    counts: dict[str, int] = {}
    for i in range(20_000):
        word = str(i % 5_000)
        counts[word] = counts.get(word, 0) + 1
    sorted(counts, key=counts.__getitem__)
    return round((time.thread_time_ns() - started) / 1e3, 1)


def vllm_dtype(cpuinfo: str) -> str:
    """Return the `--dtype` that is fastest for vLLM on the CPU that /proc/cpuinfo shows. Without
    AVX-512 an x86 has to take bfloat16 apart: 26 ms a prompt token of SmolLM2-135M on a core of
    Zen 3, 5 ms with float32 (vLLM 0.32, torch 2.13, 2026-11-22)."""
    flags = _of_first_cpu(cpuinfo, "flags")
    return "auto" if flags is None or "avx512f" in flags.split() else "float32"


def _cpu_model() -> str:
    return _of_first_cpu(CPUINFO.read_text(), "model name") or platform.machine()


def _of_first_cpu(cpuinfo: str, name: str) -> str | None:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _commit() -> str:
    here = Path(__file__).parent
    commit = git(here, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return "not a git checkout"
    return f"{commit}+changes" if git(here, "status", "--porcelain", "--", ":/src") else commit


def git(checkout: Path, *words: str) -> str | None:
    """Return what git says of a checkout; None if there is no git, or no such history."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
