"""The chart's values: each is documented and has a schema, and what is copied is up to date."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from tests.deploy.chart_values import (
    CHART,
    ROOT,
    SCHEMA,
    VALUES,
    documented,
    meanings,
    table,
    with_settings,
)

from inferway.config import ServeSettings

Tree = dict[str, Any]

VALUE_TREE: Tree = yaml.safe_load(VALUES.read_text())
CHART_FILE: Tree = yaml.safe_load((CHART / "Chart.yaml").read_text())
SCHEMA_TREE: Tree = json.loads(SCHEMA.read_text())


def leaves(tree: Tree, path: str = "") -> Iterator[str]:
    """The places of all values; a map is a place of its own if it is empty, or in one line."""
    for key, value in tree.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value and place not in WHOLE:
            yield from leaves(value, place)
        else:
            yield place


# Maps that have one meaning as a whole.
WHOLE = ("gateway.resources", "picker.resources", "metrics.dashboard.labels")


def test_the_table_of_values_is_what_the_file_says() -> None:
    assert table() == documented(), "write it anew: python -m tests.generated"


def test_each_value_has_its_meaning() -> None:
    explained = {place for place, _, _ in meanings()}

    assert set(leaves(VALUE_TREE)) <= explained


def test_the_schema_has_the_settings_as_they_are() -> None:
    assert with_settings(SCHEMA_TREE) == SCHEMA_TREE, "write it anew: python -m tests.generated"


def test_the_schema_has_exactly_the_values() -> None:
    compare(VALUE_TREE, SCHEMA_TREE, "")


def compare(values: Tree, schema: Tree, path: str) -> None:
    schema = resolved(schema)
    properties = schema["properties"].keys() - ({"global"} if not path else set())
    assert schema["additionalProperties"] is False, path
    assert values.keys() == properties, path
    for key, value in values.items():
        below, place = resolved(schema["properties"][key]), f"{path}.{key}"
        if isinstance(value, dict) and "properties" in below and not is_open(place):
            compare(value, below, place)


def resolved(schema: Tree) -> Tree:
    if "$ref" in schema:
        found: Tree = SCHEMA_TREE["definitions"][schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def is_open(place: str) -> bool:
    """Settings, and what is Kubernetes' own, have more keys than the chart sets."""
    return place.endswith((".config", ".resources"))


def test_the_defaults_keep_the_schema() -> None:
    errors = jsonschema_rs.validator_for(SCHEMA_TREE).iter_errors(VALUE_TREE)

    assert [error.message for error in errors] == []


@pytest.mark.parametrize("path", sorted(CHART.glob("ci/*.yaml")), ids=lambda path: path.stem)
def test_value_sets_keep_the_schema(path: Path) -> None:
    values = yaml.safe_load(path.read_text()) or {}
    errors = jsonschema_rs.validator_for(SCHEMA_TREE).iter_errors(values)

    assert [error.message for error in errors] == []


def test_every_setting_can_be_given() -> None:
    assert SCHEMA_TREE["definitions"]["ServeSettings"]["properties"].keys() == set(
        ServeSettings.__struct_fields__
    )


def test_every_value_is_used() -> None:
    text = "".join(path.read_text() for path in CHART.glob("templates/*"))
    words = set(re.findall(r"\.(\w+)", text))

    used = [place for place in leaves(VALUE_TREE) if ".config." not in place]
    assert [place for place in used if place.split(".")[-1] not in words | {"HF_TOKEN"}] == []


def test_the_chart_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert CHART_FILE["appVersion"] == project["version"]
    assert CHART_FILE["version"] == re.sub(r"\.dev(\d+)$", r"-dev.\1", project["version"])


def test_the_image_is_made_for_the_pods_user() -> None:
    containerfile = (ROOT / "deploy" / "Containerfile").read_text()

    assert re.findall(r"^USER (\d+)$", containerfile, re.MULTILINE) == [
        str(VALUE_TREE["pod"]["user"])
    ]
