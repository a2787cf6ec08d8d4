"""A run of `inferway bench scale` as tables."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from inferway_bench.plotting import Level, Line, Panel, Picture
from inferway_bench.scale.results import ScaleRun
from inferway_bench.sheets import Sheet, told_by


def about(run: ScaleRun) -> list[str]:
    plan = run.plan
    end = run.end()
    ends = "does not reach this" if end is None else f"reaches this at about **{end:,.0f} engines**"
    return [
        "The figures are sums of parts that were measured one by one; no fleet of this size was "
        "run. A process for each number of engines runs the production event path (decoding, "
        "order, digests, index) with the batches of all engines, and the production director with "
        "the default scheduling. The cost of forwarding streamed answers is not included; "
        "`bench proxy` measures it.",
        "",
        f"- the load: each engine answers {plan.requests:g} request a second of "
        f"{plan.prompt_tokens:,} tokens, stores {plan.new_blocks} new blocks for it and drops as "
        f"many; each engine holds {plan.blocks_held:,} blocks of {plan.block_size} tokens",
        f"- carrying a request takes {run.request_us:,.0f} µs ({run.request_from}); scraping the "
        f"metrics of an engine takes {median(run.scrape_us):,.0f} µs of CPU time (a simulated "
        f"engine with {run.metrics_bytes:,} bytes of metrics)",
        f"- one process uses at most one core; it {ends}",
    ]


def sheets(run: ScaleRun) -> Iterator[Sheet]:
    yield Sheet(
        "Costs by number of engines",
        (
            "engines", "decision, µs", "block stored, µs", "block dropped, µs", "memory, MiB",
            "bytes for each held block",
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
        "Shares of one core, at the load above",
        ("engines", "requests", "decisions", "KV events", "scrapes", "all", "µs for each request"),
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
