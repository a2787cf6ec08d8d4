"""`inferway keys`: what it prints is a key, and what it writes knows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from inferway.cli.keys import keys
from inferway.routing.limits.callers import ApiCaller, hash_of, new_key, read_callers


def run(*arguments: str, stdin: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(keys, list(arguments), input=stdin)
    return result.exit_code, result.output.strip()


def who(path: Path, key: str) -> ApiCaller:
    return read_callers(path).of([(b"authorization", f"Bearer {key}".encode())])


def test_a_key_that_was_added_is_known_and_kept_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"

    code, one = run("add", str(path), "one", "--tenant", "team", "--priority", "-2")
    assert code == 0
    _, two = run("add", str(path), "two", "--admin")

    assert who(path, one) == ApiCaller("team", -2, admin=False, name="one")
    assert who(path, two) == ApiCaller("two", 0, admin=True, name="two")
    assert one not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert [file.name for file in tmp_path.iterdir()] == ["keys.yaml"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("one", "key 'one' is given twice"), ("", "expected `str` of length >= 1")],
)
def test_what_cannot_be_added_leaves_the_file_as_it_was(
    tmp_path: Path, name: str, message: str
) -> None:
    path = tmp_path / "keys.yaml"
    run("add", str(path), "one")
    before = path.read_bytes()

    code, said = run("add", str(path), name)

    assert code == 2
    assert message in said
    assert path.read_bytes() == before


def test_a_file_that_is_none_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("port: 1\n")

    code, said = run("add", str(path), "one")

    assert (code, path.read_text()) == (2, "port: 1\n")
    assert "unknown field `port`" in said


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, said = run("add", str(tmp_path / "none" / "keys.yaml"), "one")

    assert code == 2
    assert "keys.yaml: cannot be written: No such file" in said


def test_the_hash_of_a_key_of_ones_own() -> None:
    key = new_key()

    assert run("hash", stdin=key + "\n") == (0, hash_of(key))


def test_a_key_that_could_be_guessed_is_refused() -> None:
    code, said = run("hash", stdin="password\n")

    assert code == 2
    assert "a key of 8 bytes can be guessed" in said
