"""`inferway bench epp`: what is computed of its figures, and Envoy's configuration."""

from __future__ import annotations

import msgspec
import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.epp import (
    AS_BEFORE,
    BUSY,
    CHUNK,
    EPP,
    IDLE,
    NEW,
    SCRAPED,
    STREAMED,
    EppPlan,
    Figures,
    configuration,
    measure,
    rows_of,
    sizing_rows,
)


def figures(us: float, messages: float) -> Figures:
    return {"cpu_us": [us - 10, us, us + 10], "messages": [messages] * 3}


ROWS = list(rows_of(["a chat", "streamed"], [700, 710], [figures(500, 6), figures(4500, 56)]))


def test_a_chunk_is_what_a_stream_costs_more_by_message() -> None:
    assert ROWS[-1].keys["request"] == CHUNK
    assert ROWS[-1].median("cpu_us") == pytest.approx(4000 / 50)


def test_the_table_has_each_request_and_the_chunk() -> None:
    text = EPP.markdown(a_run("epp", ROWS))

    assert "| a chat | 700 | 500 (490 to 510) | 2,000 |" in text
    assert "| a streamed chunk |  | 80 (80 to 80) |  |" in text


def test_envoy_asks_the_picker_before_the_engines() -> None:
    config = msgspec.json.decode(configuration(1, 2, 5))
    resources = config["static_resources"]

    [listener] = resources["listeners"]
    assert listener["address"]["socket_address"]["port_value"] == 1
    assert [cluster["name"] for cluster in resources["clusters"]] == ["engines", "picker"]
    assert config["admin"]["address"]["socket_address"]["port_value"] == 5


def test_the_table_of_sizes_has_each_load_beside_what_llm_d_publishes() -> None:
    cores = {load: [0.02] for load in (NEW, AS_BEFORE, SCRAPED, IDLE, BUSY)}

    text = EPP.markdown(a_run("epp", list(sizing_rows(cores, ROWS[-1])), plan={"engines": 100}))

    assert f"| {AS_BEFORE} | 0.020 |  |" in text
    assert f"| {STREAMED} | 0.100 | 0.5 to 1 |" in text
    assert f"| {SCRAPED} | 0.020 | 7.5 |" in text


@pytest.mark.envoy
def test_a_miniature_measures_every_load_of_every_table() -> None:
    plan = EppPlan(
        connections=2, repeats=1, seconds=1, idle_seconds=0.5, events=5, engines=3, sessions=1
    )

    found = measure(plan, unseen)

    assert [row.table for row in found.rows] == ["pick"] * 4 + ["sizing"] * 6
    assert all(row.median("cpu_us") > 0 for row in found.rows[:3])
    assert all(row.median("cores") > 0 for row in found.rows[4:7])
