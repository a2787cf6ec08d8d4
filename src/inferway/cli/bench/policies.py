"""`inferway bench policies`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console

from inferway.bench.chats import default_data_dir
from inferway.bench.policies.plan import QUICK, Plan
from inferway.bench.policies.plot import check_can_draw, draw
from inferway.bench.policies.report import goals_table, markdown, summary, terminal_tables
from inferway.bench.policies.results import load_run, write_lines
from inferway.bench.policies.run import run_again, run_policies
from inferway.cli.bench import ending
from inferway.errors import InferwayError


@click.command()
@click.option("--quick", is_flag=True, help="Few requests, one load: a look, not a result.")
@click.option("--only", multiple=True, metavar="POLICY", help="This policy alone; repeat for more.")
@click.option(
    "--workload", "workloads", multiple=True, type=click.Choice(["mooncake", "chats", "agentic"]),
    help="This workload alone.  [default: all]",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), help="How many.  [default: 5]")
@click.option("--engines", type=click.IntRange(min=2), help="How many.  [default: 8]")
@click.option(
    "--gateways", type=click.IntRange(min=1), multiple=True,
    help="How many stand in front of the fleet; repeat for more cases.  [default: 1, 4]",
)  # fmt: skip
@click.option(
    "--attention-tokens", type=click.IntRange(min=1), metavar="TOKENS",
    help="A prompt token costs twice where it looks at so many.  [default: all cost the same]",
)  # fmt: skip
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=default_data_dir,
    metavar="DIR",
    help="The project's data: DIR/traces.  [default: ../shared/data]",
)
@click.option(
    "--again", multiple=True, metavar="POLICY",
    help="Simulate this policy anew and keep the rest of what --save has written before; repeat "
    "for more.",
)  # fmt: skip
@click.option("--lines", is_flag=True, help="JSON lines on standard output, not tables.")
@click.option(
    "--plot",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Draw DIR/policies.svg and .png.",
)
@click.option(
    "--save",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DOCS",
    help="Write DOCS/results/policies.json, .svg and .png, and the tables in DOCS/performance.md.",
)
def policies(
    quick: bool,
    only: tuple[str, ...],
    workloads: tuple[str, ...],
    seeds: int | None,
    engines: int | None,
    gateways: tuple[int, ...],
    attention_tokens: int | None,
    data: Path,
    again: tuple[str, ...],
    lines: bool,
    plot: Path | None,
    save: Path | None,
) -> None:
    """Policies compared on one simulated fleet, in virtual time: real traces and generated chats,
    the same scheduling code as in production, and an oracle."""
    plan = QUICK if quick else Plan()
    engine = msgspec.structs.replace(plan.fleet.engine, attention_tokens=attention_tokens or 0)
    fleet = msgspec.structs.replace(
        plan.fleet, num_engines=engines or plan.fleet.num_engines, engine=engine
    )
    plan = msgspec.structs.replace(
        plan,
        policies=only,
        workloads=workloads or plan.workloads,
        seeds=seeds or plan.seeds,
        gateways=gateways or plan.gateways,
        fleet=fleet,
    )
    try:
        if plot is not None or save is not None:
            check_can_draw()
        if again and save is None:
            raise click.UsageError("--again: what was before is where --save writes; give it, too")
        with Console(stderr=True).status("starting") as status:
            if again and save is not None:
                before = load_run(save / "results" / "policies.json")
                run = run_again(before, again, data / "traces", status.update)
            else:
                run = run_policies(plan, data / "traces", status.update)
        if plot is not None:
            draw(run, plot)
        if save is not None:
            text = write_lines(run).encode()
            draw(run, ending.save(save, "policies", text, "policies", markdown(run)))
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if lines:
        click.echo(write_lines(run), nl=False)
    else:
        goals = goals_table(run)
        tables = [*terminal_tables(run), *([goals] if goals is not None else [])]
        ending.show(tables, summary(run), run.machine)
