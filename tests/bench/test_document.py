"""Documents keep a benchmark's results between marks of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferway.bench.document import marks, table_lines, update_document
from inferway.bench.processes import BenchError


def test_a_document_gets_the_tables_between_its_marks_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    begin, end = marks("route")
    path.write_text(f"# Title\n\n{begin}\nold\n{end}\n\nNotes.\n")

    update_document(path, "route", "new\n")

    assert path.read_text() == f"# Title\n\n{begin}\nnew\n{end}\n\nNotes.\n"


def test_marks_of_another_benchmark_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    other = "\nold\n".join(marks("prompts"))
    path.write_text(f"{other}\n" + "\n".join(marks("route")) + "\n")

    update_document(path, "route", "new\n")

    assert path.read_text().startswith(other)


def test_a_document_without_marks_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "performance.md").write_text("# Title\n")

    with pytest.raises(BenchError, match="add these lines"):
        update_document(tmp_path / "performance.md", "route", "new\n")


def test_numbers_stand_to_the_right_of_the_names() -> None:
    assert table_lines(["name", "a", "b"], [["x", "1", "2"]]) == [
        "| name | a | b |",
        "| --- | ---: | ---: |",
        "| x | 1 | 2 |",
    ]
