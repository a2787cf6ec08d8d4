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
    """Write every table and picture of DOCS/benchmarks from the stored runs in DOCS/results.

    DOCS is the folder docs unless it is given. Nothing is measured.
    """
    from inferway_bench import performance
    from inferway_bench.catalog import BENCHMARKS
    from inferway_bench.cli.shown import draw

    try:
        for path in performance.write(docs, BENCHMARKS):
            click.echo(path)
        for benchmark in BENCHMARKS:
            path = benchmark.results(docs)
            if path.is_file():
                draw(benchmark, benchmark.load(docs), path.parent, ("svg",))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
