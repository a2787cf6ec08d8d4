"""A process like an engine's core, asked for hostile shapes: `bounded.py killers|drawn SEED COUNT`.

Prints a line for each: what it took in this process, not in its children. The limit on memory is
for the machine's sake: what is asserted of these lines is far below it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import closing, suppress
from typing import Any

from structured.tests.compiling import PATIENT, smollm2
from structured.tests.hostile_draws import hostile_specs
from tests.cpu import slowness

from inferway_structured.backends.cascade import Cascade, light_verdict
from inferway_structured.compile.compilations import Compilations, CompileLimits
from inferway_structured.compile.compile_trial import trial_jobs
from inferway_structured.errors import HeavyError, InferwayError, SpecError
from inferway_structured.spec import Kind, Spec

PLACES: Any = {"const": 1}
for _ in range(11):
    PLACES = {"allOf": [{"prefixItems": [{}, {}, {}]}, {"items": PLACES}]}

KILLERS = (
    ("multipleOf", Spec(Kind.JSON, '{"type":"integer","multipleOf":3000017}')),
    ("held", Spec(Kind.JSON, '{"type":"integer","multipleOf":65521}')),
    (
        "oneOf",
        Spec(
            Kind.JSON,
            json.dumps(
                {
                    "oneOf": [
                        {"properties": {f"a{i}": {"oneOf": [
                            {"properties": {f"b{j}": {"oneOf": [
                                {"properties": {f"c{k}": {"type": "string", "maxLength": 3}},
                                 "required": [f"c{k}"]} for k in range(5)]}},
                             "required": [f"b{j}"]} for j in range(5)]}},
                         "required": [f"a{i}"]}
                        for i in range(5)
                    ]
                }
            ),
        ),
    ),
    ("places", Spec(Kind.JSON, json.dumps(PLACES))),
)  # fmt: skip


def main(which: str, seed: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    cascade = Cascade(smollm2())
    # What is told of the killers must not be that the machine was too busy.
    limits, specs = (
        (PATIENT, KILLERS)
        if which == "killers"
        else (CompileLimits(), hostile_specs(int(seed), int(count)))
    )
    manager = Compilations(cascade.compile_light, limits, trials=trial_jobs(cascade))
    with closing(manager):
        for name, spec in specs:
            slow = slowness()
            before, began = _peak_bytes(), time.process_time()
            with suppress(SpecError, HeavyError):  # as an API server looks at it
                light_verdict(spec)
            judged = time.process_time()
            future = manager.compile(spec)
            error = future.exception(120)
            ended = time.process_time()
            slow = max(slow, slowness())
            assert error is None or isinstance(error, InferwayError), repr(error)
            told = {
                "name": name,
                "chars": len(spec.text),
                "judged": round((judged - began) / slow, 3),
                "compiled": round((ended - judged) / slow, 3),
                "grown": _peak_bytes() - before,
                "error": "" if error is None else f"{type(error).__name__}: {error}"[:120],
                "left_out": [] if error else [one.keyword for one in future.result().unenforced],
                "held": manager.snapshot()["held_bytes"]["memory"],
            }
            print(json.dumps(told), flush=True)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
