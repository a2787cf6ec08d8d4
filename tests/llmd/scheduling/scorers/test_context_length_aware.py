"""Ranges of prompt lengths."""

from __future__ import annotations

import pytest
from tests.scheduling.tables import candidates, request

from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.scorers.context_length_aware import (
    LABEL,
    TYPE,
    ContextLengthAware,
    ContextLengthFilter,
    ContextLengthParameters,
)

TABLE = candidates(
    labels=[{LABEL: "0-2048"}, {LABEL: "2048-12048"}, {}, {LABEL: "lots"}, {LABEL: "1000-1000"}]
)


def plugin(**parameters: object) -> ContextLengthAware:
    built = TYPE.build(ContextLengthParameters(**parameters), Building())  # type: ignore[arg-type]
    assert isinstance(built, ContextLengthAware)
    return built


def test_in_range_is_above_out_of_range_whatever_their_widths() -> None:
    # w = 2048, n = 1000: 0.3 + 0.7 * (0.7 / 1.2048 + 0.3 * 1048 / 2048); d = 1048: 0.3 / 2.048
    scores = plugin().score(request(tokens=1000), TABLE).tolist()

    assert scores == pytest.approx([0.81416745, 0.146484375, 0.5, 0.0, 1.0])


def test_the_tail_of_a_range_scores_less_than_its_head() -> None:
    # w = 10000, n = 12048: 0.3 + 0.7 * 0.7 / 2; d = 10000: 0.3 / 11; d = 11048: 0.3 / 12.048
    scores = plugin().score(request(tokens=12_048), TABLE).tolist()

    assert scores == pytest.approx([0.3 / 11, 0.545, 0.5, 0.0, 0.3 / 12.048])


def test_an_unknown_prompt_counts_a_quarter_of_its_bytes() -> None:
    known = plugin().score(request(tokens=1000), TABLE)

    assert plugin().score(request(raw=b"x" * 4000), TABLE).tolist() == known.tolist()


def test_filtering_leaves_those_in_range_and_those_without_the_label() -> None:
    filtering = plugin(enable_filtering=True)
    assert isinstance(filtering, ContextLengthFilter)

    assert filtering.keep(request(tokens=1000), TABLE).tolist() == [True, False, True, False, True]


def test_without_filtering_it_is_no_filter() -> None:
    assert not hasattr(plugin(), "keep")


def test_another_label_may_be_read() -> None:
    table = candidates(labels=[{"len": "0-10"}, {LABEL: "0-10"}])

    scores = plugin(label="len").score(request(tokens=10), table)

    assert scores[1] == 0.5
    assert scores[0] > 0.7
