"""What is simulated: traces, fleets, policies and loads."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.chats import default_data_dir
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.flags import data_flag, flag
from inferway_bench.peers.plan import REAL
from inferway_bench.peers.workload import chats as written_chats
from inferway_bench.policies.chats import ChatSpec, chats
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.repeated import repeated
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.policies.trace_files import FILES, read_trace, stored
from inferway_bench.processes import BenchError
from inferway_bench.rows import Run, load_run
from inferway_bench.simulate.compared import as_workload

CHATS = "chats"
PEERS_CHATS = "peers-chats"
_UNSEEDED = ("mooncake", "azure")  # a seed changes only when their requests arrive
_LARGE = 100_000  # requests; from so many on one process at a time has the memory

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]


class Setting(NamedTuple):
    """A workload on a fleet."""

    workload: str
    cache: int  # tokens of each engine
    engines: int
    gateways: int


class SimulatePlan(msgspec.Struct, frozen=True):
    """The flags of `inferway bench simulate`; other benchmarks have other defaults."""

    trace: Annotated[
        tuple[str, ...],
        flag(
            "Replay this trace: Mooncake's JSON lines, an agent's sessions, Azure's CSV or "
            "ServeGen's clients, packed by gzip or xz, or not. The names mooncake, agentic, azure "
            "and servegen take the one of --data, chats generates multi-turn chats, and "
            "peers-chats those of inferway bench peers --real. FILE@TOKENS gives the engines KV "
            "caches of this number of tokens. Repeat the flag for more.",
            metavar="FILE",
        ),
    ] = (CHATS,)
    engines: Annotated[
        tuple[Count, ...],
        flag(
            "Simulate a fleet of this number of engines. Repeat the flag for several fleets with "
            "the same load for each engine.",
            metavar="NUMBER",
        ),
    ] = (8,)
    slow: Annotated[
        int,
        flag("Make this number of the engines three times as slow.", metavar="NUMBER", ge=0),
    ] = 0
    gateways: Annotated[
        tuple[Count, ...],
        flag(
            "Put this number of gateways before the fleet; each knows its own requests only. "
            "Repeat the flag for more cases.",
            metavar="NUMBER",
        ),
    ] = (1,)
    policy: Annotated[
        tuple[str, ...],
        flag(
            "Simulate this policy, one of those of `inferway serve --policy` or of a peer. Repeat "
            "the flag for more.",
            metavar="NAME",
        ),
    ] = ("round-robin", "expected-ttft")
    rate: Annotated[
        Positive | None,
        flag(
            "Send this number of requests a second, instead of the trace's own rate.",
            metavar="RATE",
        ),
    ] = None
    load: Annotated[
        tuple[Positive, ...],
        flag(
            "Send requests at this share of --rate; without --rate, of the rate at which "
            "round-robin's mean TTFT doubles. Repeat the flag for more.",
            metavar="SHARE",
        ),
    ] = ()
    curve: tuple[Positive, ...] = ()  # more loads, with one seed and gateway, for the picture
    seeds: Annotated[
        int,
        flag(
            "Simulate each case with this number of seeds. From ten on, the tables say how many it "
            "takes to see a difference.",
            metavar="NUMBER",
            ge=1,
        ),
    ] = 1
    requests: Annotated[
        Count | None,
        flag(
            "Simulate this number of requests. If the trace has fewer, copies of it run side by "
            "side, each with blocks of its own.",
            metavar="NUMBER",
        ),
    ] = None
    cache_tokens: Annotated[
        Count | None,
        flag("Give each engine a KV cache of this number of tokens.", metavar="TOKENS"),
    ] = None
    engine: Annotated[
        tuple[str, ...],
        flag(
            "Set this constant of every engine. Repeat the flag for more. The keys are "
            f"{', '.join(EngineSpec.__struct_fields__)}.",
            metavar="KEY=VALUE",
        ),
    ] = ()
    like: Annotated[
        Path | None,
        flag(
            "Simulate engines with the constants in this file, which inferway bench validate "
            "--real --save wrote.",
            metavar="FILE",
        ),
    ] = None
    think: Annotated[
        float,
        flag(
            "Multiply the time between an answer and the next turn by this.", metavar="FACTOR", ge=0
        ),
    ] = 1.0
    warm_up: Annotated[
        float,
        flag("Leave out what arrives in this first share of a run.", metavar="SHARE", ge=0, le=0.9),
    ] = 0.5
    weights: tuple[int, ...] = (0, 1, 2, 4, 8)  # of best-weighted, for each of its scorers
    fit_gateways: int = 1  # in front of the fleet while they are fitted
    finalists: int = 4  # of all weights, tried again with all seeds
    bisections: int = 6  # to find the rate at which round-robin's mean TTFT doubles
    processes: Annotated[
        Count | None,
        flag(
            "Simulate in this number of processes at a time.  [default: one a core; one, if there "
            f"are {_LARGE:,} requests or more]",
            metavar="NUMBER",
        ),
    ] = None
    data: Annotated[
        Path | None,
        data_flag("traces"),
    ] = None

    @property
    def num_processes(self) -> int:
        if (self.requests or 0) >= _LARGE:
            return self.processes or 1
        return self.processes or os.cpu_count() or 1

    def settings(self) -> list[Setting]:
        """Return every workload on every fleet."""
        usual = self.spec().cache_tokens
        return [
            Setting(*_split(trace, usual), engines, gateways)
            for trace in self.trace
            for engines in self.engines
            for gateways in self.gateways
        ]

    def label(self, setting: Setting) -> str:
        """Return the words for a setting that tell it from the plan's others."""
        first = next(one for one in self.settings() if one.workload == setting.workload)
        caches = f"caches of {setting.cache:,} tokens" if setting.cache != first.cache else ""
        engines = f"{setting.engines:,} engines" if len(self.engines) > 1 else ""
        gateways = "one gateway" if setting.gateways == 1 else f"{setting.gateways} gateways"
        return ", ".join(filter(None, (setting.workload, caches, engines, gateways)))

    def spec(self) -> EngineSpec:
        """Return an engine of the fleets. Raises BenchError for a constant that does not exist, or
        a file that is no validation of real engines."""
        spec = EngineSpec() if self.like is None else fitted_engine(load_run(self.like))
        if self.cache_tokens is not None:
            spec = msgspec.structs.replace(spec, cache_tokens=self.cache_tokens)
        return _with_words(spec, self.engine)

    def fleet(self, setting: Setting) -> FleetSpec:
        engine = msgspec.structs.replace(self.spec(), cache_tokens=setting.cache)
        return FleetSpec(
            setting.engines, num_slow=self.slow, engine=engine, num_gateways=setting.gateways
        )

    def workload(self, name: str, seed: int) -> Workload:
        """Return the requests of a trace; what is drawn is drawn with the seed. Raises BenchError
        when the trace is not there."""
        seed = 1 if name in _UNSEEDED else seed
        return _workload(
            name, seed, self.requests, self.think, (self.data or default_data_dir()) / "traces"
        )


