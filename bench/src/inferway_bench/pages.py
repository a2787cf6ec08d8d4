"""docs/benchmarks from docs/results: a page for each benchmark, an index, and one table that
README.md and docs/performance.md show. All that comes from results stands between marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway_bench.processes import BenchError
from inferway_bench.report import table_lines
from inferway_bench.rows import Run

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
    """The document with `text` between the marks of `benchmark`.

    Raises BenchError when it has no marks; `path` is where it lies.
    """
    begin_mark, end_mark = marks(benchmark)
    before, begin, rest = document.partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise BenchError(f"{path}: no {begin_mark!r} and {end_mark!r}; fix: add these lines")
    return f"{before}{begin_mark}\n{text}{end_mark}{after}"


def marks(benchmark: str) -> tuple[str, str]:
    """The lines before and behind what `inferway bench BENCHMARK` writes."""
    name = f"inferway bench {benchmark} -->"
    return f"<!-- begin: {name}", f"<!-- end: {name}"
