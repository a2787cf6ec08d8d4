"""What one try takes, and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from inferway.kv.index.protocol import MatchResult
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import Endpoint, HolderId, Prompt, Target
from inferway.routing.attempt import Attempt
from inferway.routing.match import Matched, MatchedPrompts

BLOCK = 4
ENGINE = Endpoint("e", "http://e", 0)
KEYS = [11, 12, 13]
BODY = b'{"model":"m"}'


@dataclass
class OneEngine:
    """A fleet of one engine: what it is told."""

    heals: bool = False
    size: int | None = BLOCK
    told: list[str] = field(default_factory=list)

    def cut(self, holder: HolderId) -> int | None:  # noqa: ARG002
        return self.size

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:  # noqa: ARG002
        self.told.append(f"book {new_tokens}")

    def release(self, endpoint: Endpoint) -> None:  # noqa: ARG002
        self.told.append("release")

    def heal(self, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return self.heals

    def healed(self, endpoint: Endpoint) -> None:  # noqa: ARG002
        self.told.append("healed")

    def reports(self, endpoint: Endpoint) -> None:
        raise AssertionError(endpoint)

    def suspect(self, endpoint: Endpoint) -> None:
        raise AssertionError(endpoint)


def matched(held: int) -> MatchedPrompts:
    """A prompt of three blocks, of which the engine holds so many."""
    prompt = Prompt(np.arange(3 * BLOCK, dtype=np.uint32), KEYS)
    return {BLOCK: [Matched(prompt, MatchResult({0: held}))]}


def attempt(
    book: OneEngine,
    overlay: SpeculativeOverlay | None = None,
    held: int = 1,
    body: bytes = BODY,
    *,
    goes_on: bool = False,
) -> Attempt:
    target = Target(ENGINE, 1.0, matched_blocks=held, prompt_blocks=3)
    overlay = overlay or SpeculativeOverlay()
    return Attempt(target, body, matched(held), goes_on, book, overlay)


@pytest.mark.parametrize(("held", "goes_on", "new"), [(1, False, 8), (3, False, 4), (3, True, 0)])
def test_it_books_what_must_be_computed(held: int, goes_on: bool, new: int) -> None:
    """Of a whole prompt the last token always, and with it its block."""
    book = OneEngine()

    made = attempt(book, held=held, goes_on=goes_on)

    assert book.told == [f"book {new}"]
    assert (made.prompt_tokens, made.reused_tokens) == (12, 12 - new)


def test_without_a_block_size_only_its_place_is_taken() -> None:
    book, overlay = OneEngine(size=None), SpeculativeOverlay()

    attempt(book, overlay)

    assert book.told == ["book 0"]
    assert overlay.extend(KEYS, {}) == {}


def test_its_prompt_counts_as_held_until_its_end() -> None:
    book, overlay = OneEngine(), SpeculativeOverlay()

    made = attempt(book, overlay)
    assert overlay.extend(KEYS, {0: 1}) == {0: 3}
    made.end()

    assert overlay.extend(KEYS, {0: 1}) == {0: 1}
    assert book.told == ["book 8", "release"]


def test_once_the_answer_has_begun_its_prompt_counts_until_the_engines_word_is_here() -> None:
    overlay, waiting = SpeculativeOverlay(), list[Callable[[], None]]()
    made = attempt(OneEngine(), overlay)

    made.has_begun_to_answer(waiting.append)
    made.end()
    assert overlay.extend(KEYS, {0: 1}) == {0: 3}
    [call] = waiting
    call()

    assert overlay.extend(KEYS, {0: 1}) == {0: 1}


def test_it_asks_for_a_report_where_the_engine_may_hold_more() -> None:
    book = OneEngine(heals=True)

    made = attempt(book)
    assert made.asks_for_report
    assert b"kv_cache_report_mode" in made.body
    made.end()

    assert book.told == ["book 8", "release", "healed"]


def test_it_asks_for_no_report_of_what_is_known_or_in_a_body_that_cannot_be_edited() -> None:
    known, closed = OneEngine(heals=True), OneEngine(heals=True)

    assert attempt(known, held=3).body == BODY
    assert attempt(closed, body=b'{"vllm_xargs": 3}').body == b'{"vllm_xargs": 3}'

    assert known.told == ["book 4"]
    assert closed.told == ["healed", "book 8"]
