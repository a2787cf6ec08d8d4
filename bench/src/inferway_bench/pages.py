"""docs/benchmarks from docs/results: a page for each benchmark, an index, and one table that
README.md and docs/performance.md show, all between marks; and how old each result is: commits since
then that touched the code that it measures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway_bench.machine import git
from inferway_bench.processes import BenchError
from inferway_bench.rows import Run, table_lines

if TYPE_CHECKING:
    from inferway_bench.harness import Benchmark

    Stored = Sequence[tuple[Benchmark[Any], Run]]


def file_of(name: str) -> str:
    """Return the name of a benchmark's results and page, without a suffix."""
    return "_".join(name.replace("-", " ").split())


def results_of(name: str, docs: Path) -> Path:
    """Return where the run of a benchmark is stored."""
    return docs / "results" / f"{file_of(name)}.json"


def rendered(docs: Path, benchmarks: Sequence[Benchmark[Any]]) -> dict[Path, str]:
    """Return each document as it ought to be. One that is not there yet is begun with its marks.

    Raises BenchError when a result cannot be read, or a document has no marks for one.
    """
    stored = [(one, run) for one in benchmarks if (run := one.stored(docs)) is not None]
    sections = {
        "commands": _commands(benchmarks, {one.name for one, _ in stored}),
        "losses": [
            f"- {one.name}, {_day(run)}: {loss}" for one, run in stored for loss in one.losses(run)
        ],
    }
    index = docs / "benchmarks" / "README.md"
    text = _begun(index, "Benchmarks", sections)
    for name, lines in sections.items():
        text = replaced(text, name, "\n".join(lines) + "\n", index)
    pages = {index: text}
    for one, run in stored:
        page = docs / "benchmarks" / f"{file_of(one.name)}.md"
        text = _begun(page, f"`inferway bench {one.name}`", [one.name])
        pages[page] = replaced(text, one.name, one.markdown(run), page)
        for path in (docs.parent / "README.md", docs / "performance.md"):
            if one.glance is not None and path.is_file():
                glance = one.glance(run)
                pages[path] = replaced(path.read_text(), f"{one.name} at a glance", glance, path)
    return pages


def write(docs: Path, benchmarks: Sequence[Benchmark[Any]]) -> list[Path]:
    """Write each document that is not as it ought to be; return their paths. Raises BenchError as
    `rendered` does."""
    changed = []
    for path, text in rendered(docs, benchmarks).items():
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            changed.append(path)
    return changed


def _begun(path: Path, title: str, names: Iterable[str]) -> str:
    """What `path` has, or its first form."""
    if path.is_file():
        return path.read_text()
    return "\n\n".join([f"# {title}", *("\n".join(marks(name)) for name in names)]) + "\n"


def _day(run: Run) -> str:
    """On which it was measured."""
    return run.machine.date.partition(" ")[0]


def _commands(benchmarks: Sequence[Benchmark[Any]], stored: set[str]) -> Iterator[str]:
    rows = []
    for one in benchmarks:
        command = " ".join(filter(None, ("inferway bench", one.name, one.arguments)))
        results = "none stored"
        if one.name in stored:
            page = f"[page]({file_of(one.name)}.md)"
            results = f"{page}, [json](../{results_of(one.name, Path())})"
        rows.append([f"`{command}`", one.question, one.takes, results])
    yield from table_lines(("command", "what it answers", "takes", "results"), rows, num_left=4)


def replaced(document: str, benchmark: str, text: str, path: Path) -> str:
    """Return the document with `text` between the marks of `benchmark`.

    Raises BenchError when it has no marks; `path` is where it lies.
    """
    begin_mark, end_mark = marks(benchmark)
    before, begin, rest = document.partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise BenchError(f"{path}: no {begin_mark!r} and {end_mark!r}; fix: add these lines")
    return f"{before}{begin_mark}\n{text}{end_mark}{after}"


def marks(benchmark: str) -> tuple[str, str]:
    """Return the lines before and behind the text that `inferway bench BENCHMARK` writes."""
    name = f"inferway bench {benchmark} -->"
    return f"<!-- begin: {name}", f"<!-- end: {name}"


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
    "chaos": (f"{_SRC}/http", f"{_SRC}/upstream", f"{_SRC}/cluster", *_INDEX),
    "compatibility": (*_PROMPTS, *_INDEX),
    "continued": (f"{_SRC}/http", f"{_SRC}/openai_api", f"{_SRC}/routing"),
    "dataplane": _DATA_PLANE,
    "epp": ("src/inferway_llmd/ext_proc", f"{_SRC}/routing", f"{_SRC}/fleet", *_PROMPTS, *_INDEX),
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
    "policies_fleet_gateways": (*_SIMULATED, f"{_SRC}/cluster"),
    "policies_goodput": (*_SIMULATED, f"{_SRC}/routing/limits"),
    "policies_smg": (*_SIMULATED, f"{_SRC}/cluster"),
    "policies_hybrid": (
        *_SIMULATED,
        "src/inferway_sim/kv_groups",
        f"{_SRC}/kv/index/reuse.py",
    ),
    "resources": (f"{_SRC}/http", f"{_SRC}/upstream"),
    "scale": (*_INDEX, f"{_SRC}/fleet", f"{_SRC}/cluster"),
    "soak": _SERVED,
    "structured": ("structured/src",),
}


@dataclass(frozen=True, slots=True)
class Age:
    """The age of one stored result. `commits`: None if the history does not say."""

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
    written = git(checkout, "log", "-1", "--format=%as %h", "--", str(path.resolve())) or ""
    date, _, commit = written.partition(" ")  # of a result that does not say it itself
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
        told = git(checkout, "rev-list", "--count", *since, "--", *paths)
        if told is not None:
            return int(told)
    return None
