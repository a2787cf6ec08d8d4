"""How old each stored result is: commits since then that touched the code that it measures."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SRC = "src/inferway"
_BENCH = "bench/src/inferway_bench"
_PROMPTS = (f"{_SRC}/prompts", f"{_SRC}/openai_api")
_INDEX = (f"{_SRC}/kv/index", f"{_SRC}/kv/events", f"{_SRC}/kv/blocks")
_CHOICE = (f"{_SRC}/scheduling", f"{_SRC}/routing")
_DATA_PLANE = (f"{_SRC}/http", f"{_SRC}/upstream", f"{_SRC}/routing", *_PROMPTS)
_SIMULATED = (f"{_SRC}/scheduling", f"{_BENCH}/policies", f"{_BENCH}/simulate")
_SERVED = (*_DATA_PLANE, *_CHOICE, f"{_SRC}/fleet", f"{_SRC}/kv")

# The file in docs/results, without its suffix -> the folders and files whose change can change it.
MEASURED: dict[str, tuple[str, ...]] = {
    "busy_holder": (*_CHOICE, f"{_SRC}/http/forward.py"),
    "chaos": (f"{_SRC}/http", f"{_SRC}/upstream", f"{_SRC}/workers", *_INDEX),
    "compatibility": (*_PROMPTS, *_INDEX),
    "continued": (f"{_SRC}/http", f"{_SRC}/openai_api", f"{_SRC}/routing"),
    "dataplane": _DATA_PLANE,
    "epp": ("src/inferway_llmd/ext_proc", f"{_SRC}/routing"),
    "fidelity": (f"{_SRC}/prompts",),
    "fleet_tokens": _PROMPTS,
    "fuzz": (f"{_SRC}/http", f"{_SRC}/upstream", "src/inferway_llmd/ext_proc"),
    "index": _INDEX,
    "killed_prefill": (*_CHOICE, f"{_SRC}/http", f"{_SRC}/upstream"),
    "kv_transfer": _SIMULATED,
    "peers": _SERVED,
    "peers_real": _SERVED,
    "policies": _SIMULATED,
    "policies_fleet": _SIMULATED,
    "policies_fleet_gateways": (*_SIMULATED, f"{_SRC}/replicas", f"{_SRC}/workers"),
    "policies_hybrid": (
        *_SIMULATED,
        "src/inferway_sim/kv_groups",
        f"{_SRC}/kv/index/reuse.py",
    ),
    "prompts": _PROMPTS,
    "resources": (f"{_SRC}/http", f"{_SRC}/upstream"),
    "scale": (*_INDEX, f"{_SRC}/fleet", f"{_SRC}/workers"),
    "soak": _SERVED,
    "structured": ("structured/src",),
    "validate": (*_SIMULATED, "src/inferway_sim"),
    "what_if": (*_SIMULATED, f"{_BENCH}/whatif"),
    "what_if_real": (*_SIMULATED, f"{_BENCH}/whatif"),
}


@dataclass(frozen=True, slots=True)
class Age:
    """Of one stored result. `commits`: None if the history does not say."""

    name: str
    date: str  # UTC
    commit: str
    commits: int | None


def ages(docs: Path) -> list[Age]:
    """Return the age of each stored result, those that most has changed since first."""
    found = [
        _age(path, docs.resolve().parent) for path in sorted((docs / "results").glob("*.json"))
    ]
    return sorted(found, key=lambda age: -1 if age.commits is None else age.commits, reverse=True)


def lines(found: Sequence[Age]) -> Iterator[str]:
    """Yield a table for the terminal."""
    yield f"{'result':<24} {'measured':<16} {'commit':<12} commits since then to what it measures"
    for age in found:
        since = "not known" if age.commits is None else str(age.commits)
        yield f"{age.name:<24} {age.date:<16} {age.commit[:12]:<12} {since}"


def _age(path: Path, checkout: Path) -> Age:
    found = _head(path)
    written = _git(checkout, "log", "-1", "--format=%as %h", "--", str(path.resolve())) or ""
    date, _, commit = written.strip().partition(" ")  # of a result that does not say it itself
    machine = found.get("machine") or {"date": found.get("date", date), "commit": commit}
    date, commit = machine["date"], machine["commit"]
    return Age(
        path.stem, date, commit, _commits(checkout, commit, date, MEASURED.get(path.stem, ()))
    )


def _head(path: Path) -> dict[str, Any]:
    """The first line of a benchmark's file, or the whole of another."""
    text = path.read_text()
    try:
        head: dict[str, Any] = json.loads(text.partition("\n")[0])
    except ValueError:
        head = json.loads(text)
    return head


def _commits(checkout: Path, commit: str, date: str, paths: Sequence[str]) -> int | None:
    """By the commit, or by the date where the history does not have it (a copy, other hashes)."""
    known = commit.partition("+")[0]
    ranges = [[f"{known}..HEAD"]] * bool(known) + [[f"--since={date} +0000", "HEAD"]] * bool(date)
    for since in ranges if paths else []:
        told = _git(checkout, "rev-list", "--count", *since, "--", *paths)
        if told is not None:
            return int(told)
    return None


def _git(checkout: Path, *words: str) -> str | None:
    """What git says; None if there is none, or no such history."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
