"""The routers that are measured: how each is started, and how each shows what it did.

A router is measured as it is shipped: metrics, logging, timeouts, retries and limits at their
defaults. What is set is what it cannot know: ports, engines and, for vllm-router's kv_aware,
the event sockets (its discovery asks for /get_server_info, which vLLM 0.32 does not have). The
lines in `NOT_MEASURED` name what of the peers cannot be measured here.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import msgspec

from inferway import __version__
from inferway.doctor.machine import cache_dir
from inferway.kv.events.stream import StreamState
from inferway_bench.flags import flag
from inferway_bench.processes import (
    BenchError,
    OnStep,
    Venv,
    answers,
    free_port,
    get,
    install_venv,
    request,
    running,
    wait_until,
)
from inferway_sim.prepare import prepare_smollm2

BLOCK_SIZE = 16  # tokens; vLLM's default on GPUs
PEERS = {"vllm-router": "0.1.17", "smg": "1.13.0", "ai-dynamo": "1.6.1"}  # from PyPI
# What is imported of what ai-dynamo requires. pip cannot install all of that from PyPI alone:
# aisimulate is a stub there, which fetches the package from NVIDIA's index.
_DYNAMO_NEEDS = (
    *("ai-dynamo-runtime==1.6.1", "aiohttp==3.14.5", "msgspec==0.23.0", "packaging==26.4"),
    "pyyaml==6.0.4",
)
_DYNAMO_WORKERS = Path(__file__).parent / "peers" / "dynamo_workers.py"
NOT_MEASURED = (
    "smg with KV events: it takes them of gRPC engines alone (smg-grpc-servicer), and before HTTP "
    "engines compares text; its wheel has no shared index to start",
)
OnlyFlag = Annotated[
    tuple[str, ...],
    flag(
        "Measure the router with this name alone, or those whose names contain TEXT if none has "
        "this name.",
        metavar="TEXT",
    ),
]
PeersFlag = Annotated[bool, flag("Measure Inferway alone, and install no other router.")]

# Prometheus' samples: value by 'name{labels}'.
Counters = dict[str, float]

_LOOKUPS = "vllm_router_kv_placement_lookups_total"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The URL of an engine, and the address of its KV events (tcp://127.0.0.1:PORT)."""

    url: str
    events: str


@dataclass(frozen=True, slots=True)
class Place:
    """The arguments of a router: its ports, its engines, a directory for its files."""

    port: int
    metrics_port: int
    engines: Sequence[EngineAddress]
    model: str
    directory: Path
    block_size: int = BLOCK_SIZE

    @property
    def url(self) -> str:
        """The URL where clients reach the router."""
        return f"http://127.0.0.1:{self.port}"


class Router(Protocol):
    """A router that can be started at a place and asked what it did. Its `label` is its name in
    tables: the program and what it was told to do."""

    @property
    def label(self) -> str: ...

    @property
    def is_ours(self) -> bool: ...

    @property
    def version(self) -> str: ...

    @property
    def matches_events(self) -> bool:
        """True if the router is expected to match prompts against the engines' KV events."""

    def command(self, place: Place) -> list[str]:
        """Return the command that starts the router."""

    def is_ready(self, place: Place) -> bool:
        """Return whether it serves, and knows its engines as well as it is going to without
        requests."""

    def matched_share(self, place: Place, body: bytes) -> float:
        """Send `body`, and return the share of it that the router says is cached, 0 to 1."""

    def counters(self, place: Place) -> Counters:
        """Return the router's own counters, as they stand now."""

    def evidence(self, counted: Counters) -> str:
        """Return a footnote on what the router did with the requests between two readings."""


@dataclass(frozen=True, slots=True)
class Inferway:
    """Our own gateway, with its access log in a file."""

    scoring: bool
    is_ours: bool = True
    version: str = __version__

    @property
    def label(self) -> str:
        return "inferway serve" if self.scoring else "inferway serve --no-scoring"

    @property
    def matches_events(self) -> bool:
        return self.scoring

    def command(self, place: Place) -> list[str]:
        executable = Path(sys.executable).with_name("inferway")
        engines = [word for engine in place.engines for word in ("--engine", engine.url)]
        log = str(place.directory / "access.log")
        command = [str(executable), "serve", "--port", str(place.port), *engines]
        return [*command, "--access-log", log, *([] if self.scoring else ["--no-scoring"])]

    def is_ready(self, place: Place) -> bool:
        """Return whether all engines are there, and the gateway has compared how they render and
        read what they have told of their caches: of engines that have served for an hour that takes
        seconds."""
        try:
            engines = msgspec.json.decode(get(f"{place.url}/ready"))["engines"]
        except (OSError, BenchError):
            return False
        if len(engines) != len(place.engines) or not all(map(is_known, engines)):
            return False
        states = [[probe["state"] for probe in each["probes"].values()] for each in engines]
        return not self.scoring or all(found and "unproven" not in found for found in states)

    def matched_share(self, place: Place, body: bytes) -> float:
        _, headers = request(f"{place.url}/v1/chat/completions", body)
        matched = int(headers.get("x-inferway-matched-blocks", 0))
        return matched / max(1, int(headers.get("x-inferway-prompt-blocks", 0)))

    def counters(self, place: Place) -> Counters:
        return read_metrics(get(f"{place.url}/metrics").decode())

    def evidence(self, counted: Counters) -> str:
        prompt = total(counted, "inferway_prompt_tokens_total")
        if not prompt:
            return "prompts not looked at"
        share = total(counted, "inferway_matched_tokens_total") / prompt
        return f"rendered and tokenized in process; {share:.1%} of the tokens matched"


