"""What is simulated: which load on which fleet, by which policies."""

from __future__ import annotations

from pathlib import Path

import msgspec

from inferway_bench.policies.chats import ChatSpec, chats
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.repeated import repeated
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.policies.trace_files import FILES, read_trace, stored
from inferway_bench.processes import BenchError

CHATS = "chats"


class Plan(msgspec.Struct, frozen=True):
    """What a run does."""

    trace: str  # a file, a name of `FILES`, or `chats`
    policies: tuple[str, ...] = ("round-robin", "expected-ttft")
    fleet: FleetSpec = FleetSpec(num_slow=0)
    requests: int | None = None  # None: all of the trace
    rate: float | None = None  # requests a second; None: by `load`, else the trace's own
    load: float | None = None  # share of the rate at which round-robin's mean TTFT doubles
    seeds: tuple[int, ...] = (1,)
    think: float = 1.0  # thinking takes so many times as long
    # Fleets of so many engines instead, one after the other; each engine gets the same load, so the
    # rate, which is the first one's, grows with them.
    sizes: tuple[int, ...] = ()

    @property
    def fleets(self) -> list[FleetSpec]:
        """One for each size."""
        replace = msgspec.structs.replace
        return [replace(self.fleet, num_engines=size) for size in self.sizes] or [self.fleet]


def load(plan: Plan, data: Path, seed: int) -> Workload:
    """Raises BenchError when the trace is not there."""
    if plan.trace == CHATS:
        default = ChatSpec()
        own = min(plan.requests or default.num_requests, default.num_requests)
        workload = chats(seed, msgspec.structs.replace(default, num_requests=own))
    else:
        workload = read_trace(trace_path(plan.trace, data), seed)
    if plan.think != 1.0:
        workload = _thinking(workload, plan.think)
    return workload if plan.requests is None else repeated(workload, plan.requests)


def trace_path(trace: str, data: Path) -> Path:
    """A file that is there, or one of `data` by its short name."""
    if trace in FILES and not Path(trace).exists():
        return stored(data / "traces", trace)
    return Path(trace)


def engine_spec(words: tuple[str, ...], default: EngineSpec) -> EngineSpec:
    """`KEY=VALUE` words set fields of an engine. Raises BenchError for one that is none."""
    known = {field.name: field.type for field in msgspec.structs.fields(EngineSpec)}
    values = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in known:
            raise BenchError(f"engine: no {key!r}; known: {', '.join(known)}")
        try:
            values[key] = msgspec.convert(value, known[key], strict=False)
        except msgspec.ValidationError as e:
            raise BenchError(f"engine: {word!r}: {e}") from e
    return msgspec.structs.replace(default, **values)


def _thinking(workload: Workload, factor: float) -> Workload:
    requests = [
        msgspec.structs.replace(request, think=request.think * factor)
        for request in workload.requests
    ]
    about = f"{workload.about}; thinking takes {factor:g} times as long"
    return Workload(workload.name, about, workload.block_tokens, requests, workload.grain)
