"""A run of `inferway bench scale` as tables."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from inferway.bench.plotting import Level, Line, Panel, Picture
from inferway.bench.scale.results import ScaleRun
from inferway.bench.sheets import Sheet, told_by


def about(run: ScaleRun) -> list[str]:
    plan = run.plan
    end = run.end()
    ends = "is not reached" if end is None else f"is reached at about **{end:,.0f} engines**"
    return [
        "Measured parts, summed; no fleet of so many engines was run. A process of its own for "
        "each number of engines: the production event path (decoding, order, digests, index) fed "
        "with the batches of all engines, and the production director with the default scheduling. "
        "What passing on the pieces of streamed answers costs is left out: `bench proxy` has that.",
        "",
        f"- the load: each engine answers {plan.requests:g} request a second of "
        f"{plan.prompt_tokens:,} tokens, stores {plan.new_blocks} new blocks for it and drops as "
        f"many; each holds {plan.blocks_held:,} blocks of {plan.block_size} tokens",
        f"- carrying a request takes {run.request_us:,.0f} µs ({run.request_from}); a scrape "
        f"{median(run.scrape_us):,.0f} µs of CPU (a simulated engine's, of {run.metrics_bytes:,} "
        "bytes)",
        f"- one core, which is all that one process uses, {ends}",
    ]


def sheets(run: ScaleRun) -> Iterator[Sheet]:
    yield Sheet(
        "What grows with engines",
        (
            "engines", "decision, µs", "block stored, µs", "block dropped, µs", "memory, MiB",
            "bytes a block held",
        ),
        [
            [
                f"{one.engines:,}", f"{median(one.decision_us):,.0f}", f"{one.stored_us:.2f}",
                f"{one.removed_us:.2f}", f"{one.resident_mib:,.0f}", f"{one.bytes_per_block:,.0f}",
            ]
            for one in run.grown
        ],
    )  # fmt: skip
    yield Sheet(
        "Shares of one core, at that load",
        ("engines", "requests", "decisions", "KV events", "scrapes", "all", "µs a request"),
        [
            [
                f"{s.engines:,}", f"{s.requests:.1%}", f"{s.decisions:.1%}", f"{s.events:.1%}",
                f"{s.scrapes:.1%}", f"{s.all:.1%}",
                f"{s.all * 1e6 / (s.engines * run.plan.requests):,.0f}",
            ]
            for s in run.shares()
        ],
    )  # fmt: skip


def pictures(run: ScaleRun) -> list[Picture]:
    shares = run.shares()
    engines = [float(share.engines) for share in shares]
    used = Line("of one core", engines, [share.all * 100 for share in shares])
    memory = Line("resident", engines, [one.resident_mib for one in run.grown])
    one_core = Level(100.0, "one core", {"color": "#999999"})
    panels = [
        Panel("engines", "of one core, %", [used], levels=[one_core]),
        Panel("engines", "memory, MiB", [memory]),
    ]
    return [Picture("scale", "One gateway process, by the number of engines", [panels])]


SCALE = told_by(
    "scale", ScaleRun, about, sheets, pictures=pictures,
    question="how many engines one gateway process can serve",
    takes="5 minutes",
)  # fmt: skip
