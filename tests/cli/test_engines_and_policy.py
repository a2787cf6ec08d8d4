"""Engines as plain URLs, and `--policy`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inferway.cli.main import main

URL = "http://h:8000"


def show(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", "show", *arguments])


def test_engines_are_plain_urls_with_the_keys_of_the_flag_before_those_of_flags() -> None:
    lines = show("http://a:1", "unix:/run/b,block_size=32", "--engine", "http://c:3").output

    assert 'engines[0].url: "http://a:1"  # a flag\n' in lines
    assert 'engines[1].url: "unix:/run/b"  # a flag\n' in lines
    assert "engines[1].block_size: 32  # a flag\n" in lines
    assert 'engines[2].url: "http://c:3"  # a flag\n' in lines


@pytest.mark.parametrize("command", [["serve"], ["epp"], ["config", "show"], ["doctor"]])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("h:8000", "engine 'h:8000': expected http://HOST:PORT or unix:/PATH; did you mean "
         "http://h:8000?"),
        ("gw.yaml", "engine 'gw.yaml': expected http://HOST:PORT or unix:/PATH; a file of settings "
         "is given as --config gw.yaml"),
        (f"{URL},size=3", f"engine '{URL},size=3': 'size=3' is not KEY=VALUE with KEY one of name"),
    ],
)  # fmt: skip
def test_what_is_no_engine_is_shown_with_what_was_probably_meant(
    command: list[str], given: str, says: str
) -> None:
    result = CliRunner().invoke(main, [*command, given])

    assert result.exit_code != 0
    assert says in result.output


def test_an_engine_that_is_given_twice_in_either_way_is_named() -> None:
    result = show(URL, "--engine", URL)

    assert result.exit_code == 2
    assert "engine 'h:8000' is given twice" in result.output


def test_a_policy_is_given_as_a_flag_or_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text("policy: least-load\n")

    assert f'policy: "least-load"  # {path}\n' in show(URL, "--config", str(path)).output
    assert 'policy: "round-robin"  # a flag\n' in show(URL, "--policy", "round-robin").output


def test_an_unknown_policy_is_shown_with_those_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text("policy: round\n")

    in_file = show(URL, "--config", str(path))
    as_flag = show(URL, "--policy", "round")

    assert (in_file.exit_code, as_flag.exit_code) == (2, 2)
    known = "expected-ttft, kv-aware, round-robin, least-load"
    assert f"{path}: policy: 'round': expected one of {known}" in in_file.output
    assert "--policy" in as_flag.output
    assert "'expected-ttft', 'kv-aware', 'round-robin', 'least-load'" in as_flag.output


def test_a_policy_with_an_underscore_is_corrected(tmp_path: Path) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text("policy: kv_aware\n")

    for given in (("--config", str(path)), ("--policy", "kv_aware")):
        assert "did you mean 'kv-aware'?" in show(URL, *given).output


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--scheduling", "epp.yaml"], "policy 'kv-aware' and scheduling: each says how endpoints"),
        (["--no-scoring"], "policy 'kv-aware' and scoring: false: this policy compares prompts"),
    ],
)
def test_what_contradicts_a_policy_is_refused_with_the_cure(flags: list[str], says: str) -> None:
    result = show(URL, "--policy", "kv-aware", *flags)

    assert result.exit_code == 2
    assert says in result.output
    assert "leave one of them out" in result.output
