"""The contract of backends. A grammar is one request's; what it was made from is shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from inferway_structured.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inferway_structured.spec import Spec

    # One bit a token, int32 words, as vLLM's bitmask rows: set where the token may come.
    MaskRow = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A keyword that the grammar does not keep; the finished answer may break it."""

    place: str  # JSON pointer into the spec: "/properties/items"
    keyword: str  # "uniqueItems"


ARGUMENTS = Unenforced("", "parameters")  # of a tool whose schema is not kept at all


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of a spec, found without compiling it for a vocabulary."""

    backend: str  # which library keeps it
    unenforced: Sequence[Unenforced] = ()
    compile_seconds: float = 0.0  # about (`cost.estimated_seconds`)


def told(found: Verdict | SpecError) -> Any:
    """Return a verdict, or what a spec is refused for, as values of JSON, for `found_in`."""
    if isinstance(found, SpecError):
        return {"refused": [str(found), found.place, found.keyword]}
    left = [(each.place, each.keyword) for each in found.unenforced]
    return [found.backend, left, found.compile_seconds]


def found_in(told: Any) -> Verdict | SpecError:
    """Return what `told` has spelled out. Raises ValueError, KeyError or TypeError."""
    if isinstance(told, dict):
        words, place, keyword = told["refused"]
        return SpecError(words, place=place, keyword=keyword)
    backend, left, seconds = told
    return Verdict(backend, [Unenforced(*each) for each in left], seconds)


class Grammar(Protocol):
    """The state of one answer. One thread at a time. No method raises: a grammar that has failed
    says so in `failure`, accepts nothing more and lets only the end of the answer through."""

    @property
    def failure(self) -> str | None:
        """The reason why it has failed: a limit of the library, or a token that may not come. Never
        text of the answer."""

    def accept(self, tokens: Sequence[int]) -> bool:
        """Move on by all of `tokens`, or return False and fail. What comes after the end of the
        answer is counted and let through: no more is asked of it."""

    def validate(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` could come now, in order. Does not move on."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` that were accepted, the end of the answer among them.
        What has failed stays so."""

    def fill(self, row: MaskRow) -> None:
        """Write which tokens may come next over all of `row`."""

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next whatever the model says; empty when it has a
        choice."""

    @property
    def terminated(self) -> bool:
        """True if the end of the answer was accepted."""


class Compiled(Protocol):
    """A compiled spec, shared by all requests with this spec, from any thread."""

    @property
    def backend(self) -> str: ...

    @property
    def num_bytes(self) -> int:
        """The bytes that it holds in memory, estimated."""

    @property
    def unenforced(self) -> Sequence[Unenforced]: ...

    def start(self, stop_token_ids: frozenset[int] = frozenset()) -> Grammar:
        """Return the grammar of one answer. `stop_token_ids` end it as the model's own end token
        does."""


class Backend(Protocol):
    """A grammar library, set up for one tokenizer."""

    @property
    def name(self) -> str: ...

    def compile(self, spec: Spec, unenforced: Sequence[Unenforced] = ()) -> Compiled:
        """Compile a spec from which `unenforced` was left out. Raises SpecError where the library
        refuses it, with the place where that is known."""
