"""What every scorer, filter and picker of ours keeps to."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request

from inferway.model import Adapters, Candidates
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.plugin import DataProducer, Filter, Picker, Scorer
from inferway.scheduling.registry import Building

# What cannot be left out.
GIVEN: dict[str, dict[str, Any]] = {
    "by-label": {"label": "a", "validValues": ["1"]},
    "header-label-affinity-scorer": {"headerName": "x-a", "labelKey": "a"},
    "utilization-filter": {"conditions": [{"metric": "waiting-queue", "maxValue": 100}]},
    "endpoint-attribute-filter": {
        "attribute": "num_requests_waiting",
        "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 100}},
    },
    "endpoint-attribute-scorer": {
        "attributeKey": "num_requests_waiting",
        "algorithm": {"type": "linear_lower_is_better"},
    },
    "session-id-producer": {"headerName": "x-session"},
    "priority-holdback-policy": {"minCeiling": 0.5},
}


def built(name: str, **parameters: Any) -> object:
    kind = TYPES[name]
    given_ = {**GIVEN.get(name, {}), **parameters}
    building = Building({"expected-ttft": ExpectedTtft()}, name=name)
    return kind.build(msgspec.convert(given_, kind.parameters), building)


PLUGINS = {name: built(name) for name, kind in TYPES.items() if not kind.is_handler}
SCORERS = [name for name, plugin in PLUGINS.items() if isinstance(plugin, Scorer)]
FILTERS = [name for name, plugin in PLUGINS.items() if isinstance(plugin, Filter)]
PICKERS = [name for name, plugin in PLUGINS.items() if isinstance(plugin, Picker)]


@st.composite
def tables(draw: st.DrawFn) -> Candidates:
    size = draw(st.integers(1, 6))

    def column(most: float) -> list[float]:
        numbers = st.floats(0, most) if most == 1 else st.integers(0, int(most))
        return draw(st.lists(numbers, min_size=size, max_size=size))

    total = draw(st.integers(0, 20))
    table = candidates(
        labels=[
            draw(st.sampled_from([{}, {"a": "1"}, {"llm-d.ai/context-length-range": "0-99"}]))
            for _ in range(size)
        ],
        adapters=[draw(st.sampled_from([Adapters(), Adapters(most=2)])) for _ in range(size)],
        in_flight=column(30),
        others=column(30),
        running=column(300),
        waiting=column(1000),
        kv_usage=column(1),
        recent_prefill_tokens=column(100_000),
        states=column(4),
        matched_blocks=column(total),
        prompt_blocks=total,
    )
    table.weighted_matched_blocks = table.matched_blocks * draw(st.sampled_from([0.5, 1.0]))
    table.now = draw(st.floats(0, 1e6))
    return table


ASK = request(
    tokens=320,
    headers=((b"x-a", b"1"), (b"x-session-token", b"ZTA=")),
    body=CompletionRequest(model="m", prompt="x" * 400, stream=True),
)


def columns(table: Candidates) -> dict[str, list[Any]]:
    names = set(table.__slots__) - {"endpoints", "rows", "adapters", "added", "now"}
    found = {name: getattr(table, name).tolist() for name in names}
    return found | {name: values.tolist() for name, values in table.added.items()}


@pytest.mark.parametrize("name", SCORERS)
@settings(max_examples=40)
@given(table=tables())
def test_a_scorer_rates_each_row_in_a_column_of_its_own(name: str, table: Candidates) -> None:
    producers: list[object] = [built("approx-prefix-cache-producer")]
    producers += [built("inflight-load-producer"), built(name)]
    for plugin in producers:
        if isinstance(plugin, DataProducer):
            plugin.produce(ASK, table)
    before = columns(table)
    scorer = producers[-1]
    assert isinstance(scorer, Scorer)

    scores = scorer.score(ASK, table)
    told = scores.tolist()
    scores *= -1.0  # as who asked may

    assert scores.dtype == np.float64
    assert len(told) == len(table.endpoints)
    assert all(0.0 <= score <= 1.0 for score in told)
    assert columns(table) == before
    assert scorer.score(ASK, table).tolist() == told


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=10)
@given(table=tables())
def test_a_filter_says_yes_or_no_for_each_row(name: str, table: Candidates) -> None:
    plugin = built(name)
    assert isinstance(plugin, Filter)

    kept = plugin.keep(ASK, table)

    assert kept.dtype == np.bool_
    assert kept.shape == (len(table.endpoints),)


@pytest.mark.parametrize("name", PICKERS)
@given(
    scores=st.lists(st.floats(0, 7), min_size=1, max_size=20),
    count=st.integers(1, 5),
    most=st.none() | st.integers(1, 5),
)
def test_a_picker_names_so_many_rows_each_once(
    name: str, scores: list[float], count: int, most: int | None
) -> None:
    picker = built(name, maxNumOfEndpoints=most)
    assert isinstance(picker, Picker)

    rows = picker.pick(np.array(scores), count)

    assert len(rows) == min(count, len(scores), most or count)
    assert set(rows) <= set(range(len(scores)))
    assert len(set(rows)) == len(rows)
    assert {type(row) for row in rows} == {int}
