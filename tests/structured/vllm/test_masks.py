from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.structured.vllm.letters import END, Letters, Tensor

from inferway.structured.backends.fill import Filler
from inferway.structured.counts import Counts
from inferway.structured.vllm.adapter import RequestGrammar
from inferway.structured.vllm.drafts import forced
from inferway.structured.vllm.masks import batched
from inferway.structured.vllm.settings import Settings

ALL = [-1, -1]
END_ONLY = [0, -(2**31)]


class Bounds(NamedTuple):
    grammar_start: int
    constraint_start: int


def core() -> Any:
    return SimpleNamespace(
        filler=Filler(1), allocate_token_bitmask=Tensor.of, settings=Settings(), counts=Counts()
    )


class Manager:
    """As vLLM's, where these functions look at it. `start`: from which token on is constrained."""

    def __init__(self, num_drafts: int = 0, start: int = 0, async_scheduling: bool = False) -> None:
        speculates = SimpleNamespace(num_speculative_tokens=num_drafts) if num_drafts else None
        self.vllm_config = SimpleNamespace(
            speculative_config=speculates,
            scheduler_config=SimpleNamespace(max_num_seqs=4, async_scheduling=async_scheduling),
        )
        self._grammar_bitmask: Any = None
        self._start = start

    def _get_constraint_bounds(self, request: object, tokens: Sequence[int]) -> Bounds:
        del request, tokens
        return Bounds(self._start, self._start)


def request(letters: Letters | None) -> Any:
    """None: its grammar did not compile."""
    grammar: object = ValueError()
    if letters is not None:
        grammar = RequestGrammar(letters, "letters", [END], lambda _id, _why: None)
    return SimpleNamespace(structured_output_request=SimpleNamespace(grammar=grammar))


def rows(
    *grammars: Letters | None, drafts: dict[int, list[int]] | None = None, manager: Any = None
) -> Any:
    requests = {str(i): request(letters) for i, letters in enumerate(grammars)}
    given = {str(i): tokens for i, tokens in (drafts or {}).items()}
    found = batched(manager or Manager(4), core(), requests, list(requests), given)
    return None if found is None else found.tolist()


def test_each_request_has_its_row_in_order() -> None:
    assert rows(Letters(taken=[1]), Letters(taken=[1, 2])) == [[1, 0], [2, 0]]


def test_a_request_has_a_row_for_each_draft_and_one_after_and_is_where_it_was() -> None:
    letters = Letters()

    assert rows(letters, Letters(taken=[9]), drafts={0: [3, 4]}) == [
        *([0, 0], [1, 0], [2, 0]),
        [1, 0],
    ]
    assert letters.taken == []


def test_rows_of_padded_drafts_let_everything_through() -> None:
    assert rows(Letters(), drafts={0: [3, -1, -1]}) == [[0, 0], [1, 0], ALL, ALL]


def test_an_answer_that_has_ended_lets_everything_through() -> None:
    assert rows(Letters(terminated=True), drafts={0: [3]}) == [ALL, ALL]


def test_what_is_reasoned_is_not_masked() -> None:
    assert rows(Letters(), manager=Manager(0, start=1)) == [ALL]


def test_reasoning_that_may_end_among_drafts_is_left_to_vllm() -> None:
    assert rows(Letters(), drafts={0: [3]}, manager=Manager(4, start=1)) is None


def test_a_grammar_that_is_none_is_left_to_vllm() -> None:
    assert rows(None) is None


def test_more_rows_than_vllm_has_room_for_are_left_to_vllm() -> None:
    assert rows(*(Letters() for _ in range(5)), manager=Manager()) is None


def test_a_grammar_that_has_failed_lets_the_end_through_alone() -> None:
    broken = request(Letters(raises="validate"))
    broken.structured_output_request.grammar.validate_tokens([1])

    found = batched(Manager(), core(), {"a": broken}, ["a"], {})

    assert found.tolist() == [END_ONLY]


def must(letters: Letters, manager: Manager) -> list[int]:
    return forced(manager, core(), request(letters))


def test_what_must_come_is_drafted_as_far_as_a_step_takes() -> None:
    letters = Letters(must=range(10))

    assert must(letters, Manager(4)) == [0, 1, 2, 3]


def test_nothing_is_drafted_where_drafts_are_not_to_be_had_or_not_known_in_time() -> None:
    assert must(Letters(), Manager(0)) == []
    assert must(Letters(), Manager(4, async_scheduling=True)) == []
    assert must(Letters(), Manager(4, start=1)) == []
    assert must(Letters(terminated=True), Manager(4)) == []
