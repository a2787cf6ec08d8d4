"""`inferway bench what-if`: whether what-if is right. The same chats are sent through a gateway
with one policy, and through another with another; each is recorded, and each recording has to tell
both: the policy that it saw, and the one that it did not see."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec

from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.loading.generated import Session
from inferway_bench.peers.fleets import Fleet, standing, started
from inferway_bench.peers.plan import ChatSpec, SimulatedEngines, chats
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError, OnStep
from inferway_bench.routers import Inferway, Place
from inferway_bench.rows import Column, Findings, Row, Table, Value
from inferway_bench.simulate.run import Processes
from inferway_bench.whatif.figures import SHARES, ReplayFigures, error, mean, measured_figures
from inferway_bench.whatif.run import Selection, Variant, load, of_seeds, recorded_fleet

_JUDGED = ("ttft_p50", "ttft_p90", "cached")
_ENGINES = SimulatedEngines(
    engines=4, blocks=768, prefill_us_per_token=1000.0, inter_token_ms=10.0,
    time_factor_under_load=1.0,
)  # fmt: skip
_CHATS = ChatSpec(turns=6, systems=8, answer_tokens=16)


class ProvenPlan(msgspec.Struct, frozen=True):
    """The flags of `inferway bench what-if`."""

    # fmt: off
    policy: Annotated[tuple[str, ...], flag(
        "Record this policy of inferway serve.", metavar="NAME",
    )] = ("expected-ttft", "round-robin")
    minutes: Annotated[float, flag("Send chats for this time through each.", gt=0)] = 4.0
    rate: Annotated[float, flag("Send this number of requests a second.", gt=0)] = 6.0
    think: Annotated[float, flag(
        "Let this number of seconds pass between an answer and the next turn, on average.", gt=0,
    )] = 12.0
    seed: int = 1
    seeds: Annotated[int, flag("Simulate each case with this number of seeds.", ge=2)] = 5
    # fmt: on


@dataclass(frozen=True, slots=True)
class Recorder(Inferway):
    """Our gateway with a policy, which records."""

    scoring: bool = True
    policy: str = ""
    directory: Path = Path()

    @property
    def label(self) -> str:
        return f"inferway serve --policy {self.policy}"

    def command(self, place: Place) -> list[str]:
        own = super(Recorder, self).command(place)
        return [*own, "--policy", self.policy, "--record", str(self.directory)]


def drawn_sessions(plan: ProvenPlan, spec: ChatSpec = _CHATS) -> list[Session]:
    """Return chats that begin at random times, so many that there are `rate` requests a second, and
    whose turns come a while after the answer before them."""
    number = max(2, round(plan.rate * plan.minutes * 60 / spec.turns))
    rng = Random(plan.seed)
    made = chats(msgspec.structs.replace(spec, sessions=number), plan.seed, f"{plan.seed}", 1.0)
    begins = sorted(rng.uniform(0, plan.minutes * 60) for _ in made)
    return [
        replace(
            session,
            turns=[replace(turn, think=rng.expovariate(1 / plan.think)) for turn in session.turns],
            at=(begin,),
        )
        for session, begin in zip(made, begins, strict=True)
    ]


def measure(plan: ProvenPlan, on_step: OnStep) -> Findings:
    """Record the chats with each policy, and tell each recording by all. Raises BenchError when a
    gateway or an engine does not start, or a request fails."""
    with TemporaryDirectory(prefix="inferway-what-if-") as name:
        place = Path(name)
        recordings = [place / policy for policy in plan.policy]
        with started(_ENGINES, place, on_step) as fleet:
            for policy, directory in zip(plan.policy, recordings, strict=True):
                directory.mkdir()
                _record(plan, fleet, Recorder(policy=policy, directory=directory), place, on_step)
        rows = list(_rows(plan, recordings, on_step))
    about = [
        f"- {_ENGINES.about}",
        f"- The same chats of {_CHATS.turns} turns that share {_CHATS.systems} system prompts, "
        f"{plan.rate:g} requests a second for {plan.minutes:g} minutes, through a "
        "gateway with each policy, whose recording is told by both.",
        f"- Each case is simulated with {plan.seeds} seeds; load average {os.getloadavg()[0]:.2f} "
        "after the run.",
    ]
    return Findings(rows=rows, about=about, seeds=[plan.seed])


def _record(plan: ProvenPlan, fleet: Fleet, router: Recorder, place: Path, on_step: OnStep) -> None:
    fleet.reset()
    with standing(router, fleet, place / router.policy) as one:
        sessions = drawn_sessions(plan)
        on_step(f"recording {router.policy} for {plan.minutes:g} minutes")
        samples = one.carry(sessions).samples
    failed = [sample for sample in samples if not sample.ok]
    if failed:
        raise BenchError(
            f"{router.label}: {len(failed)} of {len(samples)} requests failed: "
            f"{failed[0].error}: {failed[0].detail}"
        )


def _rows(plan: ProvenPlan, recordings: Sequence[Path], on_step: OnStep) -> Iterator[Row]:
    """A row for each recording and policy."""
    measured = [measured_figures(load(Selection(each))) for each in recordings]
    processes = Processes(os.cpu_count() or 1, on_step)
    for recorded, directory in zip(plan.policy, recordings, strict=True):
        loaded = load(Selection(directory))
        fleet = recorded_fleet(loaded)
        cases = [Variant(policy, policy, fleet.spec) for policy in plan.policy]
        found = of_seeds(processes, Selection(directory), cases, plan.seeds, f"telling {recorded}")
        for policy, runs, truth in zip(plan.policy, found, measured, strict=True):
            yield _row(recorded, policy, runs, truth, len(loaded.part.requests), fleet.how)


def _row(
    recorded: str,
    policy: str,
    runs: Sequence[ReplayFigures],
    truth: ReplayFigures,
    requests: int,
    how: str,
) -> Row:
    values: dict[str, Value] = {"requests": requests, "constants": how}
    for name in _JUDGED:
        values[name] = getattr(truth, name)
        values[f"simulated_{name}"] = [getattr(run, name) for run in runs]
        values[f"{name}_error"] = error(mean(runs, name), getattr(truth, name), name)
    return Row("predictions", {"policy": policy, "recorded": recorded}, values)


def _figure(name: str, head: str, form: str) -> tuple[Column, ...]:
    unit = "{:+.1f}" if name in SHARES else "{:+.1f}%"
    return (
        Column(name, head, form, "mean alone"),
        Column(f"simulated_{name}", "simulated", form, "mean"),
        Column(f"{name}_error", "error, points" if name in SHARES else "error", unit, "mean alone"),
    )


_PREDICTIONS = Table(
    "predictions",
    "Measured, and simulated with what a recording says of the engines: time to the first token in "
    "ms, share of prompt tokens that came from a cache",
    ("policy", "recorded"),
    (
        Column("requests", form="{:,.0f}"),
        *_figure("ttft_p50", "p50", "{:,.0f}"), *_figure("ttft_p90", "p90", "{:,.0f}"),
        *_figure("cached", "cached", "{:.1f}%"),
    ),
)  # fmt: skip
_TTFT = Plot(
    "predictions", ("simulated_ttft_p50",), x="ttft_p50", by="policy", mean=True,
    x_label="measured: p50 TTFT, ms", y_label="simulated: p50 TTFT, ms",
)  # fmt: skip

PROVEN = Benchmark(
    "what-if",
    "Say whether inferway what-if is right: the same chats through a gateway with one policy and "
    "with another, each recorded, each recording told by both.",
    ProvenPlan,
    measure,
    (_PREDICTIONS,),
    Chart(
        "Recorded and predicted",
        (
            _TTFT,
            replace(_TTFT, y=("simulated_ttft_p90",), x="ttft_p90",
                    x_label="measured: p90 TTFT, ms", y_label="simulated: p90 TTFT, ms"),
            replace(_TTFT, y=("simulated_cached",), x="cached",
                    x_label="measured: prompt tokens from a cache, %",
                    y_label="simulated: prompt tokens from a cache, %"),
        ),
    ),
    quick={"minutes": 1.0, "seeds": 2},
    question="how close what-if comes to what another policy was then measured to do",
    takes="10 minutes",
    audience="user",
)  # fmt: skip
what_if = PROVEN.command()
