"""Jobs of a killable child: they build by libraries that have no limits of their own, whose results
are bytes that load much faster than they build (outlines-core: 92 times).

For a few specs `Jobs` knows such a job. The CompilationManager looks on the disk, asks the child,
and makes the answer with `finish`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inferway_structured.grammar import Compiled
    from inferway_structured.spec import Spec


@dataclass(frozen=True, slots=True)
class Job:
    """The work that a child does for one spec. The result depends on `function`, `argument` and
    `Jobs.fingerprint` alone; under these it is kept on disk."""

    function: str  # "package.module:name", bytes -> bytes, of one of the child's modules
    argument: bytes
    finish: Callable[[bytes], Compiled]  # in a thread of ours; raises on bytes it cannot read
    # True: nothing else can make this spec, requests wait for the job. False: `compile` makes it
    # now, and the job's result takes over once the spec has been asked for often.
    required: bool = False


@dataclass(frozen=True, slots=True)
class Child:
    """The modules that a child imports, and the call that prepares it before its limits hold."""

    modules: tuple[str, ...]
    prepare: str | None = None  # "package.module:name", of one of the modules; bytes -> anything
    argument: Callable[[], bytes] = bytes  # for `prepare`; asked for when a child first starts


class Source(Protocol):
    """A cascade of backends that compiles specs for one vocabulary. Any thread may use it."""

    def compile(self, spec: Spec) -> Compiled:
        """Compile a spec by what has limits of its own. Raises SpecError if it is refused, and
        would be again, HeavyError if that is not to be done here before a child has done it."""


class Jobs(Protocol):
    """The jobs that are worth a child, for the same vocabulary. Any thread may use it."""

    @property
    def fingerprint(self) -> str:
        """A name of the vocabulary and of the versions of the libraries whose compiled bytes are
        kept."""

    @property
    def child(self) -> Child: ...

    def job(self, spec: Spec) -> Job | None:
        """Return what a child had better build; None for most specs. Raises SpecError as
        `Source.compile`."""
