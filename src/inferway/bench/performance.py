"""docs/performance.md from docs/results: all its tables are between marks, and come from there."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from inferway.bench.benchmark import Benchmark
from inferway.bench.document import replaced, table_lines
from inferway.bench.results import Run

_DOCUMENT = "performance.md"

Stored = Sequence[tuple[Benchmark[Any], Run]]


def rendered(docs: Path, benchmarks: Sequence[Benchmark[Any]]) -> dict[Path, str]:
    """The document, and the pages of details beside the results, as they ought to be.

    Raises BenchError when a result cannot be read, or the document has no marks for one.
    """
    stored = [(one, one.load(docs)) for one in benchmarks if one.results(docs).is_file()]
    sections = {one.name: one.markdown(run) for one, run in stored}
    whole = {one.name: one.details(run) for one, run in stored if one.details is not None}
    more = {name for name, text in whole.items() if text != sections[name]}
    for one, run in stored:
        sections[one.name] += "".join(
            f"\n![{picture.title}](results/{picture.name}.svg)\n" for picture in one.pictures(run)
        )
    about_all = {
        "commands": _commands(benchmarks, sections, more),
        "bars": _bars(stored),
        "losses": _losses(stored),
    }
    sections |= {name: "\n".join(lines) + "\n" for name, lines in about_all.items()}
    pages = {
        _page(one, docs): f"# `inferway bench {one.name}`\n\n{whole[one.name]}"
        for one, _ in stored
        if one.name in more
    }
    readme = docs.parent / "README.md"
    for one, run in stored:
        if one.glance is not None and readme.is_file():
            name = f"{one.name} at a glance"
            pages[readme] = replaced(readme.read_text(), name, one.glance(run), readme)
    # last, so that little time is left for somebody else to write it
    text = (docs / _DOCUMENT).read_text()
    for name, section in sections.items():
        text = replaced(text, name, section, docs / _DOCUMENT)
    return {docs / _DOCUMENT: text, **pages}


def write(docs: Path, benchmarks: Sequence[Benchmark[Any]]) -> list[Path]:
    """What has changed."""
    changed = []
    for path, text in rendered(docs, benchmarks).items():
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def _bars(stored: Stored) -> Iterator[str]:
    """Every bar, judged."""
    goals = [
        (f"{one.name}{', quick' * run.is_quick}", goal)
        for one, run in stored
        for goal in run.goals()
    ]
    held = sum(goal.is_met for _, goal in goals)
    yield f"{held} of {len(goals)} hold."
    yield ""
    yield from table_lines(
        ("bench", "what", "asked", "measured", "holds"),
        ([name, g.what, g.asked, g.found, "yes" if g.is_met else "**no**"] for name, g in goals),
        num_left=5,
    )


def _losses(stored: Stored) -> Iterator[str]:
    for one, run in stored:
        for loss in run.losses():
            yield f"- {one.name}: {loss}"


def _commands(
    benchmarks: Sequence[Benchmark[Any]], stored: Container[str], more: Container[str]
) -> Iterator[str]:
    rows = []
    for one in benchmarks:
        command = " ".join(filter(None, ("inferway bench", one.name, one.arguments)))
        links = [f"[json]({one.results(Path())})"] if one.name in stored else ["none stored"]
        if one.name in more:
            links.append(f"[more]({_page(one, Path())})")
        rows.append([f"`{command}`", one.question, one.takes, ", ".join(links)])
    yield from table_lines(("command", "what it answers", "takes", "results"), rows, num_left=4)


def _page(one: Benchmark[Any], docs: Path) -> Path:
    """All its tables, where the document has a part."""
    return one.results(docs).with_suffix(".md")
