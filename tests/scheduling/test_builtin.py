"""docs/plugins.md says what is there, and what is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.scheduling.config import build
from inferway.scheduling.document import parse_config
from inferway.scheduling.llmd_compat import ELSEWHERE, PROVIDED
from inferway.scheduling.registry import PluginType

PLUGINS = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PLUGINS, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def rows(heading: str) -> list[str]:
    return re.findall(r"^\| `.*\|$", section(heading), re.MULTILINE)


def parameters(kind: PluginType) -> str:
    """As the table has them."""
    fields = msgspec.structs.fields(kind.parameters)
    return ", ".join(_parameter(field) for field in fields) or "-"


def _parameter(field: Any) -> str:
    if field.required:
        return f"`{field.encode_name}` (required)"
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, msgspec.Struct | Mapping | tuple):
        return f"`{field.encode_name}`"
    if isinstance(default, str) and default:
        return f"`{field.encode_name}` {default}"
    shown = "none" if default is None else msgspec.json.encode(default).decode()
    return f"`{field.encode_name}` {shown}"


def test_every_type_of_ours_has_its_row() -> None:
    expected = [f"| `{kind.name}` | {kind.about} | {parameters(kind)} |" for kind in TYPES.values()]

    assert rows("Built-in plugins") == expected


def grouped(types: Mapping[str, str]) -> list[str]:
    """One row for the types that have the same words."""
    names: dict[str, list[str]] = {}
    for name, about in types.items():
        names.setdefault(about, []).append(f"`{name}`")
    return [f"| {', '.join(group)} | {about} |" for about, group in names.items()]


def test_every_other_type_of_llm_ds_is_in_its_table() -> None:
    assert rows("Known in llm-d, not built here") == grouped(ELSEWHERE)


def test_what_needs_no_plugin_is_in_its_table() -> None:
    assert rows("Accepted without a plugin") == grouped(PROVIDED)


def test_no_type_is_in_two_tables() -> None:
    names = [*TYPES, *ELSEWHERE, *PROVIDED]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_type_that_is_not_built_is_refused_with_what_it_is(name: str) -> None:
    config = parse_config({"plugins": [{"type": name}]}, "f.yaml")

    with pytest.raises(ConfigError) as caught:
        build(config, "f.yaml", TYPES)

    assert str(caught.value) == (
        f"f.yaml: plugins[0].type: {name!r} is known in llm-d, not built here: {ELSEWHERE[name]}"
    )


def test_the_example_is_a_type_that_works() -> None:
    example = re.search(r"```python\n(.*?)```", section("Your own plugins"), re.DOTALL)
    assert example is not None
    package: dict[str, Any] = {}
    exec(example[1], package)
    kind = package["GOLD_FIRST"]
    config = parse_config({"plugins": [{"type": kind.name}]}, "f.yaml")

    chooser = build(config, "f.yaml", {**TYPES, kind.name: kind}).chooser
    table = candidates(labels=[{}, {"tier": "gold"}, {"tier": "iron"}])

    assert chooser.choose(request(), table).targets[0].endpoint.engine == "e1"


def test_parameters_are_strict_and_spelled_as_llm_d_does() -> None:
    for kind in TYPES.values():
        config = kind.parameters.__struct_config__

        assert config.forbid_unknown_fields, kind.name
        for field in msgspec.structs.fields(kind.parameters):
            assert re.fullmatch(r"[a-z]+([A-Z]+[a-z]*)*", field.encode_name), field.encode_name
