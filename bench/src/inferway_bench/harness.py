"""The command of a benchmark: the plan gives its flags, the rows give everything that it shows.

A benchmark is one file. It has a plan, a function that measures and returns `Findings`, and tables
and a chart that show them. Its command writes JSON, tables, pictures and pages: all of that is
here.

    class RoutePlan(msgspec.Struct, frozen=True):
        repeats: Annotated[int, flag("Load each router this number of times.", ge=1)] = 7
        warm_up_seconds: int = 2  # without `flag`: none

    def measure(plan: RoutePlan, on_step: OnStep) -> Findings: ...

    ROUTE = Benchmark("route", "Measure the CPU time of a routed request.", RoutePlan, measure, …)
    route = ROUTE.command()  # the one that `cli/__init__.py` names
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import click
import msgspec
from rich.console import Console

from inferway.cli.command import Command, Section
from inferway.errors import InferwayError
from inferway_bench import flags, pages, plotting
from inferway_bench.machine import command_line, this_machine
from inferway_bench.plotting import Chart
from inferway_bench.processes import OnStep
from inferway_bench.rows import (
    Findings,
    Run,
    Table,
    load_run,
    measured_lines,
    shown_tables,
    write_run,
)

if TYPE_CHECKING:
    from rich.progress import Progress

P = TypeVar("P", bound=msgspec.Struct)

_INTERRUPTED = 130  # the exit status
_WIDE = 140  # characters, where there is no terminal that has a width
_FOR_MAINTAINERS = "This benchmark is for the maintainers of Inferway."


def _nothing(_: Run) -> list[Any]:
    return []


@dataclass(frozen=True)
class Benchmark(Generic[P]):
    """One command of `inferway bench`, and how its runs are shown."""

    name: str
    help: str  # of the command: what it measures, and what it needs
    plan: type[P]
    measure: Callable[[P, OnStep], Findings]
    tables: Sequence[Table]
    chart: Chart | None = None
    quick: Mapping[str, Any] = field(default_factory=dict)  # fields of the plan with --quick
    losses: Callable[[Run], list[str]] = _nothing  # sentences: where others are ahead, beyond noise
    glance: Callable[[Run], str] | None = None  # one table, for README.md, in markdown
    question: str = ""  # what the page's reader wants to know
    takes: str = ""  # how long
    arguments: str = ""  # that it cannot do without
    audience: Literal["user", "maintainer"] = "maintainer"
    times: Literal["this machine", "another machine", "virtual"] = "this machine"
    run_name: Callable[[P], str] | None = None  # what a run is stored as, if not as `name`
    program: str = "inferway bench"  # that it is a command of,
    typed: str = ""  # and as which, if not as `name`
    terminal: Callable[[Run], list[str]] = _nothing  # lines of a picture, for a terminal alone

    def run(self, plan: P, on_step: OnStep) -> Run:
        """Measure, and return the run. Raises BenchError."""
        machine = this_machine()
        found = self.measure(plan, on_step)
        values = {name: getattr(found, name) for name in Findings.__struct_fields__}
        if not found.seeds and hasattr(plan, "seed"):
            values["seeds"] = [plan.seed]
        return Run(
            benchmark=self.name if self.run_name is None else self.run_name(plan),
            machine=machine,
            command=shlex.join(command_line()),
            plan=msgspec.to_builtins(plan, enc_hook=_without_place),
            times=self.times,
            **values,
        )

    def stored(self, docs: Path) -> Run | None:
        """Return the run that is stored in a folder of documents; None without one. Raises
        BenchError."""
        path = pages.results_of(self.name, docs)
        return load_run(path) if path.is_file() else None

    def markdown(self, run: Run) -> str:
        """Return what the page of the benchmark has of a run: all tables, and the picture."""
        shown = shown_tables(run, self.tables)
        lines = [*measured_lines(run), *run.about, *(line for s in shown for line in s.markdown())]
        if self.chart is not None:
            title = plotting.drawn(run, self.chart, "").title
            lines += ["", f"![{title}](../results/{pages.file_of(self.name)}.svg)"]
        return "\n".join(lines) + "\n"

    def draw(self, run: Run, directory: Path, formats: Sequence[str] = ("png", "svg")) -> None:
        """Write the chart of a run, if there is something to draw, as NAME.png and NAME.svg."""
        if self.chart is not None:
            picture = plotting.drawn(run, self.chart, pages.file_of(run.benchmark))
            if any(picture.rows):
                plotting.write(picture, directory, formats)

    def show(self, run: Run) -> None:
        """Print the tables on standard output, and below them what was noted and missed."""
        console = console_of()
        for table in shown_tables(run, self.tables):
            if table.in_details:
                continue
            console.print(table.terminal())
            for note in table.notes:
                console.print(f"  {note}", highlight=False)
        for line in self.terminal(run):
            shown = line if console.encoding.startswith("utf") else line.replace("█", "#")
            console.print(f"  {shown}", highlight=False, markup=False)
        machine = run.machine
        for line in (
            *filter(None, run.about),
            f"{machine.cores} cores of {machine.cpu}, {machine.date} UTC, commit {machine.commit}",
        ):
            console.print(f"  {line}", highlight=False)

    def command(self) -> click.Command:
        """Return the command: the flags of the plan, `--quick`, and those of every benchmark."""
        words = self.help if self.audience == "user" else f"{self.help}\n\n{_FOR_MAINTAINERS}"
        example = " ".join(filter(None, (self.program, self.typed or self.name, self.arguments)))
        quick = "Measure fewer and shorter repeats: a look, not a result."
        own: list[click.Parameter] = list(flags.parameters(self.plan))
        if self.quick:
            own.insert(0, click.Option(["--quick"], is_flag=True, help=quick))
        common = [
            option
            for option in _common_options(pages.file_of(self.name))
            if option.name != "plot" or self.chart is not None
        ]
        title = "What is asked" if self.typed else "What is measured"
        measured = Section(title, f"{example}{' --quick' if self.quick else ''}")
        results = Section("Results", f"{example} --json")
        for option, section in [*((o, measured) for o in own), *((o, results) for o in common)]:
            part = getattr(option, "section", section)
            part = replace(part, example=part.example.replace("{command}", example))
            option.section = part  # type: ignore[attr-defined]  # as cli.command reads it
        return Command(
            self.typed or self.name, params=[*own, *common], callback=self._main, help=words
        )

    def _main(self, **given: Any) -> None:
        output = {name: given.pop(name, None) for name in ("as_json", "save", "plot")}
        base = self.quick if given.pop("quick", False) else {}
        try:
            plan = self.plan(**{**base, **flags.given(given)})
        except ValueError as e:
            raise click.UsageError(str(e)) from e
        try:
            with shown_progress() as on_step:
                run = self.run(plan, on_step)
            if output["save"] is not None:
                self._save(run, output["save"])
            if output["plot"] is not None:
                self._stored_as(run).draw(run, output["plot"])
        except InferwayError as e:
            raise click.ClickException(str(e)) from e
        if output["as_json"]:
            click.echo(write_run(run), nl=False)
        else:
            self.show(run)
        if not run.is_whole:
            sys.exit(_INTERRUPTED)

    def _save(self, run: Run, path: Path) -> None:
        """Into the file, or as results/NAME.json of the folder of documents, whose pages are made
        anew."""
        if not path.is_dir():
            path.write_bytes(write_run(run))
            return
        from inferway_bench.cli import benchmarks  # which imports this module

        results = pages.results_of(run.benchmark, path)
        results.parent.mkdir(exist_ok=True)
        results.write_bytes(write_run(run))
        self._stored_as(run).draw(run, results.parent, ("svg",))
        pages.write(path, benchmarks())

    def _stored_as(self, run: Run) -> Benchmark[Any]:
        """The benchmark that a run is stored as, whose chart is another one."""
        if run.benchmark == self.name:
            return self
        from inferway_bench.cli import benchmarks  # which imports this module

        return next((one for one in benchmarks() if one.name == run.benchmark), self)


def _without_place(path: object) -> str:
    """A file's name: its place is this machine's."""
    return path.name if isinstance(path, Path) else str(path)


def _common_options(file: str) -> list[click.Option]:
    a_folder = click.Path(exists=True, file_okay=False, path_type=Path)
    return [
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON lines, not tables."),
        click.Option(
            ["--save"],
            type=click.Path(path_type=Path),
            metavar="DOCS|FILE",
            help=f"Write DOCS/results/{file}.json and its page in DOCS/benchmarks, if DOCS is a "
            "folder; else write the run to FILE, as JSON lines.",
        ),
        click.Option(
            ["--plot"], type=a_folder, metavar="DIR",
            help=f"Draw the run as DIR/{file}.png and DIR/{file}.svg.",
        ),
    ]  # fmt: skip


def console_of() -> Console:
    """Return the terminal, or a wide page where there is none."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    return console


@contextmanager
def shown_progress() -> Iterator[OnStep]:
    """Show on standard error what is under way, if that is a terminal. Nothing is drawn between two
    calls: a thread that draws would take time from what is measured."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TimeElapsedColumn(), BarColumn(20), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as shown:
        yield _StepBar(shown)


class _StepBar:
    """Counts as it is told, or as the words say it (`short chat: round_robin, 3 of 7`)."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task = shown.add_task("starting", total=None)

    def __call__(self, what: str, done: int | None = None, total: int | None = None) -> None:
        counted = re.search(r"([\d,]+) of ([\d,]+)", what)
        if total is None and counted is not None:
            done, total = (int(number.replace(",", "")) for number in counted.groups())
        self._shown.update(
            self._task, description=what, completed=done or 0, total=total, refresh=True
        )
