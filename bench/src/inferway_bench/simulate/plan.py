"""What is simulated: traces, fleets, policies and loads."""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from inferway_bench.data_files import default_data_dir
from inferway_bench.flags import data_flag, flag
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.groups import HybridSpec
from inferway_bench.policies.requests import Workload, repeated
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.policies.traces import FILES, ChatSpec, chats, read_trace, stored
from inferway_bench.processes import BenchError
from inferway_bench.rows import Key

CHATS = "chats"
_UNSEEDED = ("mooncake", "azure")  # a seed changes only when their requests arrive
_CONSTANTS = EngineSpec.__struct_fields__
_LARGE = 100_000  # requests; from so many on one process at a time has the memory


class Setting(NamedTuple):
    """A trace on a fleet."""

    trace: str  # as the plan names it
    engines: int
    gateways: int
    cells: int = 0  # that the engines are divided into; 0: they are not
    groups: str = ""  # of KV caches, if engines have several

    @property
    def keys(self) -> dict[str, Key]:
        """The setting as a row names it."""
        return {k: v for k, v in self._asdict().items() if v}


class SimulatePlan(msgspec.Struct, frozen=True):
    """The flags of `inferway bench simulate`; other benchmarks have other defaults."""

    # fmt: off
    trace: Annotated[tuple[str, ...], flag(
        "Replay this file, or mooncake, agentic or azure of --data, or chats, which are generated."
        " FILE@TOKENS gives the engines KV caches of this number of tokens.", metavar="FILE",
    )] = (CHATS,)
    engines: Annotated[tuple[int, ...], flag(
        "Simulate a fleet of this number of engines, each with the same load.", ge=1,
    )] = (8,)
    slow: Annotated[int, flag("Make this number of the engines three times as slow.", ge=0)] = 0
    gateways: Annotated[tuple[int, ...], flag(
        "Put this number of gateways before the fleet. Each knows its own requests, unless the"
        " policy has them told.", ge=1,
    )] = (1,)
    cells: Annotated[tuple[int, ...], flag(
        "Divide the engines evenly into this number of cells that know nothing of each other, each"
        " with gateways of its own. A session stays in the cell that the hash of its name says.",
        ge=1,
    )] = ()
    kv_groups: Annotated[tuple[str, ...], flag(
        "Give engines these groups of KV caches, as --kv-groups of inferway simulate takes them;"
        " with +eagle or +mtp behind them the last block of a hit is computed again.",
        metavar="GROUPS",
    )] = ()
    policy: Annotated[tuple[str, ...], flag(
        "Simulate this policy, of inferway serve --policy or of a peer. NAME+workers, NAME+load@MS"
        " and NAME+peers@MS have its gateways tell each other what they do.", metavar="NAME",
    )] = ("round-robin", "expected-ttft")
    rate: Annotated[float | None, flag(
        "Send this number of requests a second, instead of the trace's own.", gt=0,
    )] = None
    load: Annotated[tuple[float, ...], flag(
        "Send requests at this share of --rate; without --rate, of the rate at which round-robin's"
        " mean TTFT doubles.", metavar="SHARE", gt=0,
    )] = ()
    seeds: Annotated[int, flag("Simulate this number of seeds.", ge=1)] = 1
    requests: Annotated[int | None, flag(
        "Simulate this number of requests. If the trace has fewer, copies of it run side by side,"
        " each with blocks of its own.", ge=1,
    )] = None
    engine: Annotated[tuple[str, ...], flag(
        f"Set a constant of every engine. The keys are {', '.join(_CONSTANTS)}.",
        metavar="KEY=VALUE",
    )] = ()
    warm_up: Annotated[float, flag(
        "Do not count what arrives in this first share of a run.", ge=0, le=0.9,
    )] = 0.5
    bisections: int = 6  # to find the rate at which round-robin's mean TTFT doubles
    processes: Annotated[int | None, flag(
        "Simulate in this number of processes at a time, instead of one a core; 100,000 requests"
        " or more are simulated in one.", ge=1,
    )] = None
    data: Annotated[Path | None, data_flag("traces")] = None
    # fmt: on

    @property
    def all_seeds(self) -> range:
        """The seeds that are simulated."""
        return range(1, 1 + self.seeds)

    @property
    def num_processes(self) -> int:
        """The number of simulations at a time."""
        usual = 1 if (self.requests or 0) >= _LARGE else os.cpu_count() or 1
        return self.processes or usual

    def settings(self) -> list[Setting]:
        """Return every trace on every fleet. Raises BenchError when the engines cannot be divided
        into cells."""
        for engines, cells in product(self.engines, self.cells):
            if engines % cells:
                raise BenchError(f"--cells {cells}: it must divide the {engines} engines evenly")
        each = (
            self.trace,
            self.engines,
            self.gateways,
            self.cells or (0,),
            self.kv_groups or ("",),
        )
        return [Setting(*one) for one in product(*each)]

    def fleet(self, setting: Setting) -> FleetSpec:
        """Return the fleet of a setting. Raises BenchError for a constant that does not exist."""
        cache = _split(setting.trace)[1]
        constants: dict[str, Any] = dict(word.partition("=")[::2] for word in self.engine)
        constants |= {"cache_tokens": cache} if cache else {}
        try:
            engine = msgspec.convert(constants, EngineSpec, strict=False)
        except msgspec.ValidationError as e:
            raise BenchError(f"--engine: {e}; the keys are {', '.join(_CONSTANTS)}") from e
        groups, _, speculation = setting.groups.partition("+")
        return FleetSpec(
            setting.engines,
            self.slow,
            engine=engine,
            num_gateways=setting.gateways,
            hybrid=HybridSpec(groups, speculation or "none") if groups else None,
        )

    def workload(self, trace: str, seed: int) -> Workload:
        """Return the requests of a trace; what is drawn is drawn with the seed. Raises BenchError
        when the trace is not there."""
        name = _split(trace)[0]
        traces = (self.data or default_data_dir()) / "traces"
        return _workload(name, 1 if name in _UNSEEDED else seed, self.requests, traces)


def preset(name: str, **defaults: Any) -> type[SimulatePlan]:
    """Return a plan whose fields have other defaults."""
    hints = get_type_hints(SimulatePlan, include_extras=True)
    fields = [(field, hints[field], value) for field, value in defaults.items()]
    made: Any = msgspec.defstruct(name, fields, bases=(SimulatePlan,), frozen=True)
    kind: type[SimulatePlan] = made
    return kind


def _split(trace: str) -> tuple[str, int | None]:
    """NAME@TOKENS"""
    name, _, tokens = trace.rpartition("@")
    return (name, int(tokens)) if name and tokens.isdecimal() else (trace, None)


@lru_cache(maxsize=16)
def _workload(name: str, seed: int, requests: int | None, traces: Path) -> Workload:
    """A process keeps those that it has made last."""
    if name == CHATS:
        most = ChatSpec().num_requests
        workload = chats(seed, ChatSpec(num_requests=min(requests or most, most)))
    else:
        is_named = name in FILES and not Path(name).exists()
        workload = read_trace(stored(traces, name) if is_named else Path(name), seed)
    return workload if requests is None else repeated(workload, requests)
