from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from structured.tests.vllm.letters import END, Letters

from inferway_structured.counts import Counts
from inferway_structured.vllm.adapter import RequestGrammar
from inferway_structured.vllm.forced_tokens import forced
from inferway_structured.vllm.settings import Settings


class Bounds(NamedTuple):
    grammar_start: int
    constraint_start: int


class Manager:
    """As vLLM's, where `forced` looks at it. `start`: from which token on is constrained."""

    def __init__(self, num_drafts: int, start: int = 0, async_scheduling: bool = False) -> None:
        speculates = SimpleNamespace(num_speculative_tokens=num_drafts) if num_drafts else None
        self.vllm_config = SimpleNamespace(
            speculative_config=speculates,
            scheduler_config=SimpleNamespace(async_scheduling=async_scheduling),
        )
        self._start = start

    def _get_constraint_bounds(self, request: object, tokens: Sequence[int]) -> Bounds:
        del request, tokens
        return Bounds(self._start, self._start)


def must(letters: Letters, manager: Manager) -> list[int]:
    core: Any = SimpleNamespace(settings=Settings(), counts=Counts())
    grammar = RequestGrammar(letters, "letters", [END], lambda _id, _why: None)
    request = SimpleNamespace(structured_output_request=SimpleNamespace(grammar=grammar))
    return forced(manager, core, request)


def test_what_must_come_is_drafted_as_far_as_a_step_takes() -> None:
    letters = Letters(must=range(10))

    assert must(letters, Manager(4)) == [0, 1, 2, 3]


def test_nothing_is_drafted_where_drafts_are_not_to_be_had_or_not_known_in_time() -> None:
    assert must(Letters(), Manager(0)) == []
    assert must(Letters(), Manager(4, async_scheduling=True)) == []
    assert must(Letters(), Manager(4, start=1)) == []
    assert must(Letters(terminated=True), Manager(4)) == []
