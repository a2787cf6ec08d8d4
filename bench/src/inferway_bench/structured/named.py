"""Whether what an invalid instance violates is what a system has said that it does not enforce."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from inferway.errors import SpecError
from inferway_structured.drafts import validator_of
from inferway_structured.schema_walk import pointer

Named = Sequence[tuple[str, str]]  # places in the schema, and the keyword that stands there

_CONTAINS = frozenset({"contains", "minContains", "maxContains"})  # one rule


def is_named(schema: str, instance: str, named: Named) -> bool:
    """True only if each keyword that the instance violates is named at its place. What is said to
    fail in all of its branches is named if all that fails in one of them is."""
    try:
        validator = _validator(schema)
    except SpecError:
        return False
    errors = list(validator.iter_errors(json.loads(instance))) if validator is not None else []
    return bool(errors) and all(_is_named(error, named) for error in errors)


@lru_cache(maxsize=1)
def _validator(schema: str) -> Any:
    return validator_of(json.loads(schema))


def _is_named(error: Any, named: Named) -> bool:
    steps = list(error.schema_path)
    if any(_stands_there(steps, place, keyword) for place, keyword in named):
        return True
    branches = getattr(error.kind, "context", None) or ()
    return any(branch and all(_is_named(one, named) for one in branch) for branch in branches)


def _stands_there(steps: list[str | int], place: str, keyword: str) -> bool:
    same = _CONTAINS if keyword in _CONTAINS else {keyword}
    return any(str(steps[at]) in same and pointer(steps[:at]) == place for at in range(len(steps)))
