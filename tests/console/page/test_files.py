"""The page's files: what others have written is unchanged, and nothing breaks the page's policy."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import inferway_console.page
from inferway_console.page.routes import INDEX, static_files

STATIC = Path(inferway_console.page.__file__).parent / "static"
VENDOR = STATIC / "vendor"
OURS = sorted(name for name in static_files() if not name.startswith("vendor/"))


def test_what_others_have_written_has_its_checksum() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    told = {name: digest for digest, name in (line.split("  ") for line in lines)}
    there = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.parent != VENDOR
    }

    assert told == there


def test_each_package_of_others_has_its_licence_and_is_named() -> None:
    named = (VENDOR / "README.md").read_text()
    for folder in (path for path in VENDOR.iterdir() if path.is_dir()):
        assert (folder / "LICENSE").is_file()
        assert f"| `{folder.name}` |" in named


def test_the_page_has_no_script_or_style_within() -> None:
    page = (STATIC / INDEX).read_text()

    assert all(tag.endswith("></script>") for tag in re.findall(r"<script[^>]*>.*?</script>", page))
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)


@pytest.mark.parametrize("name", OURS)
def test_no_file_of_ours_asks_another_host(name: str) -> None:
    text = (STATIC / name).read_text()
    hosts = set(re.findall(r"(?:https?:)?//([\w.-]+\.\w+)", text)) - {"www.w3.org"}

    assert not hosts


@pytest.mark.parametrize("name", OURS)
def test_each_file_that_is_named_is_there(name: str) -> None:
    text = (STATIC / name).read_text()
    named = {path.removeprefix("/page/") for path in re.findall(r'"(/page/[\w./-]+\.\w+)"', text)}
    named |= set(re.findall(r'from "\./([\w.-]+)"', text))

    assert named <= static_files().keys()


@pytest.mark.parametrize("name", [name for name in OURS if name.endswith(".js")])
def test_no_text_is_read_as_markup(name: str) -> None:
    """Names of models and engines are others' words."""
    text = (STATIC / name).read_text()

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


@pytest.mark.parametrize("name", OURS)
def test_a_file_of_ours_can_be_read_at_a_sitting(name: str) -> None:
    assert len((STATIC / name).read_text().splitlines()) <= 450
