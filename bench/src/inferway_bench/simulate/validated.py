"""What a run of `inferway bench validate` found: what was measured beside what was simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from inferway_bench.peers.plan import RealEngines, SimulatedEngines
from inferway_bench.peers.workload import ChatSpec
from inferway_bench.plotting import DOTS, Line, Panel, Picture
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.fleet_words import step_words
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.sheets import Sheet, goal_sheet, told_by
from inferway_bench.simulate.compared import DRAWS, Compared

TTFT_SHARE, POINTS = 0.15, 2.0  # how far off a simulation may be

_HEAD = (
    "router", "policy", "requests", "requests/s", "TTFT, ms", "simulated", "error", "ITL, ms",
    "simulated", "cached", "simulated", "error, points",
)  # fmt: skip


class Plan(msgspec.Struct, frozen=True):
    """What a run does."""

    engines: SimulatedEngines | RealEngines
    chats: ChatSpec
    rate: float | None  # requests a second; None: what the machine can do is looked for
    seeds: tuple[int, ...] = (1,)
    warm_up_requests: int = 40


class ValidateRun(Run, frozen=True):
    """A whole run."""

    plan: Plan
    engine: EngineSpec  # as it was simulated
    is_fitted: bool  # its constants were measured, not given
    compared: list[Compared]
    load_after: float  # 1-minute load average
    fitted_to: tuple[Compared, ...] = ()  # other chats, with which `engine.beside` was found

    @property
    def seeds(self) -> list[int]:
        return list(self.plan.seeds)

    def routers(self) -> list[tuple[str, list[Compared]]]:
        """With their seeds."""
        names = dict.fromkeys(one.router for one in self.compared)
        return [(name, [one for one in self.compared if one.router == name]) for name in names]

    def goals(self) -> list[Goal]:
        found = []
        for name, seeds in self.routers():
            if self.is_fitted:
                error = ttft_error(seeds)
                found.append(
                    Goal(
                        f"{name}: error of the simulated mean TTFT",
                        f"within {TTFT_SHARE:.0%}",
                        f"{error:+.1%}",
                        abs(error) <= TTFT_SHARE,
                    )
                )
            points = cached_points(seeds)
            found.append(
                Goal(
                    f"{name}: error of the simulated cached share",
                    f"within {POINTS:g} points",
                    f"{points:+.1f} points",
                    abs(points) <= POINTS,
                )
            )
        return found

    def figures(self) -> list[Figure]:
        return [
            figure
            for name, seeds in self.routers()
            for figure in (
                Figure(f"{name}: TTFT off by", "", [abs(one.ttft_error) for one in seeds]),
                Figure(f"{name}: cached off by", "points", [abs(c.cached_points) for c in seeds]),
            )
        ]


def ttft_error(seeds: Sequence[Compared]) -> float:
    """Of all their requests together: how much longer the simulation says, as a share."""
    return _mean(seeds, "simulated_ttft") / _mean(seeds, "ttft") - 1


def cached_points(seeds: Sequence[Compared]) -> float:
    return (_mean(seeds, "simulated_cached_share") - _mean(seeds, "cached_share")) * 100


def about(run: ValidateRun) -> list[str]:
    return [f"- {note}" for note in notes(run)]


def sheets(run: ValidateRun) -> Iterator[Sheet]:
    kind = "real engines" if run.is_fitted else "simulated engines that speak HTTP"
    title = f"The same chats measured with {kind} and simulated in virtual time"
    yield Sheet(title, _HEAD, list(_rows(run)), num_left=2)
    if run.engine.beside != 1.0:
        yield Sheet(
            "Effect of engines that slow each other: mean TTFT in virtual time, ms",
            ("router", "with the effect", "without it"),
            [
                [name, *(f"{_mean(seeds, f) * 1e3:,.0f}" for f in ("simulated_ttft", "apart_ttft"))]
                for name, seeds in run.routers()
            ],
        )
    yield goal_sheet(run.goals())


def notes(run: ValidateRun) -> list[str]:
    spec, engine = run.plan.chats, run.engine
    fitted = "fitted to requests without a router" if run.is_fitted else "as given to the engines"
    found = [
        f"{run.plan.engines.about}",
        f"{spec.requests:,} requests of {spec.sessions} chats that share {spec.systems} system "
        f"prompts; load average {run.load_after} after the run",
        f"constants of the simulation, {fitted}: {engine.request_seconds * 1e3:.1f} ms a request; "
        f"a step takes {step_words(engine)}",
    ]
    if engine.scatter:
        found.append(
            f"each seed is simulated {DRAWS} times with step times drawn anew; the mean is compared"
        )
    if run.fitted_to:
        firsts = ", ".join(
            f"{one.simulated_ttft * 1e3:,.0f} / {one.ttft * 1e3:,.0f}" for one in run.fitted_to
        )
        found.append(
            f"how much engines slow each other is fitted to chats of {len(run.fitted_to)} other "
            f"seeds through {run.fitted_to[0].router}, sent between the seeds that are compared; "
            f"mean TTFT in ms, simulated / measured: {firsts}"
        )
    return found


def pictures(run: ValidateRun) -> list[Picture]:
    """What was simulated against what was measured; on the line both are the same."""
    name = "validate_real" if run.is_fitted else "validate"
    panels = [_beside(run, "prompt tokens from a cache, %", "cached_share", 100)]
    if run.is_fitted:
        panels.append(_beside(run, "mean TTFT, ms", "ttft", 1e3))
    return [Picture(name, run.plan.engines.about, [panels], one_legend=True)]


def _beside(run: ValidateRun, what: str, field: str, factor: float) -> Panel:
    points = {
        name: [_mean(seeds, each) * factor for each in (field, f"simulated_{field}")]
        for name, seeds in run.routers()
    }
    ends = [f(value for point in points.values() for value in point) for f in (min, max)]
    lines = [Line(name, [x], [y], DOTS) for name, (x, y) in points.items()]
    same = Line("simulated = measured", ends, ends, {"color": "#999999", "marker": ""})
    return Panel(f"measured: {what}", f"simulated: {what}", [*lines, same])


def _rows(run: ValidateRun) -> Iterator[list[str]]:
    for name, seeds in run.routers():
        yield [
            name,
            seeds[0].policy,
            f"{sum(one.requests for one in seeds):,}",
            f"{_mean(seeds, 'rate'):.1f}",
            *(f"{_mean(seeds, field) * 1e3:,.0f}" for field in ("ttft", "simulated_ttft")),
            f"{ttft_error(seeds):+.1%}",
            *(
                f"{_mean(seeds, field) * 1e3:,.1f}"
                for field in ("token_seconds", "simulated_token_seconds")
            ),
            *(f"{_mean(seeds, field):.1%}" for field in ("cached_share", "simulated_cached_share")),
            f"{cached_points(seeds):+.1f}",
        ]


def _mean(seeds: Sequence[Compared], field: str) -> float:
    return fmean(getattr(one, field) for one in seeds)


VALIDATE = told_by(
    "validate", ValidateRun, about, sheets, notes=notes, pictures=pictures,
    question="how close simulated policies come to the cached share of the real routers",
    takes="8 minutes",
)  # fmt: skip
VALIDATE_REAL = told_by(
    "validate --real", ValidateRun, about, sheets, notes=notes, pictures=pictures,
    question="how close a simulation with fitted constants comes to real engines",
    takes="27 minutes",
)  # fmt: skip
