"""Rows of docs/compatibility.md are measured again: all of them, or those that take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.compatibility import (
    ENGINES,
    RECORDER_SECONDS,
    REUSE,
    ROWS,
    VERSIONS,
    Row,
    stored,
)
from tests.engines.conftest import FULL
from tests.engines.vllm_code import code_of

SHORT = (REUSE, ENGINES)
MEASURED = ROWS if FULL else [r for r in ROWS if r.group in SHORT]


@pytest.mark.timeout(3 * RECORDER_SECONDS)
@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_a_row_is_as_it_is_stored(row: Row, vllm: Path) -> None:
    codes = {version: code_of(of, vllm) for version, of in VERSIONS.items()}

    assert row.measure(codes) == stored()[row.name]
