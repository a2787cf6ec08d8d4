"""Each row of docs/compatibility.md is measured again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.compatibility import RECORDER_SECONDS, ROWS, VERSIONS, Row, stored
from tests.engines.vllm_code import code_of


@pytest.mark.timeout(3 * RECORDER_SECONDS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_as_it_is_stored(row: Row, vllm: Path) -> None:
    codes = {version: code_of(of, vllm) for version, of in VERSIONS.items()}

    assert row.measure(codes) == stored()[row.name]
