"""`inferway bench epp`: what is computed of its figures, its pickers, Envoy's configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from bench.tests.runs import a_run

from inferway_bench.epp import (
    ECHO,
    EPP,
    OURS,
    Figures,
    chunk_rows,
    configuration,
    goals,
    pick_rows,
)
from inferway_bench.epp_echo import EchoStream
from inferway_bench.rows import Findings, Run
from inferway_llmd.ext_proc.messages import ProcessingRequest


def figures(echo: float, ours: float, messages: float) -> Figures:
    def picker(us: float) -> dict[str, list[float]]:
        return {"cpu_us": [us - 10, us, us + 10], "messages": [messages] * 3}

    return {ECHO: picker(echo), OURS: picker(ours)}


def run(ours: float = 750, streamed: float = 4750) -> Run:
    plain, stream = figures(500, ours, 6.0), figures(4500, streamed, 56.0)
    rows = [*pick_rows("a chat", 700, plain), *pick_rows("the first, streamed", 700, stream)]
    found = Findings(rows=[*rows, *chunk_rows(plain, stream)], facts={"envoy": "Envoy 1.40.0"})
    return a_run("epp", found)


def test_a_chunk_is_what_a_stream_costs_more_by_message() -> None:
    echo, ours = run().select("chunk")

    assert echo.median("us") == pytest.approx(4000 / 50)
    assert ours.median("times") == pytest.approx(1.0)


def missed(found: Run) -> list[str]:
    return [goal.what for goal in goals(found) if not goal.is_met]


def test_what_is_not_as_asked_is_named() -> None:
    assert missed(run()) == []
    assert missed(run(streamed=6000)) == ["CPU a streamed chunk"]


def test_a_run_is_told() -> None:
    text = EPP.markdown(run())

    assert "| a chat | echo | 700 | 500 (490 to 510) | 2,000 |" in text
    assert "| a chat | ours | 700 | 750 (740 to 760) | 1,333 |" in text


def test_each_picker_has_a_listener_of_its_own() -> None:
    config = msgspec.json.decode(configuration({"echo": (1, 2), "ours": (3, 4)}, 5))
    resources = config["static_resources"]

    ports = [
        listener["address"]["socket_address"]["port_value"] for listener in resources["listeners"]
    ]
    assert ports == [1, 3]
    assert [cluster["name"] for cluster in resources["clusters"]] == ["engines", "echo", "ours"]
    assert config["admin"]["address"]["socket_address"]["port_value"] == 5


def test_an_echo_answers_a_request_when_its_body_has_ended() -> None:
    stream = EchoStream("1.2.3.4:5")

    def body(text: bytes, ended: bool) -> Any:
        return ProcessingRequest(request_body={"body": text, "end_of_stream": ended})

    assert stream.answers(body(b"ab", ended=False)) == []
    head, *pieces = stream.answers(body(b"c", ended=True))
    assert b"1.2.3.4:5" in head
    assert b"abc" in b"".join(pieces)
