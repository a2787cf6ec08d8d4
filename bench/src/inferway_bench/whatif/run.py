"""The simulations of a recording: its engines' constants are chosen, then each case is simulated
with each seed, in as many processes as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from statistics import fmean

import msgspec

from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError
from inferway_bench.simulate.fitting import fit_beside
from inferway_bench.simulate.processes import Processes
from inferway_bench.whatif.cases import AS_RECORDED, Selection, Variant, maker
from inferway_bench.whatif.figures import ReplayFigures, error, measured_figures, simulated_figures
from inferway_bench.whatif.learned import Learned, fitted, from_costs
from inferway_bench.whatif.reading import read_recording
from inferway_bench.whatif.recorded import Part, part_of
from inferway_bench.whatif.workload import Replay, as_replay

_HALVINGS = 8  # of a cache whose size nobody has told
_DRAWN = 4_000  # requests whose pauses are drawn to fit their number, and more:
_CLOSE = 0.03  # so exactly


class LoadedPart(msgspec.Struct, frozen=True):
    """A recording, ready to be simulated."""

    part: Part
    replay: Replay


class ReplayTask(msgspec.Struct, frozen=True):
    """One simulation."""

    source: Selection
    case: Variant
    seed: int


@lru_cache(maxsize=2)
def load(source: Selection) -> LoadedPart:
    """Return the requests that are meant; a process keeps those that it has read last. Raises
    BenchError when they are too few, or nothing can be read."""
    recording = read_recording(source.directory)
    return loaded(part_of(recording, source.model, source.since, source.until))


def loaded(part: Part) -> LoadedPart:
    """Return a part of a recording, ready to be simulated."""
    return LoadedPart(part, as_replay(part))


def perform(task: ReplayTask) -> ReplayFigures:
    """Simulate a task in a process of the pool."""
    return simulated(load(task.source).replay, task.case, task.seed)


def simulated(replay: Replay, case: Variant, seed: int) -> ReplayFigures:
    """Simulate a case, and return its figures. Raises BenchError."""
    work = replay.workload
    outcome = simulate(work, work.own_rate, case.fleet, maker(case.policy, replay), seed)
    return simulated_figures(replay, outcome, case.fleet.num_engines)


def of_seeds(
    processes: Processes, source: Selection, cases: Sequence[Variant], seeds: int, what: str
) -> list[list[ReplayFigures]]:
    """Return the figures of each case with each seed."""
    tasks = [ReplayTask(source, case, seed) for seed in range(1, seeds + 1) for case in cases]
    found = processes.map(perform, tasks, what)
    return [found[number :: len(cases)] for number in range(len(cases))]


class RecordedFleet(msgspec.Struct, frozen=True):
    """The recorded fleet as it is simulated, and in words how its constants were found."""

    spec: FleetSpec
    how: str
    notes: Sequence[str] = ()


def recorded_fleet(
    loaded_: LoadedPart, one: Callable[[Variant], ReplayFigures] | None = None
) -> RecordedFleet:
    """Return the fleet with the constants that tell the recorded times best. `one` simulates a
    case. Raises BenchError when the recording says too little of them."""
    part, replay = loaded_.part, loaded_.replay
    one = one or partial(simulated, replay, seed=1)
    sizes = {facts.cache_blocks for facts in part.engines.values()} - {None}
    least = min((size for size in sizes if size), default=None)
    most = _all_blocks(replay.workload)
    tokens = (least or most) * part.block_size
    like = EngineSpec(cache_tokens=tokens)
    notes = []
    found, why = _constants(loaded_, like)
    fleets = [_with_pauses(replay, _fleet(part, each)) for each in found]
    best = min(range(len(fleets)), key=lambda at: _off(replay, one(_as_recorded(fleets[at]))))
    how, spec = found[best].how, fleets[best]
    if why and not found[1:]:
        notes.append(why)
    if len(sizes) > 1:
        notes.append(f"engines have caches of different sizes; all get the least, {least:,} blocks")
    if least is None:
        spec, said = _with_cache(replay, spec, one, most * part.block_size)
        notes.append(said)
    return RecordedFleet(spec, how, notes)


def _constants(loaded_: LoadedPart, like: EngineSpec) -> tuple[list[Learned], str]:
    """What can be said of the engines, in each way that says something; else why it does not."""
    learned = from_costs(loaded_.part.engines, like)
    try:
        own = fitted(loaded_.replay, like)
    except BenchError as e:
        if learned is None:
            raise
        return [learned], str(e)
    if learned is None:
        return own, ""
    scattered = msgspec.structs.replace(learned.engine, scatter=own[0].engine.scatter)
    return [*own, learned._replace(engine=scattered)], ""


def _fleet(part: Part, learned: Learned) -> FleetSpec:
    return FleetSpec(len(part.engines), num_slow=0, engine=learned.engine, factors=learned.factors)


def _with_pauses(replay: Replay, fleet: FleetSpec) -> FleetSpec:
    """The fleet with so many pauses that its first tokens come as late as they did. Requests that
    had an engine to themselves tell too few: an engine also pauses for one that begins later."""
    if not fleet.engine.pause_seconds:
        return fleet
    seeds = range(1, 2 + _DRAWN // len(replay.workload.requests))

    def simulated_ttft(times: float) -> float:
        case = _as_recorded(fleet.with_pauses(times))
        return fmean(simulated(replay, case, seed).ttft for seed in seeds) / 1e3

    try:
        waited = measured_figures(replay).ttft / 1e3
        times = fit_beside(waited, simulated_ttft, close=_CLOSE)
    except BenchError:
        return fleet  # it is not what makes them late
    return fleet.with_pauses(times)


def _as_recorded(fleet: FleetSpec) -> Variant:
    return Variant(AS_RECORDED, AS_RECORDED, fleet)


def _off(replay: Replay, told: ReplayFigures) -> float:
    """How far the times of a simulation are off, in %."""
    measured = measured_figures(replay)
    names = ("ttft_p50", "ttft_p90")
    return sum(abs(error(getattr(told, n), getattr(measured, n), n)) for n in names)


def _all_blocks(workload: Workload) -> int:
    """A cache of so many blocks never evicts one."""
    size = workload.block_tokens
    return sum(-(-(r.prompt_tokens + r.output_tokens) // size) for r in workload.requests) + 1


def _with_cache(
    replay: Replay, fleet: FleetSpec, one: Callable[[Variant], ReplayFigures], most: int
) -> tuple[FleetSpec, str]:
    """The fleet with caches that reuse as much as was reused, and in words how large they are."""
    if not replay.measured.has_usage:
        return fleet, "no engine has told the size of its cache; caches that evict nothing are used"
    shared, size = measured_figures(replay).cached, replay.workload.block_tokens
    longest = max(r.prompt_tokens + r.output_tokens for r in replay.workload.requests) + size
    best: tuple[float, int] = (float("inf"), most)
    for halving in range(_HALVINGS * 2):
        tokens = max(int(most / 2 ** (halving / 2)), longest)
        told = one(_as_recorded(_with_tokens(fleet, tokens)))
        best = min(best, (abs(told.cached - shared), -tokens))
        if tokens == longest or told.cached < shared - 10:
            break
    tokens = abs(best[1])
    said = (
        f"no engine has told the size of its cache; with {tokens // size:,} blocks each reuses as "
        "much as was reused"
    )
    return _with_tokens(fleet, tokens), said


def _with_tokens(fleet: FleetSpec, tokens: int) -> FleetSpec:
    engine = msgspec.structs.replace(fleet.engine, cache_tokens=tokens)
    return msgspec.structs.replace(fleet, engine=engine)
