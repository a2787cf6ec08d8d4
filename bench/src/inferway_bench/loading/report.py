"""A run of `inferway bench load` as tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from inferway_bench.loading.results import LoadRun, Measured, Times
from inferway_bench.plotting import Level, Line, Panel, Picture
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import Interval


def about(run: LoadRun) -> list[str]:
    return [f"{run.url}, model {run.model}; {run.workload}."]


def sheets(run: LoadRun) -> Iterator[Sheet]:
    """Narrow enough for a terminal; latencies are from the intended time unless it is said."""
    yield Sheet(
        "Time to first token, ms, with 95 % intervals",
        ("load", "requests", "mean", "p50", "p90", "p99"),
        [_ttft_row(m) for m in run.measured],
    )
    yield Sheet(
        "Time between tokens, and the whole answer, ms",
        ("load", "ITL", "p90", "E2E", "p90", "p99"),
        [_answer_row(m) for m in run.measured],
    )
    yield Sheet(
        "Throughput, and prompt tokens from a cache as the engines say",
        ("load", "answers/s", "tokens/s", "cached"),
        [_throughput_row(m) for m in run.measured],
    )
    if any(m.slo is not None for m in run.measured):
        yield Sheet(
            f"Goals: {_goals(run)}",
            ("load", "kept", "good answers/s"),
            [[m.load, _share(m.attained), _plain(m.goodput)] for m in run.measured],
        )
    yield Sheet(
        "What was sent, mean tokens, and the load generator itself",
        ("load", "failed", "prompt", "answer", "held", "late p99", "its CPU"),
        [_sent_row(m) for m in run.measured],
        notes=[
            "held: turns whose session's answer before was not there at their time; late: how "
            "long the generator itself held requests up, ms; CPU: of one core"
        ],
    )
    yield Sheet(
        "The same p99, ms, from sending: what others report, and what hides waiting",
        ("load", "TTFT", "from sending", "E2E", "from sending"),
        [_clocks_row(m) for m in run.measured],
    )
    if any(m.users is not None for m in run.measured):
        yield Sheet(
            "Closed loops, p99, ms: corrected for what was not sent while a user waited",
            ("load", "TTFT", "corrected", "E2E", "corrected"),
            [_corrected_row(m) for m in run.measured if m.users is not None],
        )


def notes(run: LoadRun) -> list[str]:
    """What speaks against the figures, load by load, and what errors said."""
    found = [*about(run)]
    for m in run.measured:
        found += [f"{m.load}: {doubt}" for doubt in m.doubts]
        found += [f"{m.load}: {kind}: {said}" for kind, said in m.examples.items()]
    return found


def pictures(run: LoadRun) -> list[Picture]:
    """As seed 000's three panels, and the share that was cached if it is known."""
    panels = [_ttft_panel(run), _itl_panel(run), _tokens_panel(run)]
    if any(m.cached_share is not None for m in run.measured):
        panels.append(_cached_panel(run))
    return [Picture("load", f"{run.model}: {run.workload}", [panels])]


def _ttft_row(m: Measured) -> list[str]:
    return [m.load, f"{m.num_requests:,}", *_spread(m.ttft), _ms(_p99(m.ttft))]


def _answer_row(m: Measured) -> list[str]:
    itl, e2e = m.itl, m.e2e
    return [
        *(m.load, _ms(_mean(itl)), _ms(_value(_p90(itl)))),
        *(_ms(_mean(e2e)), _ms(_value(_p90(e2e))), _ms(_p99(e2e))),
    ]


def _spread(times: Times | None) -> list[str]:
    return [_ms(_mean(times)), _ms(_p50(times)), _ms(_p90(times))]


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


def _mean(times: Times | None) -> Interval | None:
    return None if times is None else times.mean


def _p50(times: Times | None) -> float | None:
    return None if times is None else times.p50


def _p90(times: Times | None) -> Interval | None:
    return None if times is None else times.p90


def _p99(times: Times | None) -> float | None:
    return None if times is None else times.p99


