"""A compile where it can be killed: for specs that may take long, or memory.

The cascade's own limits are counted, not timed; a child's time is. It imports no more than the
libraries that compile, and all of it before its limits hold.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from inferway_structured.errors import SpecError
from inferway_structured.grammar import Verdict, found_in, told
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox
from inferway_structured.spec import Kind, Spec, packed, unpacked

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


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2, malloc.h: grammar libraries use the C library's malloc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def malloced_bytes() -> int:
    """Return the bytes in use now, of all threads; 0 where malloc does not tell (glibc below 2.33,
    musl)."""
    mallinfo2 = _function("mallinfo2")
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def give_back() -> None:
    """Give what is free back to the kernel. Takes milliseconds."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


@cache
def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)


class TrialResult(NamedTuple):
    """The findings of a child about a spec."""

    verdict: Verdict
    num_bytes: int  # that the compiled spec left in memory
    said: str  # the spec's text in the library's words, for `Cascade.compile_said`


class Jobs(NamedTuple):
    """The work of a child, one job a spec."""

    function: str  # "package.module:name", packed spec -> bytes
    finish: Callable[[Spec, bytes], Compiled]  # in a thread of ours, what the child has returned
    prepare: str | None = None  # "package.module:name", called before the limits hold


def trial_jobs(cascade: Cascade) -> Jobs:
    """Return the jobs of `Compilations` for what is heavy: it is compiled in the child, then here.
    As what it takes here is known, this is done once at a time."""
    compiling = Lock()

    def finish(spec: Spec, said: bytes) -> Compiled:
        found = _result(said)
        with compiling:
            compiled = cascade.compile_said(
                replace(spec, text=found.said), found.verdict, found.num_bytes
            )
            if found.num_bytes > _GIVEN_BACK_BYTES:
                give_back()
        return compiled

    return Jobs(JUDGE, finish, PREPARE)


class Trial:
    """Works verdicts out where that can be killed. Any thread and any event loop. Close it."""

    def __init__(self, limits: Limits = LIMITS, *, keep_spare: bool = False) -> None:
        """`keep_spare`: the next process waits while one works."""
        self.helper = Sandbox(
            __name__,
            limits=limits,
            max_waiting=MAX_WAITING,
            patience_seconds=PATIENCE_SECONDS,
            keep_spare=keep_spare,
            prepare=(PREPARE, b"-"),
        )

    async def verdict(self, spec: Spec) -> Verdict:
        """Return what engines with our plugin make of the spec. Raises SpecError, JobKilledError
        where it passed a limit, or another SandboxError if it cannot be tried now."""
        return _result(await self.helper.call_async(JUDGE, packed(spec))).verdict

    def close(self) -> None:
        """End the processes."""
        self.helper.close()


def _result(said: bytes) -> TrialResult:
    """Read what `compile_on_trial` has returned. Raises SpecError if it has refused the spec."""
    given = json.loads(said)
    found = found_in(given["found"])
    if isinstance(found, SpecError):
        raise found
    return TrialResult(found, given["num_bytes"], given["said"])


def rehearse(_: bytes | bytearray) -> None:
    """Load what compiling needs, in the child, before it is limited."""
    from inferway_structured.backends.xgrammar import is_installed

    is_installed()
    for spec in _REHEARSED:
        compile_on_trial(packed(spec))


def compile_on_trial(argument: bytes | bytearray) -> bytes:
    """Compile a packed spec, in the child. Return the verdict on it as JSON, or the refusal."""
    from inferway_structured.backends.cascade import judge
    from inferway_structured.backends.llguidance import compiled_alone

    spec = unpacked(json.loads(argument))
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
        return json.dumps({"found": told(e)}).encode()
    made = {"found": told(found), "num_bytes": max(num_bytes, 0), "said": said.text}
    return json.dumps(made).encode()
