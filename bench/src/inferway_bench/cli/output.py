"""The flags of every benchmark that say what is done with a run, and doing it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from inferway.errors import InferwayError

if TYPE_CHECKING:
    from inferway_bench.benchmark import Benchmark
    from inferway_bench.progress import OnCountedStep
    from inferway_bench.results import AnyRun

_Command = TypeVar("_Command", bound=Callable[..., Any])

TOLERANCE = 0.1
TOLERANCE_OPTION = click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=TOLERANCE,
    show_default=True,
    help="Let a figure be worse by this share, beyond its noise.",
)


@dataclass(frozen=True, slots=True)
class Output:
    """What the flags ask for."""

    as_json: bool
    save: Path | None
    plot: Path | None
    compare: Path | None
    tolerance: float

    def measure(
        self, benchmark: Benchmark[AnyRun], measurement: Callable[[OnCountedStep], AnyRun]
    ) -> None:
        """Measures, and does what was asked for. Ends the process with status 1 if something is
        worse than in the old run; errors end it with their cure."""
        from inferway_bench.cli import shown
        from inferway_bench.compare import compare_figures
        from inferway_bench.results import load_run, write_run

        try:
            old = None if self.compare is None else load_run(self.compare, benchmark.kind)
            with shown.shown_progress() as on_step:
                run = measurement(on_step)
            if self.save is not None:
                shown.keep(benchmark, run, self.save)
            if self.plot is not None:
                shown.draw(benchmark, run, self.plot, ("png", "svg"))
        except InferwayError as e:
            raise click.ClickException(str(e)) from e
        if self.as_json:
            click.echo(write_run(benchmark.name, run), nl=False)
        else:
            shown.show(benchmark, run)
        if old is not None:
            shown.show_comparison(
                compare_figures(old, run, old.figures(), run.figures()), self.tolerance
            )


def output_options(file: str) -> Callable[[_Command], _Command]:
    """Decorates a benchmark's command with the flags of `Output`, which it gets as `output`. FILE
    is the name of its results."""
    a_folder = click.Path(exists=True, file_okay=False, path_type=Path)
    options = [
        click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of tables."),
        click.option(
            "--save",
            type=a_folder,
            metavar="DOCS",
            help=f"Write DOCS/results/{file}.json and its page in DOCS/benchmarks.",
        ),
        click.option(
            "--plot", type=a_folder, metavar="DIR", help="Draw the run as DIR/*.png and DIR/*.svg."
        ),
        click.option(
            "--compare",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="OLD.json",
            help="Compare with the run in this file. The exit status is 1 if a figure of Inferway "
            "is worse.",
        ),
        TOLERANCE_OPTION,
    ]

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*arguments: Any, **given: Any) -> None:
            asked = {field.name: given.pop(field.name) for field in fields(Output)}
            command(*arguments, output=Output(**asked), **given)

        decorated: Any = run
        for option in reversed(options):
            decorated = option(decorated)
        result: _Command = decorated
        return result

    return decorate
