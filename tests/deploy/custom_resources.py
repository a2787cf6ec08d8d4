"""Objects that are not Kubernetes' own, held against the schemas of those who define them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

SCHEMAS = Path(__file__).parents[1] / "data" / "crds"
KINDS = sorted(path.stem for path in SCHEMAS.glob("*.json"))


@cache
def _validator(kind: str) -> jsonschema_rs.Validator:
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    return jsonschema_rs.validator_for(_closed(schema))


def complaints(manifest: dict[str, Any]) -> list[str]:
    """What is wrong with an object of one of KINDS; fields that nobody defines are."""
    said = {key: value for key, value in manifest.items() if key != "metadata"}
    return [
        f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        for error in _validator(manifest["kind"]).iter_errors(said)
    ]


def _closed(schema: Any) -> Any:
    """As the API server reads it: a field that is not defined is an error, a number may be text
    where it says so."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: {name: _closed(each) for name, each in value.items()}
        if key == "properties"
        else _closed(value)
        for key, value in schema.items()
    }
    if closed.pop("x-kubernetes-int-or-string", False):
        closed["type"] = ["integer", "string"]
    is_open = closed.pop("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in closed and not is_open and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed
