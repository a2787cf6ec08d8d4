"""Flags that set numbers have the bounds and defaults of their keys."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from inferway.cli.main import main
from inferway.cli.serve import serve
from inferway_llmd.cli import epp

Range = click.IntRange | click.FloatRange


def numbers(command: click.Command) -> list[click.Option]:
    kinds = (click.types.IntParamType, click.types.FloatParamType)
    return [
        option
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.type, kinds)
    ]


BOUNDED = [
    (command, option.opts[0], option.type)
    for command in (serve, epp)
    for option in numbers(command)
    if isinstance(option.type, Range)
]


def allowed(kind: Range) -> str:
    """As errors say it."""
    number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    if kind.max is not None:
        return f"{number} {'above' if kind.min_open else 'from'} {kind.min:g} to {kind.max:g}"
    return f"{number} above {kind.min:g}" if kind.min_open else f"{number} from {kind.min:g} on"


@pytest.mark.parametrize("command", [serve, epp], ids=lambda command: command.name)
def test_no_number_is_without_bounds(command: click.Command) -> None:
    free = [o.opts[0] for o in numbers(command) if not isinstance(o.type, Range)]

    assert free == []


@pytest.mark.parametrize(
    ("command", "flag", "kind"), BOUNDED, ids=[f"{c.name} {f}" for c, f, _ in BOUNDED]
)
def test_a_number_out_of_range_is_shown_with_its_flag_and_the_bounds(
    command: click.Command, flag: str, kind: Range
) -> None:
    assert kind.min is not None
    outside = kind.min if kind.min_open else kind.min - 1

    result = CliRunner().invoke(command, ["--engine", "http://h:1", flag, str(outside)])

    assert result.exit_code == 2
    assert f"Invalid value for '{flag}': '{outside}': expected {allowed(kind)}" in result.output


@pytest.mark.parametrize(
    ("flag", "given", "expected"),
    [
        ("--workers", "0", "a whole number above 0, or auto"),
        ("--workers", "all", "a whole number above 0, or auto"),
        ("--endpoint-target-ports", "a", "whole numbers from 0 to 65535, with commas between them"),
        (
            *("--endpoint-target-ports", "1,70000"),
            "whole numbers from 0 to 65535, with commas between them",
        ),
    ],
)
def test_what_is_no_such_number_is_shown_with_what_is_allowed(
    flag: str, given: str, expected: str
) -> None:
    result = CliRunner().invoke(serve, ["--engine", "http://h:1", flag, given])

    assert result.exit_code == 2
    assert f"Invalid value for '{flag}': '{given}': expected {expected}\n" in result.output


def test_defaults_in_the_help_are_those_of_the_keys() -> None:
    text = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())

    assert "0 takes a free one, which the log names. [default: 8080]" in text
    assert "after this number of failures in a row. [default: 5]" in text
    assert "on this port, and no longer on --port. [0<=x<=65535] --tls-cert" in text
