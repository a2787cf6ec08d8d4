"""The routers that are measured: how each is started, and how each shows what it did.

A router is measured as it is shipped: metrics, logging, timeouts, retries and limits at their
defaults. What is set is what it cannot know: ports, engines and, for vllm-router's kv_aware,
the event sockets (its discovery asks for /get_server_info, which vLLM 0.32 does not have).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from inferway import __version__
from inferway.events.stream import StreamState
from inferway_bench.peers.packages import PEERS
from inferway_bench.processes import BenchError, answers, get, request
from inferway_bench.venvs import Venv

BLOCK_SIZE = 16  # tokens; vLLM's default on GPUs

# Prometheus' samples: value by 'name{labels}'.
Counters = dict[str, float]

_LOOKUPS = "vllm_router_kv_placement_lookups_total"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where a trivial engine listens and publishes."""

    url: str
    events: str  # tcp://127.0.0.1:PORT


@dataclass(frozen=True, slots=True)
class Place:
    """What a router gets told: its ports, its engines, a directory for its files."""

    port: int
    metrics_port: int
    engines: Sequence[EngineAddress]
    model: str
    directory: Path
    block_size: int = BLOCK_SIZE

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Router(Protocol):
    """One row of the table."""

    @property
    def label(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def engines_render(self) -> bool:
        """Whether its engines serve /render, as vLLM does with --enable-scale-out."""

    @property
    def matches_events(self) -> bool:
        """Whether it is expected to match prompts against the engines' KV events."""

    def command(self, place: Place) -> list[str]: ...

    def is_ready(self, place: Place) -> bool:
        """Whether it serves, and knows its engines as well as it is going to without requests."""

    def matched_share(self, place: Place, body: bytes) -> float:
        """What it credits as cached of `body`, 0..1, as far as it tells."""

    def counters(self, place: Place) -> Counters:
        """Its own counters, as they stand now."""

    def evidence(self, counted: Counters) -> str:
        """What it did with the requests between two readings, in a footnote's words."""


@dataclass(frozen=True, slots=True)
class Inferway:
    """Ours, access log to a file."""

    scoring: bool
    engines_render: bool = False
    version: str = __version__

    @property
    def label(self) -> str:
        return "inferway serve" if self.scoring else "inferway serve --no-scoring"

    @property
    def matches_events(self) -> bool:
        return self.scoring

    def command(self, place: Place) -> list[str]:
        executable = Path(sys.executable).with_name("inferway")
        command = [str(executable), "serve", "--port", str(place.port)]
        for engine in place.engines:
            command += ["--engine", engine.url]
        command += ["--access-log", str(place.directory / "access.log")]
        return command if self.scoring else [*command, "--no-scoring"]

    def is_ready(self, place: Place) -> bool:
        """All engines are there; it has compared how they render, and read what they have told of
        their caches: of engines that have served for an hour that takes seconds."""
        try:
            report = msgspec.json.decode(get(f"{place.url}/ready"))
        except (OSError, BenchError):
            return False
        engines = report["engines"]
        there = len(engines) == len(place.engines) and all(is_known(each) for each in engines)
        return there and (not self.scoring or all(_is_compared(each) for each in engines))

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
    version: str = PEERS["vllm-router"]

    @property
    def label(self) -> str:
        return f"vllm-router {self.policy}"

    @property
    def engines_render(self) -> bool:
        return self.policy == "kv_aware"

    @property
    def matches_events(self) -> bool:
        return self.policy == "kv_aware"

    def command(self, place: Place) -> list[str]:
        command = [str(self.peers.executable("vllm-router")), "--policy", self.policy]
        if self.policy == "kv_aware":
            for engine in place.engines:
                command += ["--kv-event-source", f"{engine.url}={engine.events}"]
            block_size = str(place.block_size)
            command += ["--kv-event-block-size", block_size, "--kv-event-model", place.model]
        return command + _rust_flags(place)

    def is_ready(self, place: Place) -> bool:
        return answers(f"{place.url}/health")

    def matched_share(self, place: Place, body: bytes) -> float:
        before = self.counters(place)
        request(f"{place.url}/v1/chat/completions", body)
        lookups = by_label(since(before, self.counters(place)), _LOOKUPS, "result")
        return 1.0 if lookups.get("hit") else 0.0

    def counters(self, place: Place) -> Counters:
        return _prometheus(place)

    def evidence(self, counted: Counters) -> str:
        inputs = by_label(counted, "vllm_router_kv_routing_inputs_total", "result")
        if not sum(inputs.values()):
            return "prompts not looked at"
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
class SglangRouter:
    """sglang-router from PyPI."""

    peers: Venv
    policy: str
    version: str = PEERS["sglang-router"]
    engines_render: bool = False
    matches_events: bool = False

    @property
    def label(self) -> str:
        return f"sglang-router {self.policy}"

    def command(self, place: Place) -> list[str]:
        command = [str(self.peers.executable("sglang-router")), "launch", "--policy", self.policy]
        return command + _rust_flags(place)

    def is_ready(self, place: Place) -> bool:
        return answers(f"{place.url}/health")

    def matched_share(self, place: Place, body: bytes) -> float:  # noqa: ARG002
        return 0.0

    def counters(self, place: Place) -> Counters:
        return _prometheus(place)

    def evidence(self, counted: Counters) -> str:  # noqa: ARG002
        if self.policy != "cache_aware":
            return "prompts not looked at"
        return "compares text with a tree of past requests, not tokens with events"


def is_known(engine: Mapping[str, Any]) -> bool:
    """Whether the engine of /ready's account answers, and nothing it has told is still to be read.
    Streams that cannot be asked for the past have nothing to wait for."""
    streams = [each for each in engine["streams"] if each["replay"] is not None]
    return engine["healthy"] and all(StreamState(each["state"]).is_settled for each in streams)


def _is_compared(engine: Mapping[str, Any]) -> bool:
    """Whether it is known how the engine renders, of /ready's account of it."""
    probes = engine["probes"].values()
    return bool(probes) and all(probe["state"] != "unproven" for probe in probes)


def since(before: Counters, after: Counters) -> Counters:
    """What was counted between two readings; a counter that is new began at 0."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def read_metrics(text: str) -> Counters:
    """Prometheus' text format -> value by 'name{labels}'."""
    samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples


def total(metrics: Counters, name: str) -> float:
    """Sum of a metric over all its labels."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


def by_label(metrics: Counters, name: str, label: str) -> dict[str, float]:
    """A metric's values by one of its labels."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        match = re.search(rf'[{{,]{label}="([^"]*)"', key)
        if key.partition("{")[0] == name and match:
            found[match[1]] = found.get(match[1], 0.0) + value
    return found


def _prometheus(place: Place) -> Counters:
    return read_metrics(get(f"http://127.0.0.1:{place.metrics_port}/metrics").decode())


def _rust_flags(place: Place) -> list[str]:
    flags = ["--host", "127.0.0.1", "--port", str(place.port)]
    flags += ["--prometheus-port", str(place.metrics_port)]
    flags += ["--worker-startup-check-interval", "1", "--worker-urls"]
    return flags + [engine.url for engine in place.engines]
