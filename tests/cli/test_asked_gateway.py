"""The arguments of commands that ask a gateway: [URL] first, then an id or a name."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from inferway.cli.asked_gateway import URL, url_and_name, url_of
from inferway.cli.main import main

ELSEWHERE = "http://10.0.0.2:8080"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], (URL, None)),
        ([ELSEWHERE], (ELSEWHERE, None)),
        (["an-id"], (URL, "an-id")),
        ([ELSEWHERE, "an-id"], (ELSEWHERE, "an-id")),
        (["an-id", ELSEWHERE], (ELSEWHERE, "an-id")),
        (["10.0.0.5:8000", "https://gateway"], ("https://gateway", "10.0.0.5:8000")),
    ],
)
def test_a_url_is_told_from_what_it_is_asked_about(
    given: list[str], told: tuple[str, str | None]
) -> None:
    assert url_and_name(given, "ID") == told


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([ELSEWHERE, "http://b"], "'http://b': one URL only, that of the gateway"),
        (["one", "two"], "'two': one ID only; the gateway is http://HOST:PORT"),
    ],
)
def test_what_is_too_much_is_named(given: list[str], why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        url_and_name(given, "ID")


def test_an_address_without_its_scheme_is_corrected() -> None:
    with pytest.raises(click.UsageError, match=r"did you mean http://10\.0\.0\.2:8080\?"):
        url_of(["10.0.0.2:8080"])


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("status", "[URL]"),
        ("top", "[URL]"),
        ("explain", "[URL] [ID]"),
        ("drain", "[URL] ENGINE"),
    ],
)
def test_each_command_takes_the_url_first(command: str, usage: str) -> None:
    done = CliRunner().invoke(main, [command, "--help"])

    assert done.output.startswith(f"Usage: main {command} [OPTIONS] {usage}\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["explain", ELSEWHERE], "give exactly one of ID, --last, --slowest and --missed"),
        (["drain", ELSEWHERE], "give ENGINE, named as in `inferway status`"),
        (["status", "one"], "'one': expected http://HOST:PORT"),
    ],
)
def test_what_is_missing_or_wrong_is_said_without_asking_anybody(
    words: list[str], why: str
) -> None:
    done = CliRunner().invoke(main, words)

    assert done.exit_code == 2
    assert why in done.output
