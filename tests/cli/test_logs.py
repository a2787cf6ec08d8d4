"""Where lines of the log and of the access log go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferway.cli.logs import set_up
from inferway.errors import ConfigError


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()  # pytest's own, which `set_up` would close
    yield
    set_up("info")
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_access_log_goes_on_in_a_new_file_when_the_old_one_is_moved_away(
    tmp_path: Path,
) -> None:
    path = tmp_path / "access.log"
    set_up("info", str(path))
    access = logging.getLogger("inferway.access")

    access.info("one")
    path.rename(tmp_path / "access.log.1")
    access.info("two")

    assert (tmp_path / "access.log.1").read_text() == "one\n"
    assert path.read_text() == "two\n"


def test_without_an_access_log_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up("info", None)
    logging.getLogger("inferway.access").info("one")

    assert "one" not in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access log .* cannot be written: Is a directory"):
        set_up("info", str(tmp_path))


def test_an_unknown_level_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="'loud': expected one of debug, info, warning, error"):
        set_up("loud")
