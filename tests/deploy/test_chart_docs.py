"""What the documents tell people to type at Helm, typed at it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from tests.deploy.chart import CHART, ROOT, Rendered, render, run, said_of
from tests.reader import Block, blocks

pytestmark = pytest.mark.helm

PAGES = [ROOT / "docs" / "guides" / "kubernetes.md", ROOT / "docs" / "helm.md"]
COMMANDS = [
    pytest.param(page, block, id=f"{page.stem}-{block.place}")
    for page in PAGES
    for block in blocks(page)
    if block.text.startswith("helm ")
]
FILES = [
    pytest.param(block, id=f"{page.stem}-{block.place}")
    for page in PAGES
    for block in blocks(page)
    if block.language == "yaml"
]


def block_at(page: Path, place: int) -> Block:
    found: Block = blocks(page)[place]
    return found


@pytest.mark.parametrize(("page", "block"), COMMANDS)
def test_a_command_renders_or_says_what_the_page_shows(
    page: Path, block: Block, tmp_path: Path
) -> None:
    _, verb, release, chart, *arguments = shlex.split(block.text.replace("\\\n", " "))
    if "--values" in arguments:
        (tmp_path / "values.yaml").write_text(block_at(page, block.place - 1).text)
        arguments[arguments.index("--values") + 1] = str(tmp_path / "values.yaml")
    arguments = [each for each in arguments if each != "--create-namespace"]

    done = run("4", "template", release, ROOT / chart, *arguments)

    assert verb in ("install", "upgrade", "template")
    if verb == "template":
        shown = block_at(page, block.place + 1)
        assert shown.language == "text"
        assert shown.text.strip() in done.stderr
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", FILES)
def test_values_on_a_page_are_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(block.text)

    found = render("4", said_of(file))

    assert [found.settings(deployment) for deployment, _ in found.pods()]


def test_the_ports_that_the_guide_forwards_are_the_pods() -> None:
    found: Rendered = render("4", [])
    [(_, pod)] = found.pods()
    names = {port["name"] for port in pod["containers"][0]["ports"]} - {"peers"}  # for pods alone
    [line] = [
        line
        for block in blocks(PAGES[0])
        for line in block.text.splitlines()
        if " port-forward " in line
    ]

    assert {word.partition(":")[2] for word in line.split() if ":" in word} == names
    assert f"deployment/{found.of('Deployment')[0]['metadata']['name']} " in line


def test_every_kind_of_object_is_on_the_page() -> None:
    text = PAGES[1].read_text()
    templates = [
        document
        for path in CHART.glob("templates/*.yaml")
        for document in path.read_text().splitlines()
        if document.startswith("kind: ")
    ]
    kinds = {yaml.safe_load(line)["kind"] for line in templates}

    assert {kind for kind in kinds if kind not in text} == set()
