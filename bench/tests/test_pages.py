"""The documents are what the stored results say, and keep what stands outside their marks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferway_bench.cli import benchmarks
from inferway_bench.pages import marks, rendered, replaced
from inferway_bench.processes import BenchError
from inferway_bench.rows import table_lines

DOCS = Path(__file__).parents[2] / "docs"
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


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    return rendered(DOCS, benchmarks())


def test_every_table_of_the_document_is_what_the_stored_results_say(
    pages: dict[Path, str],
) -> None:
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name}: fix: inferway bench docs"


def test_the_document_shows_every_picture_beside_the_results(pages: dict[Path, str]) -> None:
    shown = set(re.findall(r"\]\(\.\./results/(.*\.svg)\)", "".join(pages.values())))

    assert shown == {path.name for path in (DOCS / "results").glob("*.svg")}


def test_no_page_outlives_its_result(pages: dict[Path, str]) -> None:
    made = {path for path in pages if path.parent.name == "benchmarks"}

    assert set((DOCS / "benchmarks").glob("*.md")) == made
