"""A compile where it can be killed: for specs that may take long, or memory.

The cascade's own limits are counted, not timed; a child's time is. It imports no more than the
libraries that compile, and all of it before its limits hold.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from inferway_structured.errors import (
    ChecksBusyError,
    HelperError,
    JobKilledError,
    SpecError,
)
from inferway_structured.grammar import Unenforced
from inferway_structured.helper.helper import Helper
from inferway_structured.helper.process import Limits
from inferway_structured.jobs import Child, Job
from inferway_structured.malloc import give_back, malloced_bytes
from inferway_structured.spec import Kind, Options, Spec

if TYPE_CHECKING:
    from inferway_structured.backends.cascade import Cascade
    from inferway_structured.grammar import Compiled

LIMITS = Limits(
    memory_bytes=256 << 20, cpu_seconds=2, wall_seconds=10.0, result_bytes=32 << 20, niceness=19
)
PATIENCE_SECONDS = 10.0  # until it is a spec's turn
MAX_WAITING = 64
_GIVEN_BACK_BYTES = 32 << 20  # what compiled less leaves free is soon used again
JUDGE = f"{__name__}:compile_on_trial"
PREPARE = f"{__name__}:rehearse"

# Libraries are imported when they are first used, and with the limits on no file can be opened.
_REHEARSED = (
    Spec(Kind.JSON, '{"type":"object","properties":{"a":{"type":"string","pattern":"^a$"}}}'),
    Spec(Kind.JSON, '{"oneOf":[{"type":"integer"},{"type":"array","uniqueItems":true}]}'),
    Spec(Kind.REGEX, "[ab]+"),
    Spec(Kind.CHOICE, '["a","b"]'),
    Spec(Kind.GRAMMAR, 'start: "a"'),
    Spec(Kind.GRAMMAR, 'root ::= "a"'),
    Spec(Kind.GRAMMAR, "root ::= undefined"),
)


class Judged(NamedTuple):
    """As the cascade's Verdict, and what a compile takes, about (`cost.estimated_seconds`)."""

    backend: str
    unenforced: list[Unenforced]
    compile_seconds: float
    num_bytes: int = 0  # that it left in memory
    said: str = ""  # the spec's text in the library's words, for `Cascade.compile_said`


class TrialJobs:
    """For a CompilationManager: what is heavy is compiled in the child, then here. As what it takes
    here is known, this is done once at a time."""

    fingerprint = "trial"  # its results are kept nowhere

    def __init__(self, cascade: Cascade) -> None:
        self._cascade = cascade
        self._compiling = Lock()
        self.child = Child((__name__,), PREPARE, lambda: b"-")

    def job(self, spec: Spec) -> Job:
        return Job(JUDGE, argument(spec), partial(self._compiled, spec), required=True)

    def _compiled(self, spec: Spec, said: bytes) -> Compiled:
        found = judged(said)
        with self._compiling:
            compiled = self._cascade.compile_said(
                replace(spec, text=found.said), found, found.num_bytes
            )
            if found.num_bytes > _GIVEN_BACK_BYTES:
                give_back()
        return compiled


class Trial:
    """Any thread, not an event loop's. Close it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.helper = Helper(
            __name__,
            limits=limits,
            max_waiting=MAX_WAITING,
            patience_seconds=PATIENCE_SECONDS,
            keep_spare=False,
            prepare=(PREPARE, b"-"),
        )

    def verdict(self, spec: Spec) -> Judged:
        """Raises SpecError, also where it passed a limit, or ChecksBusyError."""
        try:
            return judged(self.helper.call(JUDGE, argument(spec)))._replace(said="")
        except JobKilledError as e:
            if e.lacked_cpu:
                raise ChecksBusyError(
                    f"compiling it {e}, for lack of CPU; try again in a moment"
                ) from None
            raise SpecError(f"compiling it {e}; simplify it") from None
        except HelperError as e:
            raise ChecksBusyError(f"shapes cannot be checked now: {e}") from None

    def close(self) -> None:
        self.helper.close()


def argument(spec: Spec) -> bytes:
    """Of `compile_on_trial`."""
    told = {"kind": spec.kind, "text": spec.text, "options": asdict(spec.options)}
    return json.dumps(told).encode()


def judged(said: bytes) -> Judged:
    """What the child says. Raises SpecError."""
    found = json.loads(said)
    if "message" in found:
        raise SpecError(found["message"], place=found["place"], keyword=found["keyword"])
    unenforced = [Unenforced(**each) for each in found["unenforced"]]
    return Judged(
        found["backend"], unenforced, found["compile_seconds"], found["num_bytes"], found["said"]
    )


def rehearse(_: bytes | bytearray) -> None:
    """In the child, before it is limited."""
    from inferway_structured.backends.xgrammar import is_installed

    is_installed()
    for spec in _REHEARSED:
        compile_on_trial(argument(spec))


def compile_on_trial(argument: bytes | bytearray) -> bytes:
    """In the child."""
    from inferway_structured.backends.cascade import judge
    from inferway_structured.backends.llguidance import compiled_alone
    from inferway_structured.cost import estimated_seconds

    given = json.loads(argument)
    spec = Spec(Kind(given["kind"]), given["text"], Options(**given["options"]))
    num_bytes = 0

    def attempt(said: Spec) -> None:
        nonlocal num_bytes
        before = malloced_bytes()
        compiled = compiled_alone(said)
        num_bytes = malloced_bytes() - before
        del compiled

    try:
        said, found = judge(spec, attempt)
    except SpecError as e:
        refused = {"message": str(e), "place": e.place, "keyword": e.keyword}
        return json.dumps(refused).encode()
    told = {
        "backend": found.backend,
        "num_bytes": max(num_bytes, 0),
        "said": said.text,
        "unenforced": [asdict(each) for each in found.unenforced],
        # Here too: a large schema's graph is tens of thousands of objects, and each full
        # collection that meets them holds every thread of the process.
        "compile_seconds": estimated_seconds(spec),
    }
    return json.dumps(told).encode()
