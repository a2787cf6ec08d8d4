"""Where lines of the log and of the access log go, and what they look like."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from inferway.cli.logs import set_up
from inferway.errors import ConfigError
from inferway.telemetry.log_lines import quoted


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook
    root.handlers.clear()  # pytest's own, which `set_up` would close
    yield
    set_up("info")
    logging.captureWarnings(False)
    sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
    root.handlers[:] = handlers
    root.setLevel(level)


def run(code: str, log_format: str = "json") -> list[str]:
    """What a program that logs so writes to standard error."""
    start = f"from inferway.cli.logs import set_up; set_up('info', '-', {log_format!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


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


def test_a_new_access_log_is_the_user_s_own_and_one_that_is_there_stays_as_it_is(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared.log"
    shared.touch(mode=0o640)
    for path, mode in ((tmp_path / "new.log", 0o600), (shared, 0o640)):
        set_up("info", str(path))
        logging.getLogger("inferway.access").info("one")
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_without_an_access_log_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up("info", None)
    logging.getLogger("inferway.access").info("one")

    assert "one" not in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access log .* cannot be written: Is a directory"):
        set_up("info", str(tmp_path))


def test_a_line_as_text_has_date_zone_level_and_logger(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up("info")
    logging.getLogger("inferway.fleet").warning("engine %s is gone", "a")

    stamp, level, rest = capsys.readouterr().err.split(maxsplit=2)
    assert datetime.fromisoformat(stamp).utcoffset() is not None
    assert (level, rest) == ("WARNING", "inferway.fleet: engine a is gone\n")


def test_a_record_as_json_is_one_object_with_the_same_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up("info", log_format="json")
    logging.getLogger("inferway.fleet").warning("two\nlines, %s", "\ud800")

    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("time")).utcoffset() is not None
    assert told == {
        "level": "warning",
        "logger": "inferway.fleet",
        "message": "two\nlines, \\ud800",
    }


def test_a_traceback_is_one_member_of_its_object() -> None:
    (line,) = run("raise ValueError('a fault')")

    told = json.loads(line)
    assert told["level"] == "critical"
    assert told["traceback"].startswith("Traceback (most recent call last):\n")
    assert told["traceback"].endswith("ValueError: a fault")


def test_threads_destructors_and_warnings_write_objects_too() -> None:
    lines = run(
        "import threading, warnings\n"
        "def fail(): raise ValueError('in a thread')\n"
        "thread = threading.Thread(target=fail, name='worker'); thread.start(); thread.join()\n"
        "class Fails:\n"
        "    def __del__(self): raise ValueError('in a destructor')\n"
        "Fails()\n"
        "warnings.warn('mind this')\n"
    )

    told = [json.loads(line) for line in lines]
    assert [each["logger"] for each in told] == ["inferway", "inferway", "py.warnings"]
    assert told[0]["traceback"].endswith("in a thread")
    assert told[1]["traceback"].endswith("in a destructor")
    assert "mind this" in told[2]["message"]


def test_warnings_have_the_form_of_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("mind this", stacklevel=1)

    assert " WARNING py.warnings: " in capsys.readouterr().err


_MAIN = "from inferway.cli import main; main()"


@pytest.mark.parametrize("command", ["serve", "epp"])
def test_settings_that_are_wrong_are_said_in_json_if_a_flag_asks_for_it(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, command, "--log-format", "json", "--config", "/no/such"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    told = json.loads(done.stderr)
    assert told["level"] == "error"
    assert told["message"].startswith(f"inferway {command}: ")
    assert "/no/such" in told["message"]


def inferway(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _MAIN.replace("()", "(prog_name='inferway')"), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "place", "said"),
    [
        (["serve", "--log-format", "json", "--prot", "1"], "inferway serve", "--prot"),
        (["epp", "--log-format=json", "--port", "many"], "inferway epp", "'many'"),
        (["simulate", "--port", "-1", "--log-format", "json"], "inferway simulate", "'-1'"),
        (["srve", "--log-format", "json"], "inferway", "did you mean 'serve'?"),
    ],
)
def test_a_command_line_that_is_wrong_is_said_in_json_if_it_asks_for_it(
    words: list[str], place: str, said: str
) -> None:
    done = inferway(*words)

    assert (done.returncode, done.stdout) == (2, "")
    told = json.loads(done.stderr)
    assert datetime.fromisoformat(told.pop("time")).utcoffset() is not None
    message = told.pop("message")
    assert told == {"level": "error", "logger": "inferway"}
    assert message.startswith(f"{place}: ")
    assert said in message


def test_a_command_line_that_is_wrong_is_said_in_json_if_the_environment_asks_for_it() -> None:
    done = inferway("serve", "--no-such-flag", INFERWAY_LOG_FORMAT="json")

    assert done.returncode == 2
    assert "--no-such-flag" in json.loads(done.stderr)["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--no-such-flag"],
        ["serve", "--no-such-flag", "--log-format", "text"],
        ["serve", "--log-format", "jsn"],
    ],
)
def test_otherwise_it_is_said_with_the_usage(words: list[str]) -> None:
    done = inferway(*words)

    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ")


def test_help_stays_text() -> None:
    done = inferway("serve", "--log-format", "json", "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_without_a_command_there_is_help_in_any_form() -> None:
    done = inferway(INFERWAY_LOG_FORMAT="json")

    assert done.returncode in (0, 2)  # as click's versions have it
    assert (done.stdout + done.stderr).startswith("Usage: ")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("org/model-1.5", "org/model-1.5"),
        ("", '""'),
        ("a b", '"a b"'),
        ('a"b', r'"a\"b"'),
        ("a=b", '"a=b"'),
        ("a\nb", r'"a\u000ab"'),
        ("🤖", r'"\ud83e\udd16"'),
    ],
)
def test_a_value_is_quoted_where_it_could_be_misread(value: str, written: str) -> None:
    assert quoted(value) == written
    assert (json.loads(written) if written.startswith('"') else written) == value
