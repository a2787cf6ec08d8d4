"""A run of `inferway bench structured` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from inferway.bench.document import machine_line, table_lines, versions_line
from inferway.bench.structured.results import Count, Masks, StructuredRun, System, percentile

_KEPT = (
    *("", "compiled", "valid accepted", "invalid rejected", "all right"),
    *("a valid one refused", "an invalid one let through", "… unnamed"),
)
_SPEED = (
    *("", "compile ms p50 / p95 / max", "mask µs p50 / p95 / p99 / p99.9 / max"),
    "the same, CPU time",
)


def terminal_tables(run: StructuredRun) -> Iterator[Table]:
    yield _table(
        "What was asked",
        ("", "asked", "found", "met"),
        [[*goal[:3], "yes" if goal.is_met else "no"] for goal in run.goals()],
    )
    for ordered in (False, True):
        yield _table(f"Schemas, instances {_how(ordered)}", _KEPT, _kept_rows(run, ordered))
    yield _table("Speed", _SPEED, _speed_rows(run))


def _table(title: str, head: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for one in head:
        table.add_column(one)
    for row in rows:
        table.add_row(*row)
    return table


def markdown(run: StructuredRun) -> str:
    plan = run.plan
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    lines = [
        f"Measured {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}: "
        f"{len(run.schemas)} schemas of {run.file}, tokens of {run.tokenizer}, {versions}.",
        machine_line(run.machine) + f" After the run: {run.load_after}.",
        versions_line(run.machine),
        "",
        *table_lines(
            ("", "asked", "found", "met"),
            ([*g[:3], "yes" if g.is_met else "**no**"] for g in run.goals()),
            num_left=4,
        ),
    ]
    for ordered in (False, True):
        lines += ["", f"Schemas, with their instances {_how(ordered)}:", ""]
        lines += table_lines(_KEPT, _kept_rows(run, ordered))
    lines += ["", "Speed:", "", *table_lines(_SPEED, _speed_rows(run)), ""]
    lines += [f"Masks of {plan.batch_rows} answers inside a string, one step, ms:", ""]
    ways = list(next(iter(run.batch_ms.values())))
    lines += table_lines(
        ("", *ways),
        ([whose, *(f"{found[way]:.2f}" for way in ways)] for whose, found in run.batch_ms.items()),
    )
    return "\n".join(lines) + "\n"


def _how(ordered: bool) -> str:
    return "put into schema order first" if ordered else "as they came"


def _kept_rows(run: StructuredRun, ordered: bool) -> list[list[str]]:
    num = len(run.schemas)
    return [
        [system.name, *_kept(run.count(system, ordered=ordered), num)] for system in run.systems
    ]


def _kept(count: Count, num: int) -> list[str]:
    return [
        f"{count.compiled} ({count.compiled / num:.1%})",
        f"{count.valid_taken}/{count.valid}",
        f"{count.invalid_refused}/{count.invalid}",
        f"{count.right} ({count.right / num:.1%})",
        str(count.refusing),
        str(count.letting),
        str(count.letting_unnamed),
    ]


def _speed_rows(run: StructuredRun) -> list[list[str]]:
    return [_speed(run, system) for system in run.systems]


def _speed(run: StructuredRun, system: System) -> list[str]:
    times = run.compile_ms(system)
    return [
        system.name,
        " / ".join(f"{percentile(times, share):.1f}" for share in (0.5, 0.95, 1.0)),
        *(_masks(masks) for masks in (system.masks, system.masks_cpu)),
    ]


def _masks(masks: Masks | None) -> str:
    if masks is None:
        return ""
    found = (masks.p50, masks.p95, masks.p99, masks.p999, masks.max)
    return " / ".join(f"{us:.0f}" for us in found)
