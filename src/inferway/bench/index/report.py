"""A run of `inferway bench index` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.table import Table

from inferway.bench.document import machine_line, table_lines, versions_line
from inferway.bench.index.holdings import KINDS
from inferway.bench.index.results import Case, EventPath, IndexRun, PeerSeconds
from inferway.bench.index.shared import BLOCKS as SHARED_BLOCKS
from inferway.bench.index.shared import Cost
from inferway.bench.index.snapshot import Wait
from inferway.bench.index.stalls import Phase
from inferway.bench.index.workload import SHAPES

_MATCH_HEAD = ("blocks", "held", "ours, µs", "peer, µs", "ratio", "peer on one core", "ratio")
_EVENT_HEAD = ("blocks per event", "", "hash", "JSON", "apply", "all", "blocks/s", "ours to it")


def terminal_tables(run: IndexRun) -> Iterator[Table]:
    goals = Table(title="What was asked", title_justify="left")
    for head in ("", "asked", "found", "met"):
        goals.add_column(head)
    for goal in run.goals():
        goals.add_row(goal.what, goal.asked, goal.found, "yes" if goal.is_met else "no")
    yield goals
    match = Table(title="A match, µs", title_justify="left")
    for head in _MATCH_HEAD:
        match.add_column(head, justify="right")
    for case in run.cases:
        match.add_row(*_match_row(case))
    yield match


def markdown(run: IndexRun) -> str:
    lines = [
        f"Measured {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}, "
        f"seed {run.plan.seed}: {run.plan.rounds} rounds, in which both systems take turns; "
        f"blocks of {run.plan.block_size} tokens.",
        f"The peer: {run.peer or 'left out'}.",
        machine_line(run.machine),
        versions_line(run.machine),
        "",
        "What was asked of it:",
        "",
        *table_lines(
            ("", "asked", "found", "met"),
            ([g.what, g.asked, g.found, "yes" if g.is_met else "**no**"] for g in run.goals()),
            num_left=4,
        ),
        "",
        *_match_lines(run),
        *_event_lines(run),
        *_memory_lines(run),
        *_stall_lines(run),
        *_shared_lines(run),
        *_snapshot_lines(run),
    ]
    return "\n".join(lines) + "\n"


def _match_lines(run: IndexRun) -> list[str]:
    total = run.plan.filler_blocks
    lines = [
        f"A match in microseconds, in an index with {total:,} other blocks: the mean over "
        "prompts of each one's median (lowest-highest of the rounds):",
        "",
        *table_lines(_MATCH_HEAD, (_match_row(case) for case in run.cases), num_left=2),
        "",
    ]
    lines += [f"- *{shape}*: {what}." for shape, (what, _) in SHAPES.items()]
    wrong = [f"{case.length} {case.shape}" for case in run.cases if not case.peer_right]
    answers = f"the peer's differ in {', '.join(wrong)}" if wrong else "and so are the peer's"
    lines += ["", f"Our answers are those of a plain walk over every prompt, {answers}.", ""]
    keys = f"Block keys of {run.keys.tokens:,} tokens: {median(run.keys.ours_us):.0f} µs"
    if run.keys.peer_us:
        keys += f" from a buffer; the peer's, from a list, {median(run.keys.peer_us):.0f} µs"
    return [*lines, f"{keys}.", ""]


def _match_row(case: Case) -> list[str]:
    row = [f"{case.length:,}", case.shape, _range(case.ours_us)]
    if not case.peer_us:
        return [*row, "", "", "", ""]
    return [
        *row,
        _range(case.peer_us),
        f"{case.ratio:.1f} ×",
        _range(case.peer_one_core_us),
        f"{case.ratio_one_core:.1f} ×",
    ]


def _event_lines(run: IndexRun) -> list[str]:
    rows = [row for path in run.event_paths for row in _event_rows(path)]
    return [
        "Events, in microseconds each (medians). Ours goes from the engine's payload to the index "
        "(order, decode, key, orphans, copies, apply) on one core; the peer begins with a list of "
        "tokens:",
        "",
        *table_lines(_EVENT_HEAD, rows, num_left=2),
        "",
        "*ours to it*: how many times more events we apply in a second than the peer hashes and "
        "applies; in parentheses with the JSON that its Python API takes.",
        "",
    ]


def _event_rows(path: EventPath) -> Iterator[list[str]]:
    blocks, ours = f"{path.blocks}", median(path.ours_seconds)
    each = ours / path.events * 1e6
    yield [blocks, "ours", "", "", "", f"{each:.1f}", f"{path.blocks / each * 1e6:,.0f}", ""]
    for name, runs in (
        ("peer", path.peer_seconds),
        ("peer on one core", path.peer_one_core_seconds),
    ):
        if runs:
            yield [blocks, name, *_peer_cells(path, runs, ours)]


def _peer_cells(path: EventPath, runs: Sequence[PeerSeconds], ours: float) -> list[str]:
    def us(seconds: Sequence[float]) -> float:
        return median(seconds) / path.events * 1e6

    asked, all_ = us([run.asked for run in runs]), us([run.all for run in runs])
    own = ours / path.events * 1e6
    return [
        f"{us([run.hashing for run in runs]):.1f}",
        f"{us([run.writing for run in runs]):.1f}",
        f"{us([run.applying for run in runs]):.1f}",
        f"{all_:.1f}",
        f"{path.blocks / asked * 1e6:,.0f}",
        f"{asked / own:.1f} × ({all_ / own:.1f} ×)",
    ]


def _memory_lines(run: IndexRun) -> list[str]:
    growth = run.growth
    blocks, at_end = growth.points[-1]
    peer = run.peer_bytes_per_block
    theirs = f" The peer takes {peer:.0f}: here Python loses." if peer is not None else ""
    lines = [
        f"Memory of one engine's blocks, from 0 to {blocks:,}, resident bytes a block, everything "
        f"included: {growth.peak:.0f} at the worst, {at_end:.0f} at the end.{theirs} Cleared, they "
        f"take {growth.cleared_seconds:.1f} s of CPU to be given back, in pieces of "
        f"{growth.cleared_slice_ms:.1f} ms at most; {growth.kept_after_clear:.0%} of the bytes "
        "stay with the process for what comes next.",
        "",
        f"By number of engines, {run.plan.engine_blocks:,} blocks held in all, bytes for each "
        "block held:",
        "",
    ]
    head = ["engines", *(f"{n:,}" for n in run.plan.engines)]
    rows = [
        [what, *(f"{f.bytes_per_held:.0f}" for f in run.fleets if f.kind == kind)]
        for kind, what in KINDS.items()
    ]
    most = max(run.fleets, key=lambda fleet: fleet.values)
    values = f"The most different sets of engines that blocks had: {most.values:,}."
    return [*lines, *table_lines(head, rows), "", values, ""]


def _stall_lines(run: IndexRun) -> list[str]:
    stalls = run.stalls
    head = ("ms", "decision p50", "p99", "longest", "others late, p99", "longest")
    return [
        f"One event loop while the index grows to {stalls.blocks:,} blocks at "
        f"{stalls.blocks_per_second:,.0f} blocks/s, and a request is decided every 5 ms (16 k "
        "tokens, eight engines, without rendering):",
        "",
        *table_lines(
            head,
            [_phase("before", stalls.quiet), _phase("while it grows", stalls.growing)],
        ),
        "",
        f"The loop was held for {stalls.slice_cpu_ms:.1f} ms of CPU time at most, of which one "
        f"event took {stalls.longest_event_cpu_ms:.1f} ms at most; what is more than that above, "
        "the system gave to other processes.",
    ]


def _phase(name: str, phase: Phase) -> list[str]:
    times = (
        *(phase.decision_p50_ms, phase.decision_p99_ms, phase.decision_max_ms),
        *(phase.late_p99_ms, phase.late_max_ms),
    )
    return [name, *(f"{ms:.2f}" for ms in times)]


def _snapshot_lines(run: IndexRun) -> list[str]:
    cost, compaction, loading = (
        run.snapshots.cost,
        run.snapshots.compaction,
        run.snapshots.loading,
    )
    head = ("ms", "others late, p99", "longest", "without other processes, p99", "longest")
    return [
        "",
        "With `--state-dir` ([reliability.md](reliability.md#snapshots)) a batch of 16 blocks "
        f"takes {cost.us_with:.1f} µs instead of {cost.us_without:.1f} (medians of rounds; of each "
        f"round {cost.ratio - 1:+.1%}), and {cost.bytes_per_block:.1f} bytes a block in the "
        f"journal. A snapshot takes {compaction.snapshot_bytes_per_block:.1f}; it is made of a "
        f"journal of {compaction.blocks:,} blocks that has "
        f"{compaction.journal_bytes_per_block:.0f} of them in {compaction.seconds:.1f} s, by a "
        f"process that takes {compaction.peak_mb:.0f} MiB at most. {loading.blocks:,} blocks of "
        f"eight engines are loaded in {loading.seconds:.1f} s "
        f"({loading.blocks_per_second:,.0f} blocks/s). One event loop, by others that want to run "
        "each millisecond:",
        "",
        *table_lines(
            head,
            [
                _wait("before", loading.idle),
                _wait("while they are loaded", loading.load),
                _wait(
                    f"then, at {loading.run_blocks_per_second:,.0f} blocks/s, while a journal is "
                    f"compacted {loading.compactions} times",
                    loading.run,
                ),
            ],
        ),
    ]


def _wait(name: str, wait: Wait) -> list[str]:
    times = (wait.late_p99_ms, wait.late_max_ms, wait.own_p99_ms, wait.own_max_ms)
    return [name, *(f"{ms:.2f}" for ms in times)]


def _shared_lines(run: IndexRun) -> list[str]:
    found = run.shared
    if found is None:
        return []
    return [
        "",
        f"Through Redis ([redis.md](redis.md); {found.server}, behind a Unix socket of this "
        f"machine), a prompt of {SHARED_BLOCKS} blocks that eight engines hold, in microseconds: "
        "medians, and the CPU time of a match:",
        "",
        *table_lines(
            ("index", "match", "p99", "32 at once, each", "decision", "CPU here", "of the server"),
            [_cost("in memory", found.memory), _cost("through Redis", found.shared)],
        ),
    ]


def _cost(name: str, cost: Cost) -> list[str]:
    each = (cost.match, cost.match_p99, cost.at_once, cost.decision, cost.own_cpu, cost.server_cpu)
    return [name, *map(_us, each)]


def _range(us: Sequence[float]) -> str:
    return f"{_us(median(us))} ({_us(min(us))}-{_us(max(us))})"


def _us(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"
