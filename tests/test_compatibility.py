"""docs/compatibility.md shows what was measured last (tests/engines/compatibility.py)."""

from __future__ import annotations

from tests.engines.compatibility import MIXED, PAGE, ROWS, VERSIONS, page_with, stored

from inferway.fleet.engine_facts import NEWEST_VLLM


def test_the_table_is_made_of_the_stored_cells() -> None:
    text = PAGE.read_text()

    assert text == page_with(text, stored())


def test_each_row_has_a_cell_for_each_version() -> None:
    assert [*stored()] == [row.name for row in ROWS]
    assert all([*cells] == [*VERSIONS, MIXED] for cells in stored().values())


def test_the_newest_column_is_the_newest_version_that_is_known() -> None:
    newest = max(tuple(map(int, version.split(".")[:2])) for version in VERSIONS)

    assert newest == NEWEST_VLLM
