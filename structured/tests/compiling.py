"""Doubles for tests of compiling: a source whose builds begin and end when the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from inferway_structured.backends.vocabulary import Vocabulary
from inferway_structured.compile.compilations import Compilations, CompileLimits
from inferway_structured.compile.compile_trial import Jobs
from inferway_structured.errors import HeavyError, SpecError
from inferway_structured.grammar import Compiled, Grammar, Unenforced
from inferway_structured.spec import Kind, Spec

JOBS = "structured.tests.compile_jobs"
SMOLLM2 = Path(__file__).parents[2] / "src" / "inferway_sim" / "smollm2"  # its tokenizer
SECONDS = 120.0  # a test that waits longer fails; children are nice, and machines busy

# As in an engine, but for the wall times, which a busy machine makes too short.
PATIENT = CompileLimits(
    wait_seconds=SECONDS,
    build_seconds=SECONDS,
    trial=replace(CompileLimits().trial, wall_seconds=SECONDS),
)


@dataclass(frozen=True)
class Made:
    """As Compiled, of nothing."""

    text: str
    backend: str = "double"
    num_bytes: int = 1_000_000
    unenforced: Sequence[Unenforced] = ()

    def start(self, stop_token_ids: frozenset[int] = frozenset()) -> Grammar:
        raise AssertionError(f"no test of compiling writes an answer, {stop_token_ids}")


def spec(text: str) -> Spec:
    return Spec(Kind.REGEX, text)


def text_of(future: Future[Compiled]) -> str:
    made = future.result(SECONDS)
    assert isinstance(made, Made)
    return made.text


@dataclass
class Gated:
    """Builds wait at the gate, if it is shut; those whose text begins with "bad" are refused, with
    "broken" raise what no library should."""

    built: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    num_bytes: int = 1_000_000
    unenforced: Sequence[Unenforced] = ()

    @classmethod
    def open(cls) -> Gated:
        source = cls()
        source.gate.set()
        return source

    def compile(self, spec: Spec) -> Made:
        self.arrived.release()
        if not self.gate.wait(SECONDS):
            raise TimeoutError
        self.built.append(spec.text)
        if spec.text.startswith("bad"):
            raise SpecError("cannot hold", place="/a", keyword="pattern")
        if spec.text.startswith("broken"):
            raise BaseException(f"a panic over {spec.text}")
        return Made(spec.text, num_bytes=self.num_bytes, unenforced=self.unenforced)

    def wait_for_build(self) -> None:
        assert self.arrived.acquire(timeout=SECONDS)


def is_held(manager: Compilations, text: str) -> bool:
    return spec(text).key in {held.key for held in manager.held_specs()}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def text_jobs(function: str = "named") -> Jobs:
    """A job for every spec: `function` of structured.tests.compile_jobs; "named" is the one of
    them that is the spec's text."""
    return Jobs(f"{JOBS}:{function}", lambda _, data: Made(data.decode(), backend="job"))


def heavy(spec: Spec) -> Made:
    """Compiles nothing itself but what begins with "light"."""
    if spec.text.startswith("light"):
        return Made(spec.text)
    raise HeavyError("a shape that may take long")


@cache
def smollm2() -> Vocabulary:
    text = (SMOLLM2 / "tokenizer.json").read_text()
    return Vocabulary(text, size=49_152, eos_token_ids=(2,))
