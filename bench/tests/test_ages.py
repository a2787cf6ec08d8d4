"""How old results are, by a history of git."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from inferway_bench.pages import MEASURED, Age, ages, lines

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
