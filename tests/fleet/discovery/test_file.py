"""Engines of a file that somebody changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fleet.discovery.told import Told

from inferway.errors import ConfigError
from inferway.fleet.discovery.sources import EnginesFile, read_engines

TWO = "engines:\n- url: http://10.0.0.1:8000\n- url: http://10.0.0.2:8000\n  name: b\n"


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(TWO)
    (tmp_path / "e.json").write_text(
        '[{"url": "http://10.0.0.1:8000"}, {"url": "http://10.0.0.2:8000", "name": "b"}]'
    )

    assert read_engines(tmp_path / "e.yaml") == read_engines(tmp_path / "e.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engines: [{}]", "missing required field `url`"),
        ("engines: [{url: 'http://h:1', color: red}]", "color"),
        ("{", "expected"),
        ("[{url: 'http://h:1', block_size: 0}]", "engines[0].block_size: 0: expected `int` >= 1"),
        ("- url: ftp://h:1", "expected http://HOST:PORT"),
        ("- url: http://h:1\n- url: http://h:1", "'h:1' is given twice"),
        ("- url: http://h:1\n  events: udp://x", "must start with tcp://, ipc:// or http://"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        read_engines(path)

    assert str(path) in str(raised.value)
    assert said in str(raised.value)


def test_a_change_is_told_once_it_is_seen(tmp_path: Path) -> None:
    path, told = tmp_path / "engines.yaml", Told()
    path.write_text(TWO)
    source = EnginesFile(path)

    source.look(told)
    source.look(told)
    assert len(told.lists) == 1
    assert told.urls == ["10.0.0.1:8000", "10.0.0.2:8000"]

    path.write_text("- url: http://10.0.0.3:8000\n")
    source.look(told)
    assert told.urls == ["10.0.0.3:8000"]


def test_a_file_that_is_broken_or_gone_leaves_the_engines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, told = tmp_path / "engines.yaml", Told()
    path.write_text(TWO)
    source = EnginesFile(path)
    source.look(told)

    path.write_text("engines: 7")
    source.look(told)
    path.unlink()
    source.look(told)
    source.look(told)

    assert len(told.lists) == 1
    said = [record.message for record in caplog.records]
    assert len([each for each in said if "the engines stay as they were" in each]) == 2


def test_a_file_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    path, told = tmp_path / "engines.yaml", Told()
    source = EnginesFile(path)
    source.look(told)
    assert told.lists == []

    path.write_text(TWO)
    source.look(told)

    assert told.urls == ["10.0.0.1:8000", "10.0.0.2:8000"]