def preset(name: str, **defaults: Any) -> type[SimulatePlan]:
    """Return a plan whose fields have other defaults."""
    hints = get_type_hints(SimulatePlan, include_extras=True)
    fields = [(field, hints[field], value) for field, value in defaults.items()]
    made: Any = msgspec.defstruct(name, fields, bases=(SimulatePlan,), frozen=True, module=__name__)
    kind: type[SimulatePlan] = made
    return kind


def fitted_engine(run: Run) -> EngineSpec:
    """Return the constants that a validation has fitted. Raises BenchError when it has none."""
    names = EngineSpec.__struct_fields__
    if not run.facts.keys() >= set(names):
        raise BenchError(
            f"a run of inferway bench {run.benchmark} has no constants of engines; the cure: a "
            "file that inferway bench validate --real --save wrote"
        )
    return msgspec.convert({name: run.facts[name] for name in names}, EngineSpec)


def _split(trace: str, usual: int) -> tuple[str, int]:
    """NAME@TOKENS"""
    name, _, tokens = trace.rpartition("@")
    return (name, int(tokens)) if name and tokens.isdecimal() else (trace, usual)


def _with_words(spec: EngineSpec, words: tuple[str, ...]) -> EngineSpec:
    known = {field.name: field.type for field in msgspec.structs.fields(EngineSpec)}
    values = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in known:
            raise BenchError(f"--engine: no {key!r}; known: {', '.join(known)}")
        try:
            values[key] = msgspec.convert(value, known[key], strict=False)
        except msgspec.ValidationError as e:
            raise BenchError(f"--engine: {word!r}: {e}") from e
    return msgspec.structs.replace(spec, **values)


@lru_cache(maxsize=16)
def _workload(name: str, seed: int, requests: int | None, think: float, traces: Path) -> Workload:
    """A process keeps those that it has made last."""
    if name == CHATS:
        most = ChatSpec().num_requests
        workload = chats(seed, ChatSpec(num_requests=min(requests or most, most)))
    elif name == PEERS_CHATS:
        workload = _peers_chats(seed)
    else:
        is_named = name in FILES and not Path(name).exists()
        workload = read_trace(stored(traces, name) if is_named else Path(name), seed)
    if think != 1.0:
        workload = _thinking(workload, think)
    return workload if requests is None else repeated(workload, requests)


def _thinking(workload: Workload, factor: float) -> Workload:
    requests = [
        msgspec.structs.replace(request, think=request.think * factor)
        for request in workload.requests
    ]
    about = f"{workload.about}; thinking takes {factor:g} times as long"
    return Workload(workload.name, about, workload.block_tokens, requests, workload.grain)


def _peers_chats(seed: int) -> Workload:
    sessions = written_chats(REAL.chats, seed, str(seed), rate=1.0)
    return as_workload(sessions, _prompts(), REAL.engines.block_size)


@lru_cache(maxsize=1)
def _prompts() -> EnginePrompts:
    """Its threads end with the process."""
    return EnginePrompts(str(prepare_smollm2()))
