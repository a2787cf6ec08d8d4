"""Fields of a request that may ask for the shape of its answer, as all versions of vLLM name them.

Values are as they came: `structured.requests` reads what they ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec


class Guided(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chats and completions have in common."""

    response_format: Any = None  # Kimi K3's renderer writes it into the prompt
    structured_outputs: Any = None
    structural_tag: Any = None
    guided_json: Any = None  # these up to vLLM 0.11
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None
    guided_whitespace_pattern: Any = None


# Without one of these, no shape is asked for; each struct has some of them.
_ASKING = frozenset({*Guided.__struct_fields__, "tools", "text", "output_config"}) - {
    "guided_whitespace_pattern"
}
_READ = _ASKING | {"guided_whitespace_pattern", "tool_choice", "use_beam_search"}

_NOTHING: Mapping[str, Any] = {}
TakeValues = Callable[[Any], tuple[Any, ...]]


def shape_fields(body: msgspec.Struct) -> Mapping[str, Any]:
    """Return the fields of `body` that may ask for the shape of its answer, and those they are read
    with; empty, within a microsecond, if there are none."""
    asking, read = _fields_of(type(body))
    values = asking(body)
    if values.count(None) == len(values):
        return _NOTHING
    return {name: value for name in read if (value := getattr(body, name)) is not None}


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[TakeValues, Sequence[str]]:
    """Return what takes the fields of `_ASKING` from a struct, and the names of its `_READ`."""
    fields = kind.__struct_fields__
    if "sampling_params" in fields:  # each body has them, and few ask for a shape there
        return _asked_in_params, ["sampling_params"]
    return values_of([n for n in fields if n in _ASKING]), [n for n in fields if n in _READ]


def _asked_in_params(body: Any) -> tuple[Any, ...]:
    return (body.sampling_params.get("structured_outputs"),)


def values_of(names: Sequence[str]) -> TakeValues:
    """Return what takes these attributes of an object, as a tuple also if they are few."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple([getattr(each, name) for name in names])
