"""Numbers that llguidance (1.7.6) reads as they are meant. It takes bounds for doubles and then for
64 bits, so that others lose digits; an integer that becomes -2**63 ends the process. With
`multipleOf`, it lets no negative number through.

keyword                          kept
minimum, maximum                 up to 2**53; away from zero also what a double holds within 63 bits
exclusive ones, multipleOf       below 2**53
const, enum                      what a double holds within 63 bits
minItems, maxLength, …           below 2**31; no answer has as many, so a maximum needs no mention
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from math import ceil, floor, inf, isfinite
from typing import Any

from inferway_structured.backends.schemas.shapes import TYPES, is_multiple, named_types
from inferway_structured.errors import SpecError

_EXACT = 2**53
_EDGE = 2**63
_COUNTABLE = 2**31
_FAR = 2**2000  # beyond every bound
# Without one of these every number is kept, or none ends the process. What begins with one
# character of its own is searched for several times as fast.
_LOSES = [
    re.compile(rf"{before}\s*-?[0-9][0-9.]*(?:[0-9]{{9}}|[eE])") for before in (":", ",", r"\[")
]
_ENDS = re.compile(r"-(?:[0-9]{19}|[0-9.]+[eE])")
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_OF_NUMBERS = _BOUNDS | {"const", "enum"}
_PARTS = frozenset({"allOf", "anyOf"})
MOST = frozenset({"maxLength", "maxItems", "maxProperties", "maxContains"})
_LEAST = frozenset({"minLength", "minItems", "minProperties", "minContains"})
_COUNTS = MOST | _LEAST


def is_kept(word: str, value: Any) -> bool:
    """Return whether the keyword means the same to the library."""
    if word in ("const", "enum"):
        return _is_value_kept(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True  # malformed, or a sibling's matter
    if word in _COUNTS:
        return value < _COUNTABLE
    return word not in _BOUNDS or _is_bound_kept(word, value)


def all_kept(raw: Any) -> bool:
    """Return whether every number of a document is, wherever it stands."""
    if isinstance(raw, list):
        return all(map(all_kept, raw))
    if isinstance(raw, dict):
        return all(is_kept(word, inner) and all_kept(inner) for word, inner in raw.items())
    return True


def keeps_multiples(said: Mapping[str, Any]) -> bool:
    """Return whether the library keeps `multipleOf` as it is meant here: not if the bounds ask for
    negative multiples. Without bounds it does, and answers have no negative numbers."""
    step = said.get("multipleOf")
    if step is None or "const" in said or "enum" in said:
        return True  # `of_numbers` chooses among the values
    lowest = max(said.get("minimum", -inf), said.get("exclusiveMinimum", -inf))
    only_negative = said.get("maximum", 0) < 0 or said.get("exclusiveMaximum", 1) <= 0
    return not only_negative and not -inf < lowest <= -step


def of_numbers(said: dict[str, Any]) -> dict[str, Any] | None:
    """Return an equal schema that the library reads, None if no value has it. The library fails on
    values that are fractions where integers may come and fractions may not, and on bounds that have
    no integer between them; of values with `multipleOf`, it leaves out the negative ones."""
    if "multipleOf" in said and ("const" in said or "enum" in said):
        said = dict(said)
        step = said.pop("multipleOf")
        if not _is_multiple(said.get("const"), step):
            return None
        if "enum" in said:
            said["enum"] = [value for value in said["enum"] if _is_multiple(value, step)]
    names = said.get("type", ())
    names = [names] if isinstance(names, str) else names
    if "integer" not in names or "number" in names:
        return None if said.get("enum") == [] else said
    if _is_fraction(said.get("const")):
        return None
    if any(map(_is_fraction, said.get("enum", ()))):
        said = {**said, "enum": [value for value in said["enum"] if not _is_fraction(value)]}
    least, most = integers_within(said)
    if least > most:
        kept = {word: rule for word, rule in said.items() if word not in _BOUNDS}
        said = {**kept, "type": [name for name in names if name != "integer"]}
    return None if said["type"] == [] or said.get("enum") == [] else said


def integers_within(bounds: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the greatest integer; where there is no bound, what is beyond all."""
    least, above = bounds.get("minimum", -_FAR), bounds.get("exclusiveMinimum", -_FAR)
    most, below = bounds.get("maximum", _FAR), bounds.get("exclusiveMaximum", _FAR)
    return max(ceil(least), floor(above) + 1), min(floor(most), ceil(below) - 1)


