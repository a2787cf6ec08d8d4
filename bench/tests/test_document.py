"""Documents keep a benchmark's results between marks of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferway_bench.document import marks, replaced, table_lines
from inferway_bench.processes import BenchError

PATH = Path("performance.md")


def test_a_document_gets_the_tables_between_its_marks_and_keeps_the_rest() -> None:
    begin, end = marks("route")

    text = replaced(f"# Title\n\n{begin}\nold\n{end}\n\nNotes.\n", "route", "new\n", PATH)

    assert text == f"# Title\n\n{begin}\nnew\n{end}\n\nNotes.\n"


def test_marks_of_another_benchmark_are_left_alone() -> None:
    other = "\nold\n".join(marks("prompts"))

    text = replaced(f"{other}\n" + "\n".join(marks("route")) + "\n", "route", "new\n", PATH)

    assert text.startswith(other)


def test_a_document_without_marks_is_refused_with_the_cure() -> None:
    with pytest.raises(BenchError, match=r"performance\.md: .*add these lines"):
        replaced("# Title\n", "route", "new\n", PATH)


def test_numbers_stand_to_the_right_of_the_names() -> None:
    assert table_lines(["name", "a", "b"], [["x", "1", "2"]]) == [
        "| name | a | b |",
        "| --- | ---: | ---: |",
        "| x | 1 | 2 |",
    ]
