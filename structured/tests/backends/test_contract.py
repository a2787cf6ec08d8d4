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

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_the_contract_of_llguidance(name: str, check: Callable[[Check], None]) -> None:
    vocabulary, case = smollm2(), CASES[name]

    check(Check(LLGuidance(vocabulary).compile(case.spec), vocabulary, case))


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