@dataclass(frozen=True, slots=True)
class VllmRouter:
    """vllm-router from PyPI."""

    peers: Venv
    policy: str
    is_ours: bool = False
    package: ClassVar[str] = "vllm-router"
    words: ClassVar[tuple[str, ...]] = ()  # behind the program's name

    @property
    def label(self) -> str:
        return f"{self.package} {self.policy}"

    @property
    def version(self) -> str:
        return PEERS[self.package]

    @property
    def matches_events(self) -> bool:
        return self.policy == "kv_aware"

    def command(self, place: Place) -> list[str]:
        command = [str(self.peers.executable(self.package)), *self.words, "--policy", self.policy]
        if self.matches_events:
            for engine in place.engines:
                command += ["--kv-event-source", f"{engine.url}={engine.events}"]
            block_size = str(place.block_size)
            command += ["--kv-event-block-size", block_size, "--kv-event-model", place.model]
        command += ["--host", "127.0.0.1", "--port", str(place.port)]
        command += ["--prometheus-port", str(place.metrics_port)]
        command += ["--worker-startup-check-interval", "1", "--worker-urls"]
        return command + [engine.url for engine in place.engines]

    def is_ready(self, place: Place) -> bool:
        return answers(f"{place.url}/health")

    def matched_share(self, place: Place, body: bytes) -> float:
        before = self.counters(place)
        request(f"{place.url}/v1/chat/completions", body)
        return self.matched(since(before, self.counters(place)))

    def matched(self, counted: Counters) -> float:
        """Return the share of prompts, between two readings, that it knew to be cached."""
        return 1.0 if by_label(counted, _LOOKUPS, "result").get("hit") else 0.0

    def counters(self, place: Place) -> Counters:
        return read_metrics(get(f"http://127.0.0.1:{place.metrics_port}/metrics").decode())

    def evidence(self, counted: Counters) -> str:
        inputs = by_label(counted, "vllm_router_kv_routing_inputs_total", "result")
        if not sum(inputs.values()):
            looked = "compared as text with those sent before"
            return f"prompts {looked if self.policy == 'cache_aware' else 'not looked at'}"
        rendered = inputs.get("render", 0.0)
        if not rendered:
            return f"did not tokenize ({', '.join(inputs)}): compares text, or goes by load"
        lookups = by_label(counted, _LOOKUPS, "result")
        requests = sum(lookups.values())
        if not requests:
            return (
                f"does not tokenize itself: {rendered:,.0f} calls of the engines' /render; "
                "compares with a tree of what it sent"
            )
        return (
            f"does not tokenize itself: {rendered / requests:.1f} calls of the engines' /render "
            f"a request; {lookups.get('hit', 0.0) / requests:.0%} of its lookups hit"
        )


@dataclass(frozen=True, slots=True)
class Smg(VllmRouter):
    """SMG from PyPI, the successor of sglang-router, of which vllm-router is a fork."""

    package: ClassVar[str] = "smg"
    words: ClassVar[tuple[str, ...]] = ("launch",)


@dataclass(frozen=True, slots=True)
class Dynamo(VllmRouter):
    """Dynamo's frontend from PyPI, with a worker for each engine."""

    package: ClassVar[str] = "ai-dynamo"

    @property
    def matches_events(self) -> bool:
        return self.policy == "kv"

    def command(self, place: Place) -> list[str]:
        words = ["--router-mode", self.policy, "--http-host", "127.0.0.1"]
        settings = {
            "engines": [(engine.url, engine.events) for engine in place.engines],
            "model": str(prepare_smollm2()),
            "name": place.model,
            "block_size": place.block_size,
            "store": str(place.directory / "discovery"),
            "frontend": [*words, "--http-port", str(place.port)],
        }
        python = str(self.peers.executable("python"))  # -P: modules beside it have common names
        return [python, "-P", str(_DYNAMO_WORKERS), msgspec.json.encode(settings).decode()]

    def is_ready(self, place: Place) -> bool:
        """Return whether it has heard of a worker for each engine, and of their model."""
        try:
            found = msgspec.json.decode(get(f"{place.url}/health"))["instances"]
            models = msgspec.json.decode(get(f"{place.url}/v1/models"))["data"]
        except (OSError, BenchError):
            return False
        workers = [one for one in found if one["endpoint"] == "generate"]
        return bool(models) and len(workers) == len(place.engines)

    def matched(self, counted: Counters) -> float:
        return self._share(counted, "kv_selected_cached_prefix_tokens_total")

    def _share(self, counted: Counters, name: str) -> float:
        """Of the prompts' tokens."""
        of = "dynamo_component_router"
        return total(counted, f"{of}_{name}") / max(
            1.0, total(counted, f"{of}_input_sequence_tokens_sum")
        )

    def counters(self, place: Place) -> Counters:
        return read_metrics(get(f"{place.url}/metrics").decode())

    def evidence(self, counted: Counters) -> str:
        best = self._share(counted, "kv_best_eligible_cached_prefix_tokens_total")
        return (
            f"renders and tokenizes itself; {self.matched(counted):.1%} of the tokens matched at "
            f"the engine that it took, {best:.1%} at the best; its workers, which pass tokens on "
            "to the engines, are not in its CPU time and memory"
        )


