"""A build under way, and what has come of one."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from inferway_structured.compile.cost import estimated_bytes

if TYPE_CHECKING:
    from inferway_structured.compile.jobs import Job
    from inferway_structured.compile.workers import Task
    from inferway_structured.grammar import Compiled
    from inferway_structured.spec import Spec

    Waiter = Future[Compiled]


class HeldSpec(NamedTuple):
    """A spec that is held in memory, for requests from outside."""

    key: str
    backend: str
    seconds: float  # it took to compile, and would again
    num_bytes: int


class Stage(Enum):
    WAITING = auto()
    BUILDING = auto()
    OVERDUE = auto()  # still building, and no request waits for it any more
    CHILD = auto()
    ENDED = auto()


@dataclass(eq=False, slots=True)
class Build:
    """A build under way. It is read and written under the manager's lock, but for `task`."""

    key: str  # the spec's
    spec: Spec
    deadline: float
    warm: bool = False  # wanted even if no request waits for it
    waiters: list[Waiter] = field(default_factory=list)
    stage: Stage = Stage.WAITING
    task: Task = lambda: None
    job: Future[bytes] | None = None
    began: float = 0.0

    @property
    def wanted(self) -> bool:
        return self.warm or bool(self.waiters)


@dataclass(eq=False, slots=True)
class CachedSpec:
    """A compiled spec, read and written under the manager's lock. The future is done, and
    everybody's."""

    spec: Spec
    future: Waiter
    backend: str
    seconds: float  # it took, in the thread and the child
    num_bytes: int
    job: Job | None  # what might be faster
    num_asked: int = 1


def held_of(spec: Spec, compiled: Compiled, seconds: float, job: Job | None) -> CachedSpec:
    """Return a compiled spec to be held, counted with no fewer bytes than such a spec usually
    takes."""
    future: Waiter = Future()
    future.set_result(compiled)
    num_bytes = max(compiled.num_bytes, estimated_bytes(spec))
    return CachedSpec(spec, future, compiled.backend, seconds, num_bytes, job)
