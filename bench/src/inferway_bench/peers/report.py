"""A run of `inferway bench peers` as tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inferway_bench.document import table_lines
from inferway_bench.peers.plan import RealEngines
from inferway_bench.peers.results import OURS, PLAIN, Cell, Of, PeersRun, Sitting, cached, ttft
from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.sheets import Sheet, goal_sheet, told_by

_HEAD = (
    *("router", "TTFT", "p50", "p90", "p99", "ITL", "cached", "answers/s", "CPU, ms", "MiB"),
    "errors",
)
_BESIDE = ("other router", "mean TTFT", "p90", "cached, points")
_STYLES: dict[str, dict[str, Any]] = {
    OURS: {"color": "#cc3311", "linewidth": 2.4, "zorder": 5},
    PLAIN: {"color": "#cc3311", "linestyle": "--"},
}


def about(run: PeersRun) -> list[str]:
    chats, engines = run.plan.chats, run.plan.engines
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return [
        f"{engines.about}. Each load, router and seed has {chats.sessions} chats of {chats.turns} "
        f"turns with {chats.systems} system prompts, in all {chats.requests} requests with "
        f"{chats.answer_tokens} tokens an answer, and begins with empty caches.",
        f"{_rate_line(run)} Routers: {versions}. TTFT counts from the time at which a request was "
        "due; intervals are 95 % bootstrap intervals over seeds.",
        *(_sitting_line(sitting) for sitting in run.sittings if len(run.sittings) > 1),
    ]


def sheets(run: PeersRun) -> Iterator[Sheet]:
    goals = run.goals()
    if goals:
        yield goal_sheet(goals)._replace(in_details=True)
    for load in run.loads:
        rows = [_row(run, router, load) for router in run.routers if run.select(router, load)]
        rate = load * run.doubling_rate
        title = (
            f"{load:.0%}, {rate:.3g} requests/s: TTFT (mean with its interval, and percentiles) "
            "and ITL in ms; the router's CPU time for each request and its memory"
        )
        yield Sheet(title, _HEAD, rows)
        if run.select(OURS, load):
            title = f"`{OURS}` minus each other router at {load:.0%}, paired by seed, TTFT in ms"
            yield Sheet(title, _BESIDE, [*_beside_rows(run, load)])


def glance(run: PeersRun, load: float = 0.75) -> str:
    """Ours beside the routers of others at one load: what a reader who has a minute wants."""
    routers = [name for name in run.routers if name != PLAIN and run.select(name, load)]
    head = ("router", "first token, mean", "90 % within", "prompt tokens from a cache")
    rows = [
        [
            f"**{router}**" if router == OURS else router,
            f"{run.mean(router, load, ttft).value * 1e3:,.0f} ms",
            f"{run.mean(router, load, _p90).value * 1e3:,.0f} ms",
            f"{run.mean(router, load, cached).value:.0%}",
        ]
        for router in sorted(routers, key=lambda name: run.mean(name, load, ttft).value)
    ]
    about = (
        f"{len(run.seeds)} seeds, {run.plan.chats.requests} requests each, "
        f"{load * run.doubling_rate:.1f} requests/s; measured {run.machine.date[:10]}."
    )
    return "\n".join([*table_lines(head, rows), "", about]) + "\n"


def notes(run: PeersRun) -> list[str]:
    """What each router says that it did."""
    return [f"{note.router}: {note.text}" for note in run.notes]


def pictures(run: PeersRun) -> list[Picture]:
    """Mean and p90 of the time to the first token, and the cached share, against the rate."""
    name = "peers_real" if isinstance(run.plan.engines, RealEngines) else "peers"
    panels = [
        _panel(run, "mean time to first token, ms", lambda cell: cell.ttft * 1e3),
        _panel(run, "time to first token, p90, ms", lambda cell: cell.ttft_p90 * 1e3),
        _panel(run, "prompt tokens from a cache, %", lambda cell: cell.cached_share * 100),
    ]
    return [Picture(name, run.plan.engines.about, [panels], one_legend=True)]


def _panel(run: PeersRun, what: str, of: Of) -> Panel:
    lines = []
    for router in run.routers:
        loads = [load for load in run.loads if run.select(router, load)]
        rates = [load * run.doubling_rate for load in loads]
        means = [run.mean(router, load, of) for load in loads]
        lines.append(Line(router, rates, means, _STYLES.get(router, {})))
    return Panel("requests per second", what, lines)


def _rate_line(run: PeersRun) -> str:
    rate = f"{run.doubling_rate:.3g} requests/s"
    if not run.idle_ttft:
        return f"Loads are shares of {rate}, given with --rate."
    return (
        f"Loads are shares of {rate}, the rate at which round-robin's mean TTFT is twice the "
        f"{run.idle_ttft * 1e3:,.0f} ms that it is at {run.searched[0].rate:.3g} requests/s."
    )


def _sitting_line(sitting: Sitting) -> str:
    loads = ", ".join(f"{load:.0%}" for load in sitting.loads)
    seeds = f"seed{'s' * (len(sitting.seeds) > 1)} {', '.join(map(str, sitting.seeds))}"
    return (
        f"Part measured {sitting.date} UTC at commit {sitting.commit}: {loads}, {seeds}; load "
        f"average {sitting.load_before} before and {sitting.load_after} after."
    )


def _row(run: PeersRun, router: str, load: float) -> list[str]:
    cells = run.select(router, load)

    def mean(of: Of, factor: float, form: str) -> str:
        return form.format(factor * run.mean(router, load, of).value)

    return [
        router,
        run.mean(router, load, ttft).times(1e3).shown("{:,.0f}"),
        mean(lambda cell: cell.ttft_p50, 1e3, "{:,.0f}"),
        mean(_p90, 1e3, "{:,.0f}"),
        mean(lambda cell: cell.ttft_p99, 1e3, "{:,.0f}"),
        mean(lambda cell: cell.itl, 1e3, "{:,.1f}"),
        run.mean(router, load, cached).times(100).shown("{:.1f}") + " %",
        mean(lambda cell: cell.throughput, 1, "{:.2f}"),
        mean(lambda cell: cell.cpu, 1e3, "{:.2f}"),
        f"{max(cell.resident_mib for cell in cells):.0f}",
        f"{sum(cell.errors for cell in cells)}",
    ]


def _beside_rows(run: PeersRun, load: float) -> Iterator[list[str]]:
    for router in run.routers:
        if router == OURS or not run.select(router, load):
            continue
        yield [
            router,
            run.difference(OURS, router, load, ttft).times(1e3).shown("{:+,.0f}"),
            run.difference(OURS, router, load, _p90).times(1e3).shown("{:+,.0f}"),
            run.difference(OURS, router, load, cached).times(100).shown("{:+.1f}"),
        ]


def _p90(cell: Cell) -> float:
    return cell.ttft_p90


PEERS = told_by(
    "peers", PeersRun, about, sheets, notes=notes, pictures=pictures,
    question="how the choice of router changes time to first token, cached tokens and CPU time: "
    "Inferway and routers from PyPI in front of simulated engines",
    takes="an hour",
    glance=glance,
)  # fmt: skip
PEERS_REAL = replace(
    PEERS,
    name="peers --real",
    glance=None,
    question="how the choice of router changes time to first token, cached tokens and CPU time in "
    "front of real vLLM engines on the CPU",
    takes="100 minutes with `--layers 2`",
)
