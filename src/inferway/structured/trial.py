"""A verdict worked out where it can be killed: for specs that may take long.

The cascade's own limits are counted, not timed; a child's time is. It imports no more than the
libraries that compile, and all of it before its limits hold.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import NamedTuple

from inferway.errors import (
    ChecksBusyError,
    HelperError,
    JobKilledError,
    SpecError,
)
from inferway.helper.helper import Helper
from inferway.helper.process import Limits
from inferway.structured.grammar import Unenforced
from inferway.structured.spec import Kind, Options, Spec

LIMITS = Limits(
    memory_bytes=1 << 30, cpu_seconds=2, wall_seconds=10.0, result_bytes=1 << 20, niceness=19
)
PATIENCE_SECONDS = 10.0  # until it is a spec's turn
MAX_WAITING = 64
JUDGE = f"{__name__}:judge"
PREPARE = f"{__name__}:rehearse"

# Libraries are imported when they are first used, and with the limits on no file can be opened.
_REHEARSED = (
    Spec(Kind.JSON, '{"type":"object","properties":{"a":{"type":"string","pattern":"^a$"}}}'),
    Spec(Kind.JSON, '{"oneOf":[{"type":"integer"},{"type":"array","uniqueItems":true}]}'),
    Spec(Kind.REGEX, "[ab]+"),
    Spec(Kind.CHOICE, '["a","b"]'),
    Spec(Kind.GRAMMAR, 'start: "a"'),
    Spec(Kind.GRAMMAR, 'root ::= "a"'),
)


class Judged(NamedTuple):
    """As the cascade's Verdict, and what a compile takes, about (`cost.estimated_seconds`)."""

    backend: str
    unenforced: list[Unenforced]
    compile_seconds: float


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

    def verdict(self, spec: Spec, strict: bool) -> Judged:
        """Raises SpecError, also where it passed a limit, or ChecksBusyError."""
        try:
            return judged(self.helper.call(JUDGE, argument(spec, strict)))
        except JobKilledError as e:
            if e.lacked_cpu:
                raise ChecksBusyError(
                    f"compiling it {e}, for lack of CPU; try again in a moment"
                ) from None
            raise SpecError(f"takes more {e.limit} than a compile may use; simplify it") from None
        except HelperError as e:
            raise ChecksBusyError(f"shapes cannot be checked now: {e}") from None

    def close(self) -> None:
        self.helper.close()


def argument(spec: Spec, strict: bool) -> bytes:
    """Of `judge`."""
    told = {"kind": spec.kind, "text": spec.text, "options": asdict(spec.options)}
    return json.dumps({**told, "strict": strict}).encode()


def judged(said: bytes) -> Judged:
    """What `judge` says. Raises SpecError."""
    found = json.loads(said)
    if "message" in found:
        raise SpecError(found["message"], place=found["place"], keyword=found["keyword"])
    unenforced = [Unenforced(**each) for each in found["unenforced"]]
    return Judged(found["backend"], unenforced, found["compile_seconds"])


def rehearse(_: bytes | bytearray) -> None:
    """In the child, before it is limited."""
    for spec in _REHEARSED:
        judge(argument(spec, strict=False))


def judge(argument: bytes | bytearray) -> bytes:
    """In the child."""
    from inferway.structured.backends.cascade import verdict
    from inferway.structured.cost import estimated_seconds

    given = json.loads(argument)
    spec = Spec(Kind(given["kind"]), given["text"], Options(**given["options"]))
    try:
        found = verdict(spec, given["strict"])
    except SpecError as e:
        refused = {"message": str(e), "place": e.place, "keyword": e.keyword}
        return json.dumps(refused).encode()
    told = {
        "backend": found.backend,
        "unenforced": [asdict(each) for each in found.unenforced],
        # Here too: a large schema's graph is tens of thousands of objects, and each full
        # collection that meets them holds every thread of the process.
        "compile_seconds": estimated_seconds(spec),
    }
    return json.dumps(told).encode()
