"""`--help`: every text can be read alone, and every example is a command that is understood."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from tests.fork_server import INFERWAY

from inferway.cli.command import Command, Section
from inferway.cli.main import main


def leaves(command: click.Command, typed: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield typed
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*typed, name))


def named(typed: tuple[str, ...]) -> click.Command:
    command: click.Command | None = main
    for name in typed:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    return command


KNOWN = main.list_commands(click.Context(main))
EVERY = [typed for name in KNOWN for typed in leaves(named((name,)), (name,))]
OURS = [typed for typed in EVERY if isinstance(named(typed), Command)]


def visible(typed: tuple[str, ...]) -> list[click.Option]:
    options = [param for param in named(typed).params if isinstance(param, click.Option)]
    return [option for option in options if not option.hidden]


def sections(typed: tuple[str, ...]) -> list[Section]:
    return list(dict.fromkeys(getattr(o, "section", Section("none")) for o in visible(typed)))


def spoken(typed: tuple[str, ...]) -> str:
    return " ".join(typed)


@pytest.mark.parametrize("typed", EVERY, ids=spoken)
def test_the_help_of_each_flag_is_made_of_whole_sentences(typed: tuple[str, ...]) -> None:
    for option in visible(typed):
        text = (option.help or "").partition("[default:")[0].strip()

        assert text[:1].isupper(), f"{option.opts}: {text!r}"
        assert text.endswith("."), f"{option.opts}: {text!r}"
        assert len(text.split()) >= 4, f"{option.opts}: {text!r}"


@pytest.mark.parametrize("typed", OURS, ids=spoken)
def test_the_flags_stand_in_sections_each_with_an_example(typed: tuple[str, ...]) -> None:
    for part in sections(typed):
        assert part.title != "none", "a flag is in no section"
        assert part.example.startswith("inferway "), part


@pytest.mark.parametrize("typed", OURS, ids=spoken)
def test_the_examples_are_commands_that_are_understood(typed: tuple[str, ...]) -> None:
    for part in sections(typed):
        words = shlex.split(part.example)[1:]
        count = next(n for n in range(1, 4) if not isinstance(named(tuple(words[:n])), click.Group))
        command = named(tuple(words[:count]))

        command.make_context(spoken(tuple(words[:count])), words[count:])


@pytest.mark.parametrize("typed", OURS, ids=spoken)
def test_the_help_fits_a_terminal_of_80_columns_but_for_examples(typed: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*typed, "--help"], terminal_width=80).output

    wide = [line for line in shown.splitlines() if len(line) > 80]
    assert [line for line in wide if not line.startswith("  Example: ")] == []


@pytest.mark.parametrize("typed", [("serve",), ("bench",), ("bench", "docs")], ids=spoken)
def test_help_is_said_without_the_parts_that_serve_or_measure(typed: tuple[str, ...]) -> None:
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", str(INFERWAY), *typed, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr

    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert not modules & {"aiohttp", "rich", "numpy", "tokenizers", "uvloop", "zmq"}
    assert "inferway_bench.harness" not in modules


@pytest.mark.parametrize("typed", ["serv", "simulat", "docter"])
def test_an_unknown_command_is_answered_with_the_nearest_one(typed: str) -> None:
    result = CliRunner().invoke(main, [typed])

    nearest = {"serv": "serve", "simulat": "simulate", "docter": "doctor"}[typed]
    assert result.exit_code == 2
    assert f"no command '{typed}'; did you mean '{nearest}'?" in result.output


def test_an_unknown_command_that_is_near_none_is_answered_with_all() -> None:
    result = CliRunner().invoke(main, ["zzz"])

    assert result.exit_code == 2
    assert f"no command 'zzz'; known: {', '.join(KNOWN)}" in result.output


def test_an_unknown_flag_is_answered_with_the_nearest_ones() -> None:
    result = CliRunner().invoke(main, ["serve", "--polcy", "round-robin"])

    assert result.exit_code == 2
    assert "--policy" in result.output
