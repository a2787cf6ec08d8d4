"""The data that others made: complete, unchanged, with its origin and its licence beside it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests/data", "bench/src/inferway_bench/data")
MOST_BYTES = 10_000_000


def stored(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_has_its_checksum_in_the_readme(folder: str) -> None:
    readme = (ROOT / folder / "README.md").read_text()
    written = dict(re.findall(r"^\| `(\S+)` \| `([0-9a-f]{64})` \|$", readme, re.MULTILINE))

    found = {
        str(path.relative_to(ROOT / folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in stored(folder)
        if path.name != "README.md"
    }

    assert found == written


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_has_its_licence_in_the_readme(folder: str) -> None:
    about = (ROOT / folder / "README.md").read_text().partition("## Checksums")[0]
    rows = [line for line in about.splitlines() if re.search("MIT|Apache|CC-BY|OpenRAIL", line)]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    names |= {"goldens_transformers"}  # ours, made from the templates beside it

    files = {path.name for path in stored(folder)} - {"README.md"}

    assert {file for file in files if not {file, file.split(".")[0], stem(file)} & names} == set()


def stem(file: str) -> str:
    return re.sub(r"(\.tokenizer)?\.(jsonl?|csv)\.xz$", "", file)


def test_all_of_it_is_small() -> None:
    sizes = [path.stat().st_size for folder in FOLDERS for path in stored(folder)]

    assert sum(sizes) < MOST_BYTES
