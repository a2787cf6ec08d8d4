"""`inferway bench outages`: what clients see of an engine that is lost, stands still, is cut off,
computes nothing or is slow, behind ours and behind another router.

For each kind of trouble, three engines are started, and all routers in front of them: the trouble
comes to all of them at the same moment, and each gets the same requests at the same times.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec

from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.hosts import check_hosts
from inferway_bench.outages.engines import ABOUT, TROUBLES, TroubledEngine, kinds_of
from inferway_bench.outages.trial import TrialLoad, Trials
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.routers import OnlyFlag, PeersFlag, Router, all_routers, chosen, versions
from inferway_bench.rows import Findings, Goal, Row, Run, goal

OURS = "inferway serve"
MOST_SILENCE_SECONDS = 10.0


class OutagesPlan(msgspec.Struct, frozen=True):
    """Which kinds of trouble, and which routers."""

    # fmt: off
    trouble: Annotated[tuple[str, ...], flag(
        "Make this kind of trouble alone: kill -9, freeze, blackhole, stalled core, or"
        " 30 times slower. To make a blackhole takes root and the program ip.",
        metavar="KIND",
    )] = ()
    only: OnlyFlag = ()
    peers: PeersFlag = True
    give_up: Annotated[float, flag(
        "Have clients give up after this number of seconds.", gt=0, metavar="SECONDS",
    )] = 60.0
    # fmt: on


def measure(plan: OutagesPlan, on_step: OnStep) -> Findings:
    """Measure the routers that the plan wants. Raises BenchError when something cannot be
    started."""
    routers = all_routers(("round_robin", "kv_aware"), (), plan.peers, on_step)
    wanted = [router for router in routers if router.label != "inferway serve --no-scoring"]
    load = TrialLoad(give_up_seconds=plan.give_up)
    return measure_routers(TroubledEngine(), load, plan, chosen(wanted, plan.only), on_step)


def measure_routers(
    spec: TroubledEngine,
    load: TrialLoad,
    plan: OutagesPlan,
    routers: Sequence[Router],
    on_step: OnStep,
) -> Findings:
    """Measure `routers` in front of such engines. Raises BenchError as `measure` does."""
    kinds = kinds_of(plan.trouble)
    if "blackhole" in kinds:
        others = " ".join(f"--trouble '{kind}'" for kind in kinds if kind != "blackhole")
        check_hosts(others or "another kind of trouble")
    with TemporaryDirectory(prefix="inferway-outages-") as name:
        trials = Trials(spec, load, routers, Path(name), on_step)
        asyncio.run(trials.run(kinds))
    rows = []
    for kind in kinds:
        for router in routers:
            figures = trials.found[kind, router.label]
            keys = {"trouble": kind, "router": router.label}
            rows.append(Row("seen", keys, dict(figures), router.is_ours))
    return Findings(
        rows=rows,
        about=[
            f"{spec.about}. All routers stand in front of the same engines at the same time, and"
            f" each gets {load.per_second:g} requests/s for {load.seconds:g} s, every other one a"
            f" stream, with {load.answer_tokens} tokens an answer. After"
            f" {load.quiet_seconds:g} s it happens to one of the engines, to the end. A client"
            f" gives up after {load.give_up_seconds:g} s.",
            f"Routers: {versions(routers)}, as shipped. Load average after the run"
            f" {os.getloadavg()[0]:.2f}.",
        ],
        facts={"requests": load.num_requests, "give_up": load.give_up_seconds},
        notes={"seen": [f"{kind}: {ABOUT[kind]}" for kind in kinds]},
    )


def goals(run: Run) -> list[Goal]:
    """Judge ours: nothing fails, nothing is stuck, and no silence is long."""
    found = []
    for row in run.select("seen", router=OURS):
        kind = row.keys["trouble"]
        lost = row.median("failed") + row.median("stuck")
        found.append(goal(f"{kind}: failed or stuck", lost, most=0, form="{:,.0f}"))
        if kind != TROUBLES[-1]:  # who is slow is not silent
            silence = row.median("silence_s")
            most = MOST_SILENCE_SECONDS
            found.append(goal(f"{kind}: longest silence", silence, most=most, unit=" s"))
    return found


OUTAGES = Benchmark(
    "outages",
    "Compare what clients see of an engine in trouble, behind Inferway and behind vllm-router."
    " A blackhole takes root and the program ip.",
    OutagesPlan,
    measure,
    [
        Table(
            "seen",
            "{requests} requests to each router; seconds",
            ["trouble", "router"],
            [
                Column("failed", form="{:,.0f}", better="lower"),
                Column("stuck", "stuck after {give_up:g} s", "{:,.0f}", better="lower"),
                Column("hurt", "hurt in all", "{:,.0f}", better="lower"),
                Column("silence_s", "longest silence", better="lower", unit="s"),
                Column("longest_s", "longest whole answer"),
                Column("usual_s", "longest before the trouble"),
            ],
            notes=[
                "A request is hurt if it failed, is stuck, or took 3 s more than twice the longest"
                " before the trouble. A silence is a time without an event of a stream, or before"
                " an answer that is none.",
            ],
        ),
    ],
    quick={"trouble": ("freeze", "stalled core"), "give_up": 20.0},
    goals=goals,
    question="what clients see of an engine that is killed, frozen, cut off, stalled or slow: "
    "Inferway and vllm-router in front of the same simulated engines",
    takes="4 minutes",
)  # fmt: skip
outages = OUTAGES.command()
