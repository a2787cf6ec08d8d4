"""What a benchmark brings; writing, showing, comparing and drawing are the same for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from rich.table import Table

from inferway_bench import pages, plotting
from inferway_bench.plotting import Picture
from inferway_bench.results import AnyRun, load_run


def _no_notes(_: object) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Benchmark(Generic[AnyRun]):
    """One kind of run, and how it is told."""

    name: str  # as it is typed behind `inferway bench`, and between the marks of the document
    kind: type[AnyRun]
    tables: Callable[[AnyRun], Iterable[Table]]  # in the terminal
    markdown: Callable[[AnyRun], str]  # in the document
    pictures: Callable[[AnyRun], Sequence[Picture]]
    notes: Callable[[AnyRun], Sequence[str]] = _no_notes  # below the tables in the terminal
    details: Callable[[AnyRun], str] | None = None  # all tables, where the terminal has a part
    glance: Callable[[AnyRun], str] | None = None  # one table, for README.md
    question: str = ""  # what it answers
    takes: str = ""  # how long
    arguments: str = ""  # that it cannot do without

    @property
    def file(self) -> str:
        """The name of its results, without a suffix."""
        return pages.file_of(self.name)

    def results(self, docs: Path) -> Path:
        """Where its run is stored."""
        return docs / "results" / f"{self.file}.json"

    def load(self, docs: Path) -> AnyRun:
        """The run that is stored. Raises BenchError."""
        return load_run(self.results(docs), self.kind)

    def stored(self, docs: Path) -> pages.StoredRun | None:
        """What documents show of the stored run; None without one. Raises BenchError."""
        if not self.results(docs).is_file():
            return None
        run = self.load(docs)
        pictures = "".join(
            f"\n![{picture.title}](../results/{picture.name}.svg)\n"
            for picture in self.pictures(run)
        )
        glance = None if self.glance is None else self.glance(run)
        section = (self.details or self.markdown)(run) + pictures
        return pages.StoredRun(section, run.goals(), run.losses(), run.is_quick, glance)

    def draw_stored(self, docs: Path) -> None:
        """Raises BenchError."""
        if self.results(docs).is_file():
            for picture in self.pictures(self.load(docs)):
                plotting.write(picture, docs / "results", ("svg",))
