"""Against the source of each vLLM that the documentation names (signatures.json)."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from structured.tests.vllm.signatures import misfits, read, recorded, unread

from inferway_structured.vllm.adapter import RequestGrammar
from inferway_structured.vllm.core import EngineCoreSide
from inferway_structured.vllm.install import NEWEST, OLDEST

DOCUMENTED = Path(__file__).parents[3] / "docs" / "structured.md"
FEATURES = ("structured output", "(overlap)", "(jump_forward)")


def versions() -> dict[str, list[bool]]:
    """Of the documentation's table: version -> whether it has each of FEATURES."""
    text = DOCUMENTED.read_text()
    table = text.split("<!-- versions -->")[1].split("<!-- end of versions -->")[0]
    found = {}
    for line in table.strip().splitlines()[2:]:
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in names.split(", "):
            found[name] = [cell == "yes" for cell in cells[: len(FEATURES)]]
    return found


def test_each_version_has_what_the_documentation_says() -> None:
    has = {}
    for version, found in recorded().items():
        wrong = misfits(found)
        fits = {name: not parts for name, parts in wrong.items()}
        has[version.removesuffix(".0")] = [
            all(fits[name] for name in fits if word in name) for word in FEATURES
        ]

    assert has == versions()


def test_the_oldest_and_the_newest_are_those_that_the_log_names() -> None:
    documented = [tuple(map(int, version.split("."))) for version in versions()]

    assert (min(documented), max(documented)) == (OLDEST, NEWEST)


def test_nothing_that_the_plugin_reads_is_missing_in_the_newest() -> None:
    *_, newest = recorded().values()

    assert unread(newest) == []


@pytest.mark.parametrize("version", recorded())
def test_our_grammars_have_all_that_vllm_asks_of_one(version: str) -> None:
    place = "vllm.v1.structured_output.backend_types"
    found = recorded()[version]

    assert set(found[f"{place}:StructuredOutputGrammar"] or ()) <= set(dir(RequestGrammar))
    # It never has ours compile: `begin` does.
    asked = set(found[f"{place}:StructuredOutputBackend"] or ())
    assert asked - {"compile_grammar"} <= set(dir(EngineCoreSide))


def test_a_source_is_read_without_running_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "vllm.whl", "w") as made:
        made.writestr(
            "vllm/v1/structured_output/__init__.py",
            "import nothing_that_is_there\n"
            "class StructuredOutputManager:\n"
            "    def __init__(self, vllm_config):\n"
            "        self.backend: object = None\n"
            "    def grammar_init(self, asked): ...\n",
        )

    found = read(zipfile.ZipFile(tmp_path / "vllm.whl"))

    place = "vllm.v1.structured_output:StructuredOutputManager"
    assert found[f"{place}.grammar_init"] == ["self", "asked"]
    assert found[f"{place}.backend"] is None
    assert f"{place}.tokenizer" in unread(found)
    assert f"{place}.grammar_init(self, asked)" in misfits(found)["structured output"]
