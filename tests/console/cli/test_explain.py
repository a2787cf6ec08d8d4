"""A record in words: what of the prompt was reused, by whom the engine was chosen."""

from __future__ import annotations

from typing import Any

import pytest

from inferway_console.cli.block_picture import terminal_marks
from inferway_console.cli.explain import lines_of
from inferway_console.records.export import summary
from inferway_console.records.ms_in_words import ms_in_words
from inferway_console.records.reader import Recorded
from inferway_console.records.record import A_TRY, CandidateRecord, RequestRecord

TOLD: dict[str, Any] = {"reachable_blocks": 4, "chosen_blocks": 4, "block_size": 16}


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(
        **{
            **{"id": "r", "at": 1.0, "path": "/v1/completions", "chosen": "e0", "outcome": "ok"},
            **{"status": 200, "prompt_blocks": 8, "prompt_tokens": 128, **TOLD, **fields},
        }
    )


def explained(**fields: Any) -> str:
    return "\n".join(lines_of(record(**fields), terminal_marks(ascii_only=True), 100))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (-1, "delivered not told."),
        (64, "delivered 64 tokens: all that could be."),
        (80, "delivered 80 tokens: 16 more than were known to be there."),
    ],
)
def test_what_was_delivered_is_told_as_far_as_the_engine_has_told_it(
    tokens: int, words: str
) -> None:
    assert words in explained(delivered_tokens=tokens)


def test_a_summary_says_what_was_delivered_and_not_known_to_be_there() -> None:
    lines = list(summary([Recorded(record(delivered_tokens=tokens), None) for tokens in (96, 64)]))

    [line] = [line for line in lines if line.startswith("prompt tokens reachable")]
    assert "reachable 50.0%" in line
    assert "delivered 62.5% (of them 12.5% not known to be there)" in line


def test_a_try_of_an_engine_that_is_hardly_known_is_called_one() -> None:
    words = explained(picked_by=f"expected-ttft{A_TRY}", reason="kv-aware")

    assert "by expected-ttft, as a try of an engine that is hardly known (kv-aware)" in words


def test_no_number_has_an_exponent() -> None:
    cheap = CandidateRecord("e0", 4, terms={"own": 163_000.0}, others_ms=1_630.0, cost=164_630.0)
    dear = CandidateRecord("e1", 0, terms={"own": 0.004}, others_ms=16.3, cost=1_630_000.0)
    words = explained(candidates=(cheap, dear), num_candidates=2, ttft_ms=1_630.0)

    assert "e+" not in words
    assert "First token after 1,630 ms" in words


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        *((0.0, "0 ms"), (0.25, "0.25 ms"), (16.3, "16.3 ms"), (163.4, "163 ms")),
        *((1_630.0, "1,630 ms"), (16_300.0, "16.3 s"), (-1_630.0, "-1,630 ms")),
    ],
)
def test_milliseconds_are_written_for_people(milliseconds: float, words: str) -> None:
    assert ms_in_words(milliseconds) == words
