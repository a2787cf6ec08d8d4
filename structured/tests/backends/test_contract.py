"""All grammars keep one contract, whatever library is behind them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from structured.tests.backends import contract
from structured.tests.backends.contract import CASES, CHECKS, Check
from structured.tests.compiling import smollm2

from inferway_structured.backends.llguidance import LLGuidance
from inferway_structured.backends.outlines_core import OutlinesJobs, pattern_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_the_contract_of_llguidance(name: str, check: Callable[[Check], None]) -> None:
    vocabulary, case = smollm2(), CASES[name]

    check(Check(LLGuidance(vocabulary).compile(case.spec), vocabulary, case))


@pytest.mark.parametrize("name", ["row", "words"])
def test_the_contract_of_what_the_child_builds(name: str) -> None:
    from inferway_structured.backends import outlines_child

    vocabulary, case = smollm2(), CASES[name]
    jobs = OutlinesJobs(vocabulary)
    job = jobs.job(case.spec)
    assert job is not None
    outlines_child.prepare(jobs.child.argument())

    built = outlines_child.index(bytearray(job.argument))

    for check in CHECKS:
        check(Check(job.finish(built), vocabulary, case))


@pytest.mark.parametrize("name", ["regex", "choice"])
def test_outlines_core_is_not_given_what_it_would_lose_answers_of(name: str) -> None:
    assert pattern_of(CASES[name].spec) is None


@pytest.mark.fleet
def test_the_contract_of_xgrammar_where_an_engine_is() -> None:
    python = Path(os.environ["INFERWAY_VLLM_VENV"]) / "bin" / "python"
    tokenizer = Path.home() / ".cache/inferway/smollm2/tokenizer.json"

    out = subprocess.run(
        [python, Path(contract.__file__), tokenizer],
        env={**os.environ, "PYTHONPATH": str(ROOT / "structured" / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert out.returncode == 0, out.stderr[-3000:]
    assert len(json.loads(out.stdout.splitlines()[-1])) == (len(CASES) + 1) * len(CHECKS)