def narrowed(said: Any, integers: bool = False) -> Any:
    """Return the schema for values of which each number is an integer if `integers`, or if it says
    so itself: fractions are left out of what it is all and any of."""
    if not isinstance(said, dict):
        return said
    integers = integers or _has_integers(said)
    if integers and not _OF_NUMBERS.isdisjoint(said):
        own = _of_integers(said)
        if own is None:
            return False
        said = own
    if not integers or _PARTS.isdisjoint(said):
        return said
    for word in _PARTS.intersection(said):
        parts = [narrowed(part, True) for part in said[word]]
        left = [part for part in parts if part is not False]
        if not left or (word == "allOf" and len(left) < len(parts)):
            return False
        said = {**said, word: left}
    return said


def _has_integers(said: Any) -> bool:
    """Return whether it says that a number is an integer, itself or by what it is all of."""
    if not isinstance(said, dict):
        return False
    names = named_types(said.get("type", "number"))
    if "integer" in names and "fraction" not in names:
        return True
    return any(map(_has_integers, said.get("allOf", ())))


def _of_integers(said: dict[str, Any]) -> dict[str, Any] | None:
    """Return what `of_numbers` does, where numbers are integers."""
    names = named_types(said["type"]) if "type" in said else TYPES
    kept = sorted(names - {"fraction"})
    own = of_numbers({**said, "type": kept})
    if own is None or own["type"] != kept:
        return own
    del own["type"]
    return {"type": said["type"], **own} if "type" in said else own


def _is_multiple(value: Any, step: float) -> bool:
    """Return whether `multipleOf` allows it, which is for numbers alone."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return is_multiple(value, step)


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) and isfinite(value) and value != int(value)


def may_lose(text: str) -> bool:
    """Return whether a document may have a number that is not kept; takes no time."""
    return any(loses.search(text) for loses in _LOSES)


def check_numbers(text: str) -> None:
    """Raises SpecError if the library would end this process over a JSON text: the last look,
    whatever has been said of it before."""
    if _ENDS.search(text) is None:
        return
    with suppress(ValueError):  # the library refuses it, too
        _check(json.loads(text))


def check_grammar_numbers(text: str) -> None:
    """Check the numbers of the schemas behind each `%json` of a Lark grammar."""
    if text.lstrip().startswith("{"):  # several grammars as JSON
        check_numbers(text)
    if "%json" not in text or _ENDS.search(text) is None:
        return
    decoder = json.JSONDecoder()
    for part in text.split("%json")[1:]:
        with suppress(ValueError):
            _check(decoder.raw_decode(part.lstrip())[0])


def _check(raw: Any) -> None:
    if _has_edge(raw):
        raise SpecError("a number is -2**63 or less, which the grammar library cannot hold")


def _has_edge(raw: Any) -> bool:
    if isinstance(raw, list):
        return any(map(_has_edge, raw))
    if isinstance(raw, dict):
        return any(map(_has_edge, raw.values()))
    return isinstance(raw, int | float) and (raw <= -_EDGE or _double(raw) <= -_EDGE)


def _is_value_kept(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_value_kept, value))
    if isinstance(value, dict):
        return all(map(_is_value_kept, value.values()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if isinstance(value, float):
        return value > -_EDGE
    return _is_held(value)


def _is_bound_kept(word: str, value: float) -> bool:
    if isinstance(value, float):
        return abs(value) < _EDGE
    if abs(value) < _EXACT:
        return True
    outward = (word == "maximum" and value > 0) or (word == "minimum" and value < 0)
    return outward and _is_held(value)


def _is_held(value: int) -> bool:
    """Return whether a number is held by a double within 63 bits; 2**63 - 1 is where its conversion
    ends."""
    return value == _EDGE - 1 or (abs(value) < _EDGE and _double(value) == value)


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("-inf") if value < 0 else float("inf")
