"""Flags from the environment."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from inferway.cli.main import main, variables
from inferway.cli.serve import serve

URL = "http://h:8000"


def show(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["config", "show", *arguments], env=environ)


def test_a_variable_sets_what_its_flag_sets_and_is_named_as_the_source() -> None:
    shown = show(
        INFERWAY_ENGINE="http://a:1 http://b:2,block_size=32",
        INFERWAY_PORT="9000",
        INFERWAY_POLICY="round-robin",
        INFERWAY_IN_FLIGHT="7",
        INFERWAY_TOKENIZER="org/m=/t",
        INFERWAY_CORS_ORIGIN="https://a https://b",
    ).output

    for line in (
        'engines[0].url: "http://a:1"  # environment INFERWAY_ENGINE',
        "engines[1].block_size: 32  # environment INFERWAY_ENGINE",
        "port: 9000  # environment INFERWAY_PORT",
        'policy: "round-robin"  # environment INFERWAY_POLICY',
        "flow.in_flight: 7  # environment INFERWAY_IN_FLIGHT",
        'models.org/m.tokenizer: "/t"  # environment INFERWAY_TOKENIZER',
        'cors_origins: ["https://a","https://b"]  # environment INFERWAY_CORS_ORIGIN',
    ):
        assert f"{line}\n" in shown


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text("port: 1\nhost: h1\nflow: {queue: 1}\n")

    shown = show(
        URL, "--port", "3", INFERWAY_PORT="2", INFERWAY_HOST="h2", INFERWAY_CONFIG=str(path)
    ).output

    assert "port: 3  # a flag\n" in shown
    assert 'host: "h2"  # environment INFERWAY_HOST\n' in shown
    assert f"flow.queue: 1  # {path}\n" in shown


def test_engines_on_the_command_line_replace_those_of_the_environment() -> None:
    shown = show(URL, INFERWAY_ENGINE="http://other:1").output

    assert f'engines[0].url: "{URL}"  # a flag\n' in shown
    assert "other" not in shown


@pytest.mark.parametrize(("text", "scoring"), [("1", "false"), ("0", "true"), ("yes", "false")])
def test_a_switch_is_on_or_off_whatever_it_sets(text: str, scoring: str) -> None:
    shown = show(URL, INFERWAY_NO_SCORING=text, INFERWAY_PUBLISH_TEXT=text).output

    assert f"scoring: {scoring}  # environment INFERWAY_NO_SCORING\n" in shown
    published = "false" if scoring == "true" else "true"
    assert f"publish_text: {published}  # environment INFERWAY_PUBLISH_TEXT\n" in shown


def test_an_empty_variable_is_none() -> None:
    assert "port: 8080  # default\n" in show(URL, INFERWAY_PORT="").output


def test_a_list_whose_items_have_spaces_has_one_a_line() -> None:
    shown = show(URL, INFERWAY_ALLOW_PATH="POST /a\nGET /b").output

    assert 'allow_paths: ["POST /a","GET /b"]  # environment INFERWAY_ALLOW_PATH\n' in shown


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("INFERWAY_PORT", "many", "'many': expected a whole number from 0 to 65535"),
        ("INFERWAY_HEAL", "2", "'2': expected a number from 0 to 1"),
        ("INFERWAY_NO_SCORING", "perhaps", "'perhaps': expected true or false, 1 or 0"),
        ("INFERWAY_POLICY", "best", "'best' is not one of 'expected-ttft'"),
    ],
)
def test_a_bad_value_is_said_to_be_in_its_variable(name: str, value: str, says: str) -> None:
    result = show(URL, **{name: value})

    assert result.exit_code == 2
    assert f"Invalid value for {name}: {says}" in result.output


def test_a_variable_that_nothing_reads_is_answered_with_the_nearest_one() -> None:
    result = show(URL, INFERWAY_PROT="1", INFERWAY_ZZZ="2")

    assert result.exit_code == 0
    assert (
        "config show: the environment variable INFERWAY_PROT is not known and has no effect; did "
        "you mean INFERWAY_PORT?\n" in result.stderr
    )
    assert "INFERWAY_ZZZ is not known and has no effect; unset it" in result.stderr


def test_variables_of_other_commands_and_of_scripts_are_known() -> None:
    result = show(URL, INFERWAY_BLOCK_SIZE="16", INFERWAY_CACHE="/c", INFERWAY_FLEET_FULL="1")

    assert result.stderr == ""


def test_a_variable_that_a_setting_names_is_no_unknown_one(tmp_path: Path) -> None:
    path = tmp_path / "gw.yaml"
    path.write_text(f"engines: [{{url: '{URL}', api_key_env: INFERWAY_KEY_1}}]\n")

    result = show(
        *("--config", str(path), "--admin-key-env", "INFERWAY_KEY_2"),
        INFERWAY_KEY_1="secret-1",
        INFERWAY_KEY_2="secret-2",
    )

    assert result.exit_code == 0
    assert result.stderr == ""
    assert "secret" not in result.output


def test_what_kubernetes_says_of_a_service_with_our_name_is_not_for_us() -> None:
    links = {
        "INFERWAY_SERVICE_HOST": "10.0.0.1",
        "INFERWAY_SERVICE_PORT": "8080",
        "INFERWAY_SERVICE_PORT_HTTP": "8080",
        "INFERWAY_PORT": "tcp://10.0.0.1:8080",
        "INFERWAY_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "INFERWAY_PORT_8080_TCP_PORT": "8080",
        "INFERWAY_ADMIN_SERVICE_HOST": "10.0.0.2",
        "INFERWAY_ADMIN_PORT": "tcp://10.0.0.2:8081",
    }

    result = show(URL, **links)

    assert result.exit_code == 0
    assert result.stderr == ""
    assert "port: 8080  # default\n" in result.output
    assert "admin_port: null  # default\n" in result.output


def test_a_port_that_is_a_number_counts_beside_a_service_of_our_name() -> None:
    shown = show(URL, INFERWAY_SERVICE_HOST="10.0.0.1", INFERWAY_PORT="9000").output

    assert "port: 9000  # environment INFERWAY_PORT\n" in shown


def test_no_measurement_depends_on_the_environment() -> None:
    bench = main.get_command(click.Context(main), "bench")
    assert isinstance(bench, click.Group)

    context = click.Context(bench)
    commands = [bench.get_command(context, name) for name in bench.list_commands(context)]

    assert commands
    found = [
        param.envvar
        for command in commands
        for param in (command.params if command else ())
        if str(param.envvar or "").startswith("INFERWAY_")
    ]
    assert found == []


def test_every_flag_of_every_other_command_has_a_variable() -> None:
    names = {option.opts[0] for option in serve.params if isinstance(option, click.Option)}
    expected = {"INFERWAY_" + name.strip("-").replace("-", "_").upper() for name in names}

    assert expected - {"INFERWAY_HELP"} <= variables()
    assert "INFERWAY_GRPC_PORT" in variables()


@pytest.mark.parametrize(
    ("flag", "gone", "cure"),
    [
        ("--index", "the index in Redis is gone", "--peers-redis"),
        ("--followers", "followers are gone", "cells (docs/scale.md)"),
    ],
)
def test_a_flag_that_is_gone_is_refused_with_the_cure(flag: str, gone: str, cure: str) -> None:
    variable = f"INFERWAY_{flag.strip('-').upper()}"
    for result in (show(URL, flag, "1"), show(URL, **{variable: "1"})):
        assert result.exit_code == 2
        assert f"{flag} ({variable}) is gone: {gone}" in result.stderr
        assert cure in result.stderr
