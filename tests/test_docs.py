"""The documents say what the program does: what one has and the other lacks fails here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import aiohttp
import click
import msgspec
import pytest
from tests.config import setting_tables
from tests.test_architecture import ROOMS

from inferway.app import Gateway
from inferway.cli import main
from inferway.cli.main import COMMANDS
from inferway.config import (
    EngineSettings,
    MediaSettings,
    PeerSettings,
    PickerSettings,
    ServeSettings,
)
from inferway.config.setting import keys_below
from inferway.model import Reason

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "inferway"
# How PyPI's page of the project reaches documents, and pictures.
_DATE = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}")
REPOSITORY = (
    r"https://(?:github\.com/inferway/inferway/blob|raw\.githubusercontent\.com/inferway/inferway)"
    "/main/"
)
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/guides/*.md"),
        *ROOT.glob("docs/benchmarks/*.md"),
    ]
)

SETTINGS = dict(keys_below(ServeSettings))

# A command that takes the flags of another.
SAME_FLAGS = {"inferway config show": "inferway serve"}
# One that takes them, too, and has its own.
MORE_FLAGS = {"inferway epp": "inferway serve"}
# Settings whose flags a command takes, by how their keys begin.
SETTING_FLAGS = {
    "inferway serve": [key for key in SETTINGS if not key.startswith("picker.")],
    "inferway epp": [key for key in SETTINGS if key.startswith("picker.")],
}


@cache
def sections(document: str) -> dict[str, str]:
    """Heading without its #s -> the text up to the next heading."""
    parts = re.split(r"^#+ (.+)$", (ROOT / document).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def first_column(text: str) -> list[str]:
    """The backticked words that begin the rows of the tables in `text`."""
    cells = re.findall(r"^\| ((?:`[^`]+` )+)\|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def leaves(command: click.Command, typed: str) -> Iterator[tuple[str, click.Command]]:
    """The commands below `command` that do something, each as it is typed."""
    if not isinstance(command, click.Group):
        yield typed, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, f"{typed} {name}")


def documented_flags(typed: str) -> set[str]:
    own = set(first_column(sections("docs/configuration.md").get(f"`{typed}`", "")))
    settings = [SETTINGS[key].flag for key in SETTING_FLAGS.get(typed, ())]
    return own.union(*(flag.names.split("/") for flag in settings if flag is not None))


def flags(command: click.Command) -> set[str]:
    """The long names of a command's options, but for those that are hidden: they change nothing."""
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    names = [name for option in options for name in (*option.opts, *option.secondary_opts)]
    return {name for name in names if name.startswith("--")}


def test_the_architecture_has_one_row_for_each_room() -> None:
    assert first_column(sections("docs/architecture.md")["Rooms"]) == ROOMS[::-1]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_flags_are_exactly_the_documented_ones(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None

    for typed, leaf in leaves(command, f"inferway {name}"):
        typed = SAME_FLAGS.get(typed, typed)
        documented = documented_flags(typed)
        if typed in MORE_FLAGS:
            documented |= documented_flags(MORE_FLAGS[typed])
        if "--save" in flags(leaf):
            documented |= documented_flags("inferway bench")

        assert documented == flags(leaf), typed


def test_the_keys_of_the_file_are_documented_as_their_fields_say() -> None:
    page = setting_tables.PAGE.read_text()

    assert setting_tables.with_tables(page) == page, "write it anew: python -m tests.generated"


def test_the_example_file_is_a_valid_one() -> None:
    text = sections("docs/configuration.md")["The YAML file"]
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None

    settings = msgspec.yaml.decode(example[1], type=ServeSettings)

    assert [engine.label for engine in settings.engines] == ["10.0.0.5:8000", "second"]


async def exposed_metrics(*, picks: bool) -> dict[str, str]:
    """Name -> HELP, of a gateway with every part switched on that it can have."""
    settings = ServeSettings(
        engines=[EngineSettings(url="http://127.0.0.1:1")],
        port=0,
        publish="tcp://127.0.0.1:*",
        peers=PeerSettings(addresses=["127.0.0.1:1"], port=0),
        media=MediaSettings(fetch_domains=["example.org"]),
        picker=PickerSettings(grpc_port=0, grpc_health_port=0, secure=False),
    )
    gateway = Gateway(settings, picks=picks)
    await gateway.start()
    try:
        url = f"http://127.0.0.1:{gateway.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            page = await response.text()
    finally:
        await gateway.close()
    return dict(re.findall(r"^# HELP (\S+) (.*)", page, re.MULTILINE))


def exposed_by(*, picks: bool) -> dict[str, str]:
    return asyncio.run(exposed_metrics(picks=picks))


def explained_metrics() -> dict[str, str]:
    """Name -> what docs/metrics.md says of it, without Markdown's marks."""
    text = (ROOT / "docs/metrics.md").read_text()
    found: dict[str, str] = {}
    for names, meaning in re.findall(r"^\| ((?:`[^`]+` )+)\|[^|]*\| (.*) \|$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", meaning).replace("`", "")
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), plain)
    return found