@dataclass(frozen=True, slots=True)
class RunningRouter:
    """A router that runs; `pid` is the root of its process tree."""

    router: Router
    place: Place
    pid: int

    @property
    def label(self) -> str:
        """The router's name in tables."""
        return self.router.label

    @property
    def url(self) -> str:
        """The URL where clients reach the running router."""
        return self.place.url


@contextmanager
def running_router(
    router: Router, place: Place, is_ready: Callable[[Place], bool]
) -> Iterator[RunningRouter]:
    """Start `router` and wait until `is_ready`; end it on the way out. Raises BenchError when it
    does not start."""
    log = place.directory / "router.log"
    with running(router.command(place), log) as process:
        wait_until(lambda: is_ready(place), router.label, process, log)
        yield RunningRouter(router, place, process.pid)


def place_for(
    engines: Sequence[EngineAddress], model: str, directory: Path, block_size: int = BLOCK_SIZE
) -> Place:
    """A place on free ports, with `directory` made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    return Place(free_port(), free_port(), engines, model, directory, block_size)


def all_routers(peers: Sequence[str], with_peers: bool, on_step: OnStep) -> list[Router]:
    """Return ours, with scoring and without, and the `peers` ("smg cache_aware"), each package from
    a venv that is made if it is not there (300 MB from PyPI). Raises BenchError when one cannot be
    had."""
    found: list[Router] = [Inferway(scoring=True), Inferway(scoring=False)]
    cure = "let this machine reach PyPI, or leave the peers out with --no-peers"
    for peer in peers if with_peers else ():
        package, _, policy = peer.partition(" ")
        kind = next(one for one in (VllmRouter, Smg, Dynamo) if one.package == package)
        directory, wanted = cache_dir() / "peers" / package, [f"{package}=={PEERS[package]}"]
        needs = _DYNAMO_NEEDS if kind is Dynamo else ()
        found.append(kind(install_venv(directory, wanted, on_step, cure, instead=needs), policy))
    return found


def versions(routers: Iterable[Router]) -> str:
    """Return the programs, their versions and what the peers are told, in words."""
    names = ", ".join(dict.fromkeys(f"{r.label.split()[0]} {r.version}" for r in routers))
    told = "`--policy` (Dynamo: `--router-mode`, `--discovery-backend file`), and kv_aware's events"
    return f"{names}; the peers with their defaults but for ports, engines, {told}"


def chosen(routers: Sequence[Router], only: Sequence[str]) -> list[Router]:
    """Return the routers named in `only`, or whose label contains a text that is no router's name;
    all of them if `only` is empty. Raises BenchError if there is none."""
    names = [router.label for router in routers]

    def is_wanted(name: str) -> bool:
        return any(name == text or (text not in names and text in name) for text in only)

    found = [router for router in routers if not only or is_wanted(router.label)]
    if not found:
        raise BenchError(f"--only {' '.join(only)}: no such router; there are {', '.join(names)}")
    return found


def is_known(engine: Mapping[str, Any]) -> bool:
    """Return whether the engine of /ready's report answers, and nothing it has told is still to be
    read. Streams that cannot be asked for the past have nothing to wait for."""
    streams = [each for each in engine["streams"] if each["replay"] is not None]
    return engine["healthy"] and all(StreamState(each["state"]).is_settled for each in streams)


def since(before: Counters, after: Counters) -> Counters:
    """Return the counts between two readings; a counter that is new began at 0."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def added(parts: Iterable[Counters]) -> Counters:
    """Return the sums of the counts of several parts."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part)
    return dict(sums)


def read_metrics(text: str) -> Counters:
    """Return the samples of a page in Prometheus' text format: value by 'name{labels}'."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, _, value in lines}


def total(metrics: Counters, name: str) -> float:
    """Return the sum of a metric over all its labels."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


def under_way(metrics: Counters) -> float:
    """Return the number of requests that a vLLM engine runs or keeps waiting."""
    return sum(total(metrics, f"vllm:num_requests_{of}") for of in ("running", "waiting"))


def by_label(metrics: Counters, name: str, label: str) -> dict[str, float]:
    """Return the sums of a metric by the value of one of its labels."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        match = re.search(rf'[{{,]{label}="([^"]*)"', key)
        if key.partition("{")[0] == name and match:
            found[match[1]] = found.get(match[1], 0.0) + value
    return found
