"""Pages of stored runs, and how old each run is."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from inferway_bench.cli import benchmarks
from inferway_bench.pages import MEASURED, Age, ages, lines, marks, rendered, replaced
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


ROOT = Path(__file__).parents[2]


def git(checkout: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(checkout), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def changed(checkout: Path, path: str, text: str) -> str:
    """The commit that writes it."""
    (checkout / path).parent.mkdir(parents=True, exist_ok=True)
    (checkout / path).write_text(text)
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", path)
    return git(checkout, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def test_each_stored_result_says_what_it_measures() -> None:
    assert set(MEASURED) == {path.stem for path in (ROOT / "docs" / "results").glob("*.json")}


def test_what_is_measured_is_there() -> None:
    paths = {path for measured in MEASURED.values() for path in measured}

    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.tools
def test_commits_to_what_was_measured_count_and_others_do_not(checkout: Path) -> None:
    at = changed(checkout, "src/inferway/kv/index/a.py", "1")
    machine = {"date": "2026-11-21 10:00", "commit": at[:12]}
    changed(checkout, "docs/results/index.json", json.dumps({"machine": machine}) + "\n{}\n")
    changed(checkout, "src/inferway/kv/index/a.py", "2")
    changed(checkout, "src/inferway/http/b.py", "1")

    assert ages(checkout / "docs") == [Age("index", "2026-11-21 10:00", at[:12], 1)]


@pytest.mark.tools
def test_a_result_without_a_head_is_as_old_as_its_file(checkout: Path) -> None:
    at = changed(checkout, "docs/results/continued.json", '{\n "minutes": 1\n}\n')
    changed(checkout, "src/inferway/http/b.py", "1")

    [age] = ages(checkout / "docs")

    assert at.startswith(age.commit)
    assert (age.name, age.commits) == ("continued", 1)


def test_without_a_history_it_is_not_known(tmp_path: Path) -> None:
    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    machine = {"date": "2026-11-21 10:00", "commit": "0123456789ab"}
    (results / "index.json").write_text(json.dumps({"machine": machine}))

    told = list(lines(ages(tmp_path / "docs")))

    assert told[1].split() == ["index", "2026-11-21", "10:00", "0123456789ab", "not", "known"]
