"""`make test-part`: which tests belong to a part."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scripts.tests_of_part import MIRRORED, READ_BY, changed_files, named, of_changed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/inferway/http/page.py", "tests/http"),
        ("src/inferway/http/hop_by_hop.py", "tests/http"),
        ("src/inferway/kv/index/memory.py", "tests/kv/index/test_memory.py"),
        ("src/inferway/metrics.py", "tests/test_architecture.py"),
        ("structured/src/inferway_structured/cache.py", "structured/tests/test_cache.py"),
        ("bench/src/inferway_bench/loading/measured.py", "bench/tests/loading/test_measured.py"),
        ("tests/routing/test_tokens_once.py", "tests/routing/test_tokens_once.py"),
        ("tests/cluster/serving.py", "tests/cluster"),
    ],
)
def test_a_changed_file_has_its_own_tests_or_those_of_its_room(changed: str, tests: str) -> None:
    assert of_changed(ROOT, [changed]) == [tests]


def test_documents_and_the_makefile_have_tests_too() -> None:
    assert of_changed(ROOT, ["docs/deploy.md", "Makefile"]) == [
        *("tests/test_docs.py", "tests/test_guides.py"),
        *("tests/test_makefile.py", "tests/test_ci.py"),
    ]


def test_what_has_no_tests_adds_none() -> None:
    assert of_changed(ROOT, ["LICENSE", "tests/conftest.py", "tests/gone/test_gone.py"]) == []


def test_a_file_of_a_room_is_not_run_twice() -> None:
    changed = ["src/inferway/http/page.py", "tests/http/test_leaks.py"]

    assert of_changed(ROOT, changed) == ["tests/http"]


def test_all_that_the_tables_name_is_there() -> None:
    places = [*MIRRORED, *MIRRORED.values(), *READ_BY, *(t for ts in READ_BY.values() for t in ts)]

    assert [place for place in places if not (ROOT / place).exists()] == []


def test_a_part_is_a_path_or_one_below_tests() -> None:
    parts = ["routing", "http/test_leaks.py", "structured/tests/backends", "tests/kv"]

    assert named(ROOT, parts) == [
        *("tests/routing", "tests/http/test_leaks.py", "structured/tests/backends", "tests/kv")
    ]


def test_a_part_that_is_nowhere_is_said_with_the_rooms_there_are() -> None:
    with pytest.raises(SystemExit, match=r"PART='rooting': .*'routing'"):
        named(ROOT, ["rooting"])


def test_what_differs_from_the_last_commit_is_found_and_what_is_ignored_is_not(
    tmp_path: Path,
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)

    git("init", "-q")
    for name in ("changed", "same", ".gitignore"):
        (tmp_path / name).write_text("ignored\n")
    git("add", ".")
    git("commit", "-q", "-m", "All")
    for name in ("changed", "new", "ignored"):
        (tmp_path / name).write_text("other\n")

    assert changed_files(tmp_path) == ["changed", "new"]
