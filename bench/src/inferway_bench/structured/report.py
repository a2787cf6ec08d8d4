"""A run of `inferway bench structured` as tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator

from inferway_bench.plotting import DOTS, Line, Panel, Picture
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.structured.results import Count, Masks, StructuredRun, System, percentile

_KEPT = (
    *("", "compiled", "valid accepted", "invalid rejected", "all right"),
    *("refuse a valid one", "accept an invalid one", "… with its keyword not named"),
)
_STEPS = ("check", "verdict", "compile")
_CPU = ("", *_STEPS, "check and compile", "all")
_SPEED = (
    *("", "compile ms p50 / p95 / max", "mask µs p50 / p95 / p99 / p99.9 / max"),
    "mask CPU time, µs, same percentiles",
)


def about(run: StructuredRun) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return [
        f"{len(run.schemas)} schemas of {run.file}, tokens of {run.tokenizer}; {versions}. Load "
        f"average after the run: {run.load_after}."
    ]


def sheets(run: StructuredRun) -> Iterator[Sheet]:
    for ordered in (False, True):
        yield Sheet(f"Schemas, with instances {_how(ordered)}", _KEPT, _kept_rows(run, ordered))
    yield Sheet("Speed", _SPEED, _speed_rows(run))
    if run.cpu_ms(run.ours, _STEPS):
        yield Sheet("CPU time of a shape, ms, p50 / p95 / max", _CPU, _cpu_rows(run))
    ways = list(dict.fromkeys(way for found in run.batch_ms.values() for way in found))
    yield Sheet(
        f"Time of one step for the masks of {run.plan.batch_rows} answers that are inside a "
        f"string, ms, median of {run.plan.batch_repeats}",
        ("", *ways),
        [
            [whose, *(f"{found[way]:.2f}" if way in found else "" for way in ways)]
            for whose, found in run.batch_ms.items()
        ],
    )


def pictures(run: StructuredRun) -> list[Picture]:
    """How many schemas are compiled within what time, and how long masks take."""
    num = len(run.schemas)
    compiles, masks = [], []
    for system in run.systems:
        times = run.compile_ms(system)
        shares = [(i + 1) / num * 100 for i in range(len(times))]
        compiles.append(Line(system.name, times, shares, {"marker": ""}))
        percentiles = _percentiles(system.masks)
        masks.append(Line(system.name, range(len(percentiles)), percentiles, DOTS))
    panels = [
        Panel("compile, at most ms", "schemas, %", compiles, log_x=True),
        Panel("", "mask, µs", masks, log_y=True, ticks=("p50", "p95", "p99", "p99.9", "max")),
    ]
    return [Picture("structured", f"{num} schemas of {run.file}", [panels], one_legend=True)]


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


def _cpu_rows(run: StructuredRun) -> list[list[str]]:
    """Of the schemas that llguidance compiles, too, where it was run."""
    theirs = next((one for one in run.systems if one.name == "llguidance"), None)
    rows = []
    for system in run.systems:
        measured = {step for one in system.judged for step in one.cpu_ms}
        columns = [*((step,) for step in _STEPS), ("check", "compile"), _STEPS]
        row = [system.name]
        for steps in columns:
            times = run.cpu_ms(system, steps, beside=theirs) if measured.issuperset(steps) else ()
            cells = (f"{percentile(times, share):.1f}" for share in (0.5, 0.95, 1.0))
            row.append(" / ".join(cells) if times else "")
        rows.append(row)
    return rows


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
    return " / ".join(f"{us:.0f}" for us in _percentiles(masks))


def _percentiles(masks: Masks) -> tuple[float, ...]:
    return masks.p50, masks.p95, masks.p99, masks.p999, masks.max


STRUCTURED = told_by(
    "structured", StructuredRun, about, sheets, pictures=pictures,
    question="which real JSON schemas structured output enforces, and how fast, compared with four "
    "libraries",
    takes="half an hour",
    arguments="SAMPLE",
)  # fmt: skip
