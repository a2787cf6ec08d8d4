"""Traces become workloads: recognised by their first line, drawn with a seed, repeated."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from inferway_bench.policies.requests import (
    AZURE_HEAD,
    SimRequest,
    Workload,
    azure,
    read_trace,
    repeated,
)
from inferway_bench.processes import BenchError

MOONCAKE = msgspec.json.encode(
    {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 9]}
)
AGENTIC = msgspec.json.encode({"requests": [{"in": 640, "out": 2, "hash_ids": list(range(10))}]})
AZURE = [
    AZURE_HEAD,
    b"2023-11-16 18:15:46.6805900,374,44",
    b"2023-11-16 18:15:50.9951690,396,109",
    b"2023-11-16 18:16:51.0000000,12,0",
]


@pytest.mark.parametrize(
    ("lines", "name"),
    [([MOONCAKE], "mooncake"), ([AGENTIC], "agentic"), (AZURE, "azure")],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_is_recognised_by_its_first_line(
    tmp_path: Path, lines: list[bytes], name: str, packed: bool
) -> None:
    path = tmp_path / "a trace"
    text = b"\n".join(lines)
    path.write_bytes(gzip.compress(text) if packed else text)

    assert read_trace(path, 1).name == name


def test_a_file_of_another_format_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a line")

    with pytest.raises(BenchError, match="of no format that is known; known: Mooncake's"):
        read_trace(path, 1)


def test_azures_prompts_are_private() -> None:
    made = azure(AZURE).requests

    assert [request.prompt_tokens for request in made] == [374, 396, 12]
    assert [request.output_tokens for request in made] == [44, 109, 1]
    assert made[1].start == pytest.approx(4.314579, abs=1e-5)
    assert [len(request.blocks) for request in made] == [2, 3, 0]
    assert not set(made[0].blocks) & set(made[1].blocks)


# more requests than a trace has

TWO_TURNS = Workload(
    "by hand",
    "two turns",
    100,
    [
        SimRequest(blocks=(1,), prompt_tokens=150, output_tokens=2, session=5, answer_blocks=(2,)),
        SimRequest(
            blocks=(1, 2), prompt_tokens=250, output_tokens=2, session=5, start=4.0, follows=0
        ),
    ],
)


def test_copies_share_no_block_and_no_session() -> None:
    made = list(repeated(TWO_TURNS, 6).requests)

    firsts = made[:3]
    assert len({request.blocks for request in firsts}) == 3
    assert len({request.session for request in firsts}) == 3
    assert {request.prompt_tokens for request in firsts} == {150}


def test_a_copys_turn_follows_its_own_first_turn_and_reuses_its_answer() -> None:
    made = repeated(TWO_TURNS, 6)

    for index in (3, 4, 5):
        turn = made.requests[index]
        assert turn.follows is not None
        first = made.requests[turn.follows]
        assert turn.session == first.session
        assert turn.blocks == first.blocks + first.answer_blocks
    assert made.followers == {0: [3], 1: [4], 2: [5]}


def test_as_many_requests_as_are_asked_for() -> None:
    assert [len(repeated(TWO_TURNS, n).requests) for n in (1, 2, 5)] == [1, 2, 5]


def test_copies_are_begun_one_after_another() -> None:
    starts = repeated(TWO_TURNS, 40).starts(rate=10.0, seed=1)

    assert len(set(starts[:20].tolist())) == 20


def test_copies_take_no_memory_before_they_are_asked_for() -> None:
    many = repeated(TWO_TURNS, 1_000_000)

    assert many.requests[999_999].session == 5 + 499_999 * (1 << 40)
    with pytest.raises(IndexError):
        many.requests[1_000_000]
