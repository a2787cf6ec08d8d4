"""The worker itself, on our system and a small sample."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferway_bench.processes import BenchError
from inferway_bench.structured.benchmark import StructuredPlan, judge, read, rows_of
from inferway_bench.structured.worker import vocabulary_of
from inferway_sim.prepare import PACKAGED_SMOLLM2

MODEL = PACKAGED_SMOLLM2
AB = {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}
LINES: list[Any] = [
    {
        "id": "one",
        "schema": AB,
        "tests": [
            {"valid": True, "data": {"b": 1, "a": 2}},
            {"valid": False, "data": {"a": "x"}},
            {"valid": True, "data": {"a": 1, "b": "long " * 5_000}},
        ],
    },
    {
        "id": "set",
        "schema": {"type": "array", "uniqueItems": True},
        "tests": [{"valid": False, "data": [1, 1]}, {"valid": False, "data": {}}],
    },
    {"id": "two", "schema": {"not": {}}, "tests": [{"valid": False, "data": 1}]},
]


def test_instances_are_judged_as_they_came_and_in_schema_order(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    tokenize = vocabulary_of(str(MODEL)).ll_tokenizer.tokenize_str
    cases = read(path, tokenize, max_tokens=4_000)

    done = subprocess.run(
        [sys.executable, "-m", "inferway_bench.structured.worker", "inferway", MODEL, "20", "12"],
        input=b"\n".join(map(msgspec.json.encode, cases)),
        capture_output=True,
        timeout=100,
        check=True,
    )

    ready, *said = done.stdout.splitlines()
    one, _, two = map(json.loads, said)
    assert "llguidance" in json.loads(ready)
    assert one["taken"] == [False, False]  # the third is too long
    assert one["ordered"] == [True, False]
    assert one["unenforced"] == []
    assert set(one["cpu_ms"]) == {"read", "check", "compile", "gateway"}
    assert len(one["mask_ns"]) > 10
    assert two == {"error": "no answer can keep this schema"}


def test_a_file_of_something_else_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"id": 1}\n')

    with pytest.raises(BenchError, match=r"other\.jsonl"):
        read(path, lambda text: [len(text)], max_tokens=10)


def test_a_judge_asks_its_worker_one_schema_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    cases = read(path, vocabulary_of(str(MODEL)).ll_tokenizer.tokenize_str, max_tokens=4_000)

    with judge("inferway", Path(sys.executable), StructuredPlan(file=path)) as worker:
        worker.read()
        answers = [worker.ask(msgspec.to_builtins(case)) for case in cases]
    rows = {(row.table, *row.keys.values()): row for row in rows_of(cases, {"inferway": answers})}

    kept = rows["kept", "as they came", "inferway"]
    assert [answer.get("error") for answer in answers] == [
        None,
        None,
        "no answer can keep this schema",
    ]
    assert (kept.median("compiled"), kept.median("accept an invalid one")) == (2, 1)
    assert kept.median("unnamed") == 0
    assert rows["masks", "inferway"].median("max") > 0


def test_a_worker_that_ends_is_told_with_what_it_said(tmp_path: Path) -> None:
    plan = StructuredPlan(file=tmp_path)

    with (
        judge("nobody", Path(sys.executable), plan) as worker,
        pytest.raises(BenchError) as caught,
    ):
        worker.read()

    assert "nobody: its worker ended with 1" in str(caught.value)
    assert "KeyError: 'nobody'" in str(caught.value)
