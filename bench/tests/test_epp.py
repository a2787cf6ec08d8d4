"""`inferway bench epp`: what is computed of its figures, and Envoy's configuration."""

from __future__ import annotations

import msgspec
import pytest
from bench.tests.runs import a_run

from inferway_bench.epp import CHUNK, EPP, Figures, configuration, rows_of


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
