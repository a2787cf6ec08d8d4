"""Small stand-ins for what the gate is built on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inferway.config import StructuredSettings
from inferway.errors import HeavyError, JobKilledError, SandboxBusyError, SpecError
from inferway.model import Endpoint, Target
from inferway.routing.structured_gate.gate import Gate
from inferway_structured.grammar import Unenforced, Verdict
from inferway_structured.sandbox.sandbox import Sandbox
from inferway_structured.spec import Spec

CHAT = "/v1/chat/completions"


@dataclass
class Words:
    """A library that goes by words in a spec's text, and counts what it is asked."""

    asked: Counter[str] = field(default_factory=Counter)
    hold: asyncio.Event | None = None  # checks end when it is set
    begun: list[str] = field(default_factory=list)  # titles of what is checked, in order

    @property
    def helpers(self) -> Mapping[str, Sandbox]:
        return {}

    async def check(self, spec: Spec) -> None:
        self.asked["check"] += 1
        if self.hold is not None:
            self.begun.append(json.loads(spec.text)["x-title"])
            await self.hold.wait()
        if "breaks" in spec.text:
            raise RecursionError
        if "invalid" in spec.text:
            raise SpecError("type: is none", place="/type")

    def close(self) -> None:
        pass

    def is_costly(self, spec: Spec) -> bool:
        return "costly" in spec.text

    def verdict(self, spec: Spec) -> Verdict:
        self.asked["verdict"] += 1
        if "heavy" in spec.text:
            raise HeavyError("may take long")
        if "refused" in spec.text:
            raise SpecError("'oneOf' cannot be compiled", place="/oneOf", keyword="oneOf")
        if "uniqueItems" in spec.text:
            return Verdict("llguidance", [Unenforced("/properties/a b,c", "uniqueItems")])
        return Verdict("llguidance")

    async def trial(self, spec: Spec) -> Verdict:
        """In a helper that is killed by specs with "hostile" in them."""
        self.asked["trial"] += 1
        if "busy" in spec.text:
            raise SandboxBusyError("8 jobs wait")
        if "slow" in spec.text:
            raise JobKilledError("wall", "took more than 10 s")
        if "hostile" in spec.text:
            raise JobKilledError("cpu", "took more than 2 s of CPU time")
        return Words().verdict(replace(spec, text=spec.text.replace("heavy", "")))

    def is_valid(self, spec: Spec, text: str) -> bool | None:
        if "unsure" in spec.text:
            return None
        return text.startswith("{") and text.endswith("}")


@dataclass
class Engines:
    """`plugins`: engines that have it."""

    plugins: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    in_flight: dict[str, int] = field(default_factory=dict)

    def has_plugin(self, engine: str) -> bool:
        return engine in self.plugins

    def is_up(self, engine: str) -> bool:
        return engine not in self.down

    def num_in_flight(self, engine: str) -> int:
        return self.in_flight.get(engine, 0)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def make_gate(
    engines: Engines | None = None,
    library: Words | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Gate:
    return Gate(
        StructuredSettings(**settings),
        library or Words(),
        engines or Engines(),
        clock=clock or Clock(),
    )


def answers(gate: Gate) -> dict[str, float]:
    """How many answers it has counted, by whether they have their shape."""
    return {} if gate.verdicts is None else gate.verdicts.counts.answers.snapshot()


def endpoints(*names: str) -> list[Endpoint]:
    return [Endpoint(name, f"http://{name}", holder) for holder, name in enumerate(names)]


def target(name: str) -> Target:
    return Target(Endpoint(name, f"http://{name}", 0), 1.0, 0, 0)


def schema(*words: str, strict: bool | None = None) -> dict[str, Any]:
    """Fields of a chat that asks for a schema with these words in it."""
    asked: dict[str, Any] = {"name": "n", "schema": {"type": "object", "x-title": " ".join(words)}}
    if strict is not None:
        asked["strict"] = strict
    return {"response_format": {"type": "json_schema", "json_schema": asked}}
