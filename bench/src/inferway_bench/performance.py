"""docs/benchmarks from docs/results: a page for each benchmark, an index, and one table that
README.md and docs/performance.md show. All that comes from results stands between marks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from inferway_bench.benchmark import Benchmark
from inferway_bench.document import marks, replaced, table_lines
from inferway_bench.results import Run

_PAGES = "benchmarks"
_INDEX = "README.md"

Stored = Sequence[tuple[Benchmark[Any], Run]]


def rendered(docs: Path, benchmarks: Sequence[Benchmark[Any]]) -> dict[Path, str]:
    """Each document as it ought to be. One that is not there yet is begun with its marks.

    Raises BenchError when a result cannot be read, or a document has no marks for one.
    """
    stored = [(one, one.load(docs)) for one in benchmarks if one.results(docs).is_file()]
    sections = {
        "commands": _commands(benchmarks, {one.name for one, _ in stored}),
        "bars": _bars(stored),
        "losses": _losses(stored),
    }
    index = docs / _PAGES / _INDEX
    text = _begun(index, "Benchmarks", sections)
    for name, lines in sections.items():
        text = replaced(text, name, "\n".join(lines) + "\n", index)
    pages = {index: text}
    for one, run in stored:
        page = docs / _page(one)
        text = _begun(page, f"`inferway bench {one.name}`", [one.name])
        pages[page] = replaced(text, one.name, _section(one, run), page)
        if one.glance is not None:
            pages |= _glances(docs, one.name, one.glance(run))
    return pages


def _begun(path: Path, title: str, names: Iterable[str]) -> str:
    """What `path` has, or its first form."""
    if path.is_file():
        return path.read_text()
    return "\n\n".join([f"# {title}", *("\n".join(marks(name)) for name in names)]) + "\n"


def _section(one: Benchmark[Any], run: Run) -> str:
    """All tables and pictures of a run."""
    pictures = "".join(
        f"\n![{picture.title}](../results/{picture.name}.svg)\n" for picture in one.pictures(run)
    )
    return (one.details or one.markdown)(run) + pictures


def _glances(docs: Path, name: str, text: str) -> Iterator[tuple[Path, str]]:
    """The documents that show a benchmark's one table."""
    for path in (docs.parent / "README.md", docs / "performance.md"):
        if path.is_file():
            yield path, replaced(path.read_text(), f"{name} at a glance", text, path)


def write(docs: Path, benchmarks: Sequence[Benchmark[Any]]) -> list[Path]:
    """What has changed."""
    changed = []
    for path, text in rendered(docs, benchmarks).items():
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            changed.append(path)
    return changed


def _bars(stored: Stored) -> Iterator[str]:
    """Every requirement, judged."""
    goals = [
        (f"{one.name}{', quick' * run.is_quick}", goal)
        for one, run in stored
        for goal in run.goals()
    ]
    held = sum(goal.is_met for _, goal in goals)
    yield f"{held} of {len(goals)} requirements are met."
    yield ""
    yield from table_lines(
        ("benchmark", "figure", "required", "measured", "met"),
        ([name, g.what, g.asked, g.found, "yes" if g.is_met else "**no**"] for name, g in goals),
        num_left=5,
    )


def _losses(stored: Stored) -> Iterator[str]:
    for one, run in stored:
        for loss in run.losses():
            yield f"- {one.name}: {loss}"


def _commands(benchmarks: Sequence[Benchmark[Any]], stored: Container[str]) -> Iterator[str]:
    rows = []
    for one in benchmarks:
        command = " ".join(filter(None, ("inferway bench", one.name, one.arguments)))
        results = "none stored"
        if one.name in stored:
            results = f"[page]({_page(one).name}), [json](../{one.results(Path())})"
        rows.append([f"`{command}`", one.question, one.takes, results])
    yield from table_lines(("command", "what it answers", "takes", "results"), rows, num_left=4)


def _page(one: Benchmark[Any]) -> Path:
    """Where its tables are, in the documents."""
    return Path(_PAGES, f"{one.file}.md")
