"""Sums over intervals are what counting one by one gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.whatif.replay import Spans

TIME = st.integers(0, 40).map(float)
INTERVAL = st.tuples(TIME, TIME).map(lambda pair: (min(pair), max(pair) + 1.0))


@given(st.lists(INTERVAL, min_size=1, max_size=20), INTERVAL)
def test_spans_count_average_and_cover_as_counting_does(
    intervals: list[tuple[float, float]], asked: tuple[float, float]
) -> None:
    starts, ends = (np.array(column) for column in zip(*intervals, strict=True))
    since, until = asked
    spans = Spans.of(starts, ends)
    overlaps = [max(0.0, min(e, until) - max(s, since)) for s, e in intervals]
    seconds = [t for t in range(int(since), int(until)) if any(s <= t < e for s, e in intervals)]

    assert spans.touching(np.array([since]), np.array([until])) == sum(o > 0 for o in overlaps)
    mean = float(spans.mean(np.array([since]), np.array([until]))[0])
    assert mean == pytest.approx(sum(overlaps) / (until - since))
    assert spans.covered(since, until) == pytest.approx(len(seconds))