def _throughput_row(m: Measured) -> list[str]:
    answered, tokens = m.requests_per_second, m.output_tokens_per_second
    return [m.load, _plain(answered), _plain(tokens), _share(m.cached_share)]


def _sent_row(m: Measured) -> list[str]:
    return [
        *(m.load, f"{m.num_requests - m.num_ok:,}"),
        *(_number(m.prompt_tokens), _number(m.completion_tokens)),
        *(f"{m.num_held:,}", _ms(m.late_p99), f"{m.cpu_share:.0%}"),
    ]


def _clocks_row(m: Measured) -> list[str]:
    pairs = ((m.ttft, m.ttft_sent), (m.e2e, m.e2e_sent))
    return [m.load, *(_ms(_p99(times)) for pair in pairs for times in pair)]


def _goals(run: LoadRun) -> str:
    slo = next(m.slo for m in run.measured if m.slo is not None)
    named = (("TTFT", slo.ttft), ("ITL", slo.itl), ("E2E", slo.e2e))
    return ", ".join(f"{name} up to {_ms(limit)} ms" for name, limit in named if limit is not None)


def _corrected_row(m: Measured) -> list[str]:
    ttft, e2e = (_ms(_p99(times)) for times in (m.ttft, m.e2e))
    return [m.load, ttft, _ms(m.corrected_ttft_p99), e2e, _ms(m.corrected_e2e_p99)]


def _ms(seconds: Interval | float | None) -> str:
    if seconds is None:
        return "-"
    if isinstance(seconds, Interval):
        return seconds.times(1e3).shown(_three)
    return _three(seconds * 1e3)


def _three(value: float) -> str:
    """Three digits, and no more where there are more before the point."""
    return (
        f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def _plain(interval: Interval | None) -> str:
    return "-" if interval is None else interval.shown(_three)


def _share(interval: Interval | None) -> str:
    return "-" if interval is None else interval.shown("{:.1%}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _line(
    run: LoadRun, label: str, of: Callable[[Measured], Interval | float | None], factor: float
) -> Line:
    points = [(_x(m, i), value) for i, m in enumerate(run.measured) if (value := of(m)) is not None]
    ys = [y.times(factor) if isinstance(y, Interval) else y * factor for _, y in points]
    return Line(label, [x for x, _ in points], ys)


def _x(m: Measured, number: int) -> float:
    return m.rate if m.rate is not None else float(m.users or number)


def _axis(run: LoadRun) -> str:
    return "users" if run.measured[0].users is not None else "requests per second"


def _ttft_panel(run: LoadRun) -> Panel:
    lines = [
        _line(run, "mean", lambda m: _mean(m.ttft), 1e3),
        _line(run, "90 %", lambda m: _p90(m.ttft), 1e3),
    ]
    levels: Sequence[Level] = ()
    goals = {m.slo.ttft for m in run.measured if m.slo is not None and m.slo.ttft is not None}
    if goals:
        style = {"color": "black", "linestyle": "--"}
        levels = [Level(goal * 1e3, "goal", style) for goal in sorted(goals)]
    return Panel(_axis(run), "time to first token, ms", lines, levels=levels)


def _itl_panel(run: LoadRun) -> Panel:
    lines = [
        _line(run, "mean", lambda m: _mean(m.itl), 1e3),
        _line(run, "90 %", lambda m: _p90(m.itl), 1e3),
    ]
    return Panel(_axis(run), "time between tokens, ms", lines)


def _tokens_panel(run: LoadRun) -> Panel:
    line = _line(run, "answered", lambda m: m.output_tokens_per_second, 1)
    return Panel(_axis(run), "tokens per second", [line])


def _cached_panel(run: LoadRun) -> Panel:
    line = _line(run, "as the engines say", lambda m: m.cached_share, 100)
    return Panel(_axis(run), "prompt tokens from a cache, %", [line], most=100)


LOAD = told_by(
    "load", LoadRun, about, sheets, notes=notes, pictures=pictures,
    question="how an endpoint performs under a load that you describe",
    takes="as long as its flags say",
    arguments="URL",
)  # fmt: skip
