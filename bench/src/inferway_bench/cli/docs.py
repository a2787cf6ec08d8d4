"""`inferway bench docs`."""

from __future__ import annotations

from pathlib import Path

import click

from inferway.errors import InferwayError


@click.command()
@click.argument(
    "docs", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("docs")
)
def docs(docs: Path) -> None:
    """Write every table and picture of DOCS/benchmarks from the stored runs in DOCS/results, and
    say how old each run is.

    DOCS is the folder docs unless it is given. Nothing is measured.
    """
    from inferway_bench import ages, pages
    from inferway_bench.catalog import BENCHMARKS

    try:
        for path in pages.write(docs, BENCHMARKS):
            click.echo(path)
        for benchmark in BENCHMARKS:
            run = benchmark.stored(docs)
            if run is not None:
                benchmark.draw(run, docs / "results", ("svg",))
        for line in ages.lines(ages.ages(docs)):
            click.echo(line)
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
