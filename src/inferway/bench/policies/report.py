"""A run of `inferway bench policies` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.table import Table

from inferway.bench.document import machine_line, table_lines, versions_line
from inferway.bench.policies.catalog import OURS
from inferway.bench.policies.results import Goal, Loaded, PoliciesRun, Row
from inferway.bench.spread import Interval, mean_interval

_GOAL_HEAD = ("workload", "gateways", "load", "mean", "asked", "found (95 %)", "the oracle", "met")


def terminal_tables(run: PoliciesRun) -> list[Table]:
    """One for each workload and number of gateways: mean TTFT and cached share by load."""
    tables = []
    for w, gateways in _settings(run):
        title = f"{w.name}, {_gateways(gateways)}: mean TTFT in ms, and cached tokens"
        table = Table(title=title, title_justify="left")
        table.add_column("policy", no_wrap=True)
        for load in _loads(run, w, gateways):
            table.add_column(f"{load:.0%}", justify="right")
            table.add_column("cached", justify="right")
        for name in run.names():
            cells = [name]
            for load in _loads(run, w, gateways):
                rows = run.select(w.name, gateways, load, name)
                cells += (
                    [f"{_mean_ttft(rows).value * 1e3:,.0f}", _cached(rows)] if rows else ["", ""]
                )
            table.add_row(*cells)
        tables.append(table)
    return tables


def goals_table(run: PoliciesRun) -> Table | None:
    goals = run.goals()
    if not goals:
        return None
    table = Table(title=f"asked of {OURS}", title_justify="left")
    for head in _GOAL_HEAD:
        table.add_column(head)
    for goal in goals:
        *cells, met = _goal_cells(goal)
        table.add_row(*cells, met.strip("*"))
    return table


def summary(run: PoliciesRun) -> list[str]:
    """Rates, weights, and where others are ahead."""
    return [*_workload_lines(run), *_lost(run)]


def markdown(run: PoliciesRun) -> str:
    lines = [
        f"Simulated {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}, "
        f"seeds 1 to {run.plan.seeds}.",
        *([f"Kept from an earlier run: {run.kept}."] if run.kept else []),
        f"{machine_line(run.machine).partition(';')[0]}. Time is virtual: how busy the machine was "
        "changes no figure.",
        versions_line(run.machine),
        "",
        *_fleet_lines(run),
        "",
        *[f"- {line}" for line in _workload_lines(run)],
        "",
        "Policies:",
        "",
        *[f"- **{p.name}**: {p.about}{_model_note(p.is_model)}" for p in run.policies],
        "",
    ]
    for w, gateways in _settings(run):
        lines += [f"**{w.name}, {_gateways(gateways)}**: mean TTFT in ms (95 %), its p90, and the "
                  "share of prompt tokens that came from a cache:", ""]  # fmt: skip
        head = ["policy"]
        for load in _loads(run, w, gateways):
            head += [f"{load:.0%}: TTFT", "p90", "cached"]
        lines += [*table_lines(head, _rows(run, w, gateways)), ""]
    goals = run.goals()
    if goals:
        lines += [f"What is asked of {OURS}, as ratios, seed by seed:", ""]
        lines += [*table_lines(_GOAL_HEAD, [_goal_cells(goal) for goal in goals], 5), ""]
        met = sum(goal.is_met for goal in goals)
        lines += [f"{met} of {len(goals)} are met.", ""]
    lost = _lost(run)
    if lost:
        lines += [f"Who is ahead of {OURS}:", "", *[f"- {line}" for line in lost], ""]
    return "\n".join(lines)


def _settings(run: PoliciesRun) -> list[tuple[Loaded, int]]:
    return [(w, gateways) for w in run.workloads for gateways in run.plan.gateways]


def _loads(run: PoliciesRun, w: Loaded, gateways: int) -> list[float]:
    """Those with all seeds."""
    return [x for x in run.plan.loads if run.select(w.name, gateways, x, run.policies[0].name)]


def _rows(run: PoliciesRun, w: Loaded, gateways: int) -> Iterator[list[str]]:
    for name in run.names():
        cells = [name]
        for load in _loads(run, w, gateways):
            rows = run.select(w.name, gateways, load, name)
            p90 = fmean(row.ttft_p90 for row in rows) * 1e3
            cells += [_interval_ms(_mean_ttft(rows)), f"{p90:,.0f}", _cached(rows)]
        yield cells


def _fleet_lines(run: PoliciesRun) -> list[str]:
    fleet, engine = run.plan.fleet, run.plan.fleet.engine
    attention = ""
    if engine.attention_tokens:
        attention = f", twice that where it looks at {engine.attention_tokens:,} tokens"
    caches = ", ".join(
        f"{run.plan.cache_tokens[w.name]:,} tokens an engine for {w.name}" for w in run.workloads
    )
    return [
        f"{fleet.num_engines} engines, {fleet.num_slow} of them {fleet.slow_factor:g} × slower. A "
        f"step takes {engine.step_seconds * 1e3:g} ms, {engine.decode_seconds * 1e3:g} ms for each "
        f"request that decodes and {engine.prefill_seconds * 1e6:g} µs for each prompt token that "
        f"is computed{attention}; at most {engine.max_batched_tokens:,} tokens a step and "
        f"{engine.max_num_seqs} requests a batch. Caches: {caches}.",
        f"Metrics are scraped every {fleet.scrape_seconds * 1e3:g} ms, KV events arrive "
        f"{fleet.event_delay * 1e3:g} ms after the step that made them. Loads are shares of the "
        "rate at which round-robin's mean TTFT is twice that of an idle fleet; requests that "
        "arrive in the second half of a run are judged. Intervals are bootstraps over seeds.",
    ]


def _workload_lines(run: PoliciesRun) -> list[str]:
    lines = []
    for w in run.workloads:
        line = (
            f"{w.name}: {w.requests:,} requests; {w.about}. Round-robin's mean TTFT is "
            f"{w.idle_ttft * 1e3:,.0f} ms when idle, twice that at {w.doubling_rate:.2f} requests/s"
        )
        if w.weights:
            weights = ", ".join(f"{float(x):.0%} {best}" for x, best in w.weights.items())
            line += (
                f"; best weights (queue:kv:prefix) on the first half, behind one gateway: {weights}"
            )
        lines.append(line)
    return lines


def _lost(run: PoliciesRun) -> list[str]:
    """Policies that the judged one is behind, and by how much."""
    if OURS not in run.names():
        return []
    lines = []
    for w, gateways in _settings(run):
        for load in _loads(run, w, gateways):
            for name in run.names():
                ratio = run.ttft_ratio(w.name, gateways, load, OURS, name)
                if name != OURS and ratio is not None and ratio.low > 1:
                    lines.append(
                        f"{w.name}, {_gateways(gateways)}, {load:.0%}: {name}; {OURS} takes "
                        f"{_interval(ratio)} times as long"
                    )
    return lines


def _goal_cells(goal: Goal) -> list[str]:
    met = "yes" if goal.is_met else "**no**"
    return [
        goal.workload, str(goal.gateways), f"{goal.load:.0%}", goal.what, goal.asked,
        _interval(goal.found), "" if goal.oracle is None else f"{goal.oracle.value:.3f}", met,
    ]  # fmt: skip


def _model_note(is_model: bool) -> str:
    return " (a model of that peer)" if is_model else ""


def _gateways(number: int) -> str:
    return "one gateway" if number == 1 else f"{number} gateways"


def _mean_ttft(rows: Sequence[Row]) -> Interval:
    return mean_interval([row.ttft for row in rows])


def _cached(rows: Sequence[Row]) -> str:
    return f"{fmean(row.cached_share for row in rows):.1%}"


def _interval_ms(found: Interval) -> str:
    return f"{found.value * 1e3:,.0f} ({found.low * 1e3:,.0f}-{found.high * 1e3:,.0f})"


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f}-{found.high:.3f})"
