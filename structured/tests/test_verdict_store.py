"""Verdicts that outlive the process which found them."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from inferway_structured import verdict_store
from inferway_structured.errors import SpecError
from inferway_structured.grammar import Unenforced, Verdict
from inferway_structured.verdict_store import VerdictStore

PARTLY = Verdict("llguidance", [Unenforced("/a", "uniqueItems")], 0.25)


def test_the_next_start_finds_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "below" / "verdicts.sqlite"
    VerdictStore(path).put("a", PARTLY)
    VerdictStore(path).put("b", SpecError("no", place="/x", keyword="not"))

    found = dict(VerdictStore(path).load(10))

    assert path.stat().st_mode & 0o777 == 0o600
    assert found["a"] == PARTLY
    refused = found["b"]
    assert isinstance(refused, SpecError)
    assert (str(refused), refused.place, refused.keyword) == ("no", "/x", "not")


def test_the_newest_are_loaded(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    for key in "abc":
        store.put(key, PARTLY)

    assert [key for key, _ in store.load(2)] == ["b", "c"]


def test_another_version_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    store.put("a", PARTLY)

    monkeypatch.setattr(verdict_store, "_LIBRARIES", ("numpy",))

    assert store.load(10) == []


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    store = VerdictStore(path, max_bytes=200_000)
    large = Verdict("llguidance", [Unenforced("/" + "x" * 10_000, "not")])

    for number in range(60):
        store.put(str(number), large)

    assert path.stat().st_size <= 250_000
    keys = [key for key, _ in store.load(1_000)]
    assert keys[-1] == "59"
    assert "0" not in keys


def test_a_verdict_that_is_too_large_is_not_kept(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    store.put("a", Verdict("llguidance", [Unenforced("/" + "x" * 20_000, "not")]))

    assert store.load(10) == []


def test_a_file_of_another_kind_is_left_alone_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    store = VerdictStore(path)

    with caplog.at_level(logging.WARNING):
        store.put("a", PARTLY)
        assert store.load(10) == []

    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    assert path.read_bytes().startswith(b"not a database")


def test_a_row_that_cannot_be_read_is_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    store = VerdictStore(path)
    store.put("a", PARTLY)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE verdicts SET found = '{}'")

    assert store.load(10) == []
