"""What follows from the chart's values.yaml and from the settings: the table of values in
docs/helm.md, and the settings in values.schema.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from inferway.config import ServeSettings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "inferway"
VALUES = CHART / "values.yaml"
SCHEMA = CHART / "values.schema.json"
PAGE = ROOT / "docs" / "helm.md"

_MEANING = re.compile(r"\s*# -- (.+)")
_TABLE = re.compile(r"^\| value \| default \| meaning \|\n(?:\|.*\n)*", re.MULTILINE)
_HEAD = "| value | default | meaning |\n|---|---|---|\n"
# What a schema says beyond the form: our documents say it.
_WORDS = ("title", "description", "default")


def meanings() -> Iterator[tuple[str, str, str]]:
    """(path, default as YAML, meaning) of every value that has a meaning, in their order."""
    text = VALUES.read_text()
    tree = yaml.compose(text)
    assert isinstance(tree, yaml.MappingNode)
    yield from _below(tree, "", text)


def _below(node: yaml.MappingNode, path: str, text: str) -> Iterator[tuple[str, str, str]]:
    lines = text.splitlines()
    for key, value in node.value:
        place = f"{path}.{key.value}" if path else key.value
        said = _MEANING.match(lines[key.start_mark.line - 1])
        if said:
            yield (
                place,
                _written(text[value.start_mark.index : value.end_mark.index].strip()),
                said[1],
            )
        if isinstance(value, yaml.MappingNode):
            yield from _below(value, place, text)


def _written(default: str) -> str:
    """A default as it stands in the file; nothing for a map whose keys have rows."""
    return "" if "# -- " in default else default


def documented() -> str:
    """The table of values, as docs/helm.md must have it."""
    rows = (
        f"| `{path}` | {f'`{default}`' if default else ''} | {meaning} |\n"
        for path, default, meaning in meanings()
    )
    return _HEAD + "".join(rows)


def table() -> str:
    """The table of values that docs/helm.md has."""
    found = _TABLE.search(PAGE.read_text())
    assert found is not None
    return found[0]


def settings_definitions() -> dict[str, Any]:
    """The JSON schemas of our settings, by the name of their struct."""
    defined: dict[str, Any] = _bare(msgspec.json.schema(ServeSettings)["$defs"])
    return defined


def _bare(schema: Any) -> Any:
    """Without the words; with the name under which draft 7 has definitions."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema.replace("#/$defs/", "#/definitions/") if isinstance(schema, str) else schema
    of_keys = {"properties", "$defs"}
    return {
        key: {name: _bare(each) for name, each in value.items()} if key in of_keys else _bare(value)
        for key, value in schema.items()
        if key not in _WORDS
    }


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with the settings as they are now among its definitions."""
    of_settings = settings_definitions()
    ours = {name: s for name, s in schema["definitions"].items() if name[0].islower()}
    return {**schema, "definitions": {**ours, **of_settings}}


def write() -> None:
    """Write both anew."""
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda _: documented(), page))
    schema = with_settings(json.loads(SCHEMA.read_text()))
    SCHEMA.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")
