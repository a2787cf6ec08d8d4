"""A run of `inferway bench index` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from inferway_bench.index.holdings import KINDS
from inferway_bench.index.results import Case, EventPath, IndexRun, PeerSeconds
from inferway_bench.index.shared import BLOCKS as SHARED_BLOCKS
from inferway_bench.index.shared import Cost, SharedCost
from inferway_bench.index.snapshot import Wait
from inferway_bench.index.stalls import Phase
from inferway_bench.index.workload import SHAPES
from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import median_interval, shown_range

_MATCH_HEAD = ("blocks", "held", "ours, µs", "peer, µs", "ratio", "peer on one core", "ratio")
_EVENT_HEAD = ("blocks per event", "", "hash", "JSON", "apply", "all", "blocks/s", "peer / ours")


def about(run: IndexRun) -> list[str]:
    return [
        f"{run.plan.rounds} rounds, in which both systems take turns; blocks of "
        f"{run.plan.block_size} tokens. The peer: {run.peer or 'left out'}."
    ]


def sheets(run: IndexRun) -> Iterator[Sheet]:
    yield _match_sheet(run)
    yield _event_sheet(run)
    yield _memory_sheet(run)
    rest = [_stall_sheet(run), *([_shared_sheet(run.shared)] if run.shared is not None else [])]
    for sheet in (*rest, _snapshot_sheet(run)):
        yield sheet._replace(in_details=True)


def pictures(run: IndexRun) -> list[Picture]:
    """A match against the prompt's length, a line a shape; ours, and the peer's whole prompt."""
    lines = []
    for shape in SHAPES:
        cases = [case for case in run.cases if case.shape == shape]
        lengths = [case.length for case in cases]
        lines.append(Line(shape, lengths, [median_interval(case.ours_us) for case in cases]))
        if shape == "whole" and cases[0].peer_us:
            style = {"color": "black", "linestyle": "--"}
            theirs = [median_interval(case.peer_us) for case in cases]
            lines.append(Line("the peer, whole", lengths, theirs, style))
    panel = Panel("blocks of the prompt", "match, µs", lines, log_x=True, log_y=True)
    return [Picture("index", "A match in a full index: median, 95 %", [[panel]])]


def _match_sheet(run: IndexRun) -> Sheet:
    wrong = [f"{case.length} {case.shape}" for case in run.cases if not case.peer_right]
    answers = f"the peer's differ in {', '.join(wrong)}" if wrong else "and so do the peer's"
    keys = (
        f"computing the block keys of {run.keys.tokens:,} tokens takes "
        f"{_range(run.keys.ours_us)} µs from a buffer"
    )
    if run.keys.peer_us:
        keys += f"; the peer takes {_range(run.keys.peer_us)} µs from a list"
    return Sheet(
        f"Time of a match in µs, in an index with {run.plan.filler_blocks:,} other blocks: mean "
        "over all prompts of each prompt's median (lowest-highest of the rounds)",
        _MATCH_HEAD,
        [_match_row(case) for case in run.cases],
        num_left=2,
        notes=[
            *(f"*{shape}*: {what}" for shape, (what, _) in SHAPES.items()),
            f"Inferway's answers equal those of a plain walk over every prompt, {answers}",
            keys,
        ],
    )


def _event_sheet(run: IndexRun) -> Sheet:
    return Sheet(
        "Time of an event in µs, medians (lowest-highest): Inferway from the engine's payload to "
        "the index, the peer from a list of tokens",
        _EVENT_HEAD,
        [row for path in run.event_paths for row in _event_rows(path)],
        num_left=2,
        notes=[
            "*peer / ours*: the peer's time to hash and apply an event, divided by Inferway's time "
            "for all of it; in parentheses with the JSON that the peer's Python API takes"
        ],
    )


def _memory_sheet(run: IndexRun) -> Sheet:
    growth, peer = run.growth, run.peer_bytes_per_block
    blocks, at_end = growth.points[-1]
    most = max(run.fleets, key=lambda fleet: fleet.values)
    theirs = f"; the peer takes {peer:.0f}" if peer is not None else ""
    return Sheet(
        f"Memory by number of engines, in bytes for each held block; all engines together hold "
        f"{run.plan.engine_blocks:,} blocks (one process for each figure)",
        ["engines", *(f"{n:,}" for n in run.plan.engines)],
        [
            [what, *(f"{f.bytes_per_held:.0f}" for f in run.fleets if f.kind == kind)]
            for kind, what in KINDS.items()
        ],
        notes=[
            f"the blocks of one index had at most {most.values:,} different sets of engines",
            f"while the index of one engine grows from 0 to {blocks:,} blocks, a block takes at "
            f"most {growth.peak:.0f} bytes, and {at_end:.0f} at the end{theirs}",
            f"forgetting these blocks takes {growth.cleared_seconds:.1f} s of CPU time, in slices "
            f"of at most {growth.cleared_slice_ms:.1f} ms; the process keeps "
            f"{growth.kept_after_clear:.0%} of the memory for later blocks",
        ],
    )


def _stall_sheet(run: IndexRun) -> Sheet:
    stalls = run.stalls
    return Sheet(
        f"Stalls in ms: one event loop (one run) while the index grows to {stalls.blocks:,} blocks "
        f"at {stalls.blocks_per_second:,.0f} blocks/s, with a decision every 5 ms (16 k tokens, "
        "eight engines, no rendering)",
        ("ms", "decision p50", "p99", "longest", "other tasks late by, p99", "longest"),
        [_phase("before", stalls.quiet), _phase("while it grows", stalls.growing)],
        notes=[
            f"the loop was held for at most {stalls.slice_cpu_ms:.1f} ms of CPU time, and a single "
            f"event for at most {stalls.longest_event_cpu_ms:.1f} ms; the rest of the wall time in "
            "the table went to other processes"
        ],
    )


def _shared_sheet(found: SharedCost) -> Sheet:
    return Sheet(
        f"An index in Redis ([redis.md](../redis.md); {found.server}, a Unix socket): a prompt of "
        f"{SHARED_BLOCKS} blocks that eight engines hold, in µs: medians, and the CPU time of a "
        "match",
        (
            *("index", "match", "p99", "32 at once, each", "decision"),
            *("CPU time, gateway", "CPU time, Redis"),
        ),
        [_cost("in memory", found.memory), _cost("in Redis", found.shared)],
    )


def _snapshot_sheet(run: IndexRun) -> Sheet:
    kept = run.snapshots
    cost, compaction, loading = kept.cost, kept.compaction, kept.loading
    compacting = (
        f"afterwards, at {loading.run_blocks_per_second:,.0f} blocks/s, while a journal is "
        f"compacted {loading.compactions} times"
    )
    return Sheet(
        "Snapshots ([reliability.md](../reliability.md#snapshots)): one event loop (one run) "
        f"while {loading.blocks:,} blocks of eight engines are loaded",
        (
            *("ms", "other tasks late by, p99", "longest"),
            *("without other processes, p99", "longest"),
        ),
        [
            _wait("before", loading.idle),
            _wait("while they are loaded", loading.load),
            _wait(compacting, loading.run),
        ],
        notes=[
            f"loading took {loading.seconds:.1f} s ({loading.blocks_per_second:,.0f} blocks/s)",
            f"with `--state-dir`, applying 16 blocks takes {cost.us_with:.1f} µs instead "
            f"of {cost.us_without:.1f} µs (medians of the rounds; within a round "
            f"{cost.ratio - 1:+.1%}), and a block takes {cost.bytes_per_block:.1f} bytes in the "
            "journal",
            f"a snapshot takes {compaction.snapshot_bytes_per_block:.1f} bytes a block; a helper "
            f"process makes it from a journal of {compaction.blocks:,} blocks with "
            f"{compaction.journal_bytes_per_block:.0f} bytes each in {compaction.seconds:.1f} s, "
            f"with at most {compaction.peak_mb:.0f} MiB of memory",
        ],
    )


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


def _event_rows(path: EventPath) -> Iterator[list[str]]:
    blocks, ours = f"{path.blocks}", median(path.ours_seconds)
    each = ours / path.events * 1e6
    own = _range([s / path.events * 1e6 for s in path.ours_seconds])
    yield [blocks, "ours", "", "", "", own, f"{path.blocks / each * 1e6:,.0f}", ""]
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


def _phase(name: str, phase: Phase) -> list[str]:
    times = (
        *(phase.decision_p50_ms, phase.decision_p99_ms, phase.decision_max_ms),
        *(phase.late_p99_ms, phase.late_max_ms),
    )
    return [name, *(f"{ms:.2f}" for ms in times)]


def _wait(name: str, wait: Wait) -> list[str]:
    times = (wait.late_p99_ms, wait.late_max_ms, wait.own_p99_ms, wait.own_max_ms)
    return [name, *(f"{ms:.2f}" for ms in times)]


def _cost(name: str, cost: Cost) -> list[str]:
    each = (cost.match, cost.match_p99, cost.at_once, cost.decision, cost.own_cpu, cost.server_cpu)
    return [name, *map(_us, each)]


def _range(us: Sequence[float]) -> str:
    return shown_range(us, _us)


def _us(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


INDEX = told_by(
    "index", IndexRun, about, sheets, pictures=pictures,
    question="how fast the index matches prompts and applies events, how much memory it takes and "
    "how long it stalls, compared with Dynamo's RadixTree",
    takes="10 minutes",
)  # fmt: skip