def test_the_metrics_are_exactly_the_documented_ones() -> None:
    exposed = {**exposed_by(picks=False), **exposed_by(picks=True)}
    explained = explained_metrics()

    assert set(explained) == set(exposed)
    told = {name: explained[name][: len(text)] for name, text in exposed.items()}
    assert told == exposed  # and the page may go on


def test_the_help_of_each_metric_is_a_sentence_that_can_be_read_alone() -> None:
    for name, text in exposed_by(picks=True).items():
        assert re.match(r"[A-Z0-9]", text), name
        assert text.endswith("."), name
        assert len(text.split()) >= 4, name
        assert not re.search(r"\b(we|us|our|ours|it says)\b|^Of ", text), name
        if name.endswith("_seconds"):
            assert re.search("[Ss]econds", text), name
        if name.endswith("_bytes"):
            assert re.search("[Bb]ytes", text), name


def test_the_reasons_of_decisions_are_exactly_the_documented_ones() -> None:
    rows = re.findall(r"^\| (`.+?) \|", sections("docs/api.md")["Reasons"], re.MULTILINE)

    assert [name for row in rows for name in re.findall(r"`([^`]+)`", row)] == list(Reason)


def test_each_cause_of_silent_zero_has_its_cure() -> None:
    source = (SRC / "fleet" / "silent_zero.py").read_text()
    causes = re.findall(r'(?:return|_once\()\s*"([a-z ]+)",', source)
    text = (ROOT / "docs/troubleshooting.md").read_text()
    silent_zero = re.search(r"^## Silent zero.*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert silent_zero is not None

    headings = re.findall(r"^### (.+)$", silent_zero[0], re.MULTILINE)

    assert sorted(heading.lower() for heading in headings) == sorted(set(causes))


def test_the_glossary_has_twelve_words() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/glossary.md").read_text(), re.M)

    assert len(set(words)) == 12


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        in_repository = re.match(REPOSITORY, target)
        if target.startswith("https://") and not in_repository:
            continue
        path, _, anchor = re.sub(REPOSITORY, f"{ROOT}/", target).partition("#")
        found = (document.parent / path).resolve() if path else document

        assert found.exists(), f"{document.name}: {target}"
        assert not anchor or anchor in anchors(found), f"{document.name}: {target}"


def test_the_readme_has_no_relative_link_because_pypi_shows_it_too() -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())

    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|scripts|\.ci)/[\w./-]+)`", document.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_that_are_named_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))

    named = set(
        re.findall(r"(?:^|`)make (?:(?:[A-Z]|-C )\S+ )*([a-z][a-z-]*)", document.read_text(), re.M)
    )

    assert named <= targets


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md"])
def test_a_figure_says_of_which_commit_it_is(name: str) -> None:
    """What has a date has been measured, and the code has changed since."""
    dated = [line for line in (ROOT / name).read_text().splitlines() if _DATE.search(line)]

    assert dated
    assert [line for line in dated if not re.search("commit [0-9a-f]{8}", line)] == []
