"""An estimate of what compiling a spec takes, told from its text. Pure.

Fitted to llguidance 1.7.6 and SmolLM2's vocabulary on JSONSchemaBench's 300 schemas. Seconds on
one core of a 2-core Xeon, load 1, of the 240 that it takes as they are: the median took 1.06 times
the estimate, 90 % 0.5 to 2.0 times, the worst 5.8 times. Good enough to tell 1 ms from 100 ms,
which is what routing asks. Bytes (what malloc gave for each of all 300): the median took 1.1 times
the estimate, 90 % 0.5 to 1.8 times, the worst 3.1 times, all together 0.74 times.
"""

from __future__ import annotations

import re

from inferway_structured.spec import Kind, Spec

# Characters, with patterns and without: what jsonschema_rs makes of them holds the GIL for 8 ms at
# most. 300 schemas of JSONSchemaBench take 0.3 ms in the middle; 73 are above.
SMALL = 4 * 1024
PLAIN = 32 * 1024
# Each takes about 20 µs of a check. Of the 300, those of less than 32 kB have 630 at most.
_MANY_SCHEMAS = 1_500
_HAS_PATTERNS = re.compile('"pattern|"regex"')
_MANY_REPEATS = re.compile(r"\)\{|\{\d*,?\d{3}")
_REPEAT = re.compile(r"\{\d")
_SHORTHAND = re.compile(r"\\[wWdDsSc]")
_PROPERTY = re.compile(r"\\[pP]")

_SCHEMA = 0.0001
_SUBSCHEMA = 40e-6
_ITEM = 2.8e-6  # maxItems 10,000: 28 ms
_MANY = 100_000  # more no limit lets through
_ENUM_VALUE = 1.5e-6  # 10,000: 15 ms
_OTHER = 0.0005
_CHAR = {
    Kind.REGEX: 0.25e-6,  # 17 kB of alternatives: 4 ms
    Kind.CHOICE: 0.6e-6,  # 10,000 choices, 139 kB: 82 ms
    Kind.GRAMMAR: 0.4e-6,  # 1,000 rules, 29 kB: 10 ms
}

_BYTES = 60_000  # of the smallest
_BYTES_OF_OBJECT = 3_000
_BYTES_OF_ITEM = 640  # maxItems 10,000: 6.3 MB
_BYTES_OF_CHAR = {
    Kind.JSON: 20,  # an enum of 9,000, 125 kB: 3.5 MB
    Kind.REGEX: 40,
    Kind.CHOICE: 130,  # 9,000 choices, 125 kB: 16 MB
    Kind.GRAMMAR: 50,  # 1,000 rules, 29 kB: 1.5 MB
    Kind.STRUCTURAL_TAG: 50,  # as a grammar, which it becomes
}
_MAX_ITEMS = re.compile(r'"maxItems":(\d{1,9})')


def estimated_bytes(spec: Spec) -> int:
    """Return how many bytes of memory a compiled spec keeps, about. Takes itself 1 ms for 1 MB: no
    JSON is parsed."""
    held = _BYTES + _BYTES_OF_CHAR.get(spec.kind, 0) * len(spec.text)
    if spec.kind in {Kind.JSON, Kind.STRUCTURAL_TAG}:
        items = sum(int(found) for found in _MAX_ITEMS.findall(spec.text))
        held += _BYTES_OF_OBJECT * spec.text.count("{") + _BYTES_OF_ITEM * items
    return held


def estimated_seconds(spec: Spec) -> float:
    """Return what compiling the spec takes on such a core, about, in seconds. Takes itself 1 ms for
    1 MB: no JSON is parsed."""
    text = spec.text
    if spec.kind is not Kind.JSON:
        return _OTHER + _CHAR.get(spec.kind, 0.0) * len(text)
    items = sum(min(int(found), _MANY) for found in _MAX_ITEMS.findall(text))
    values = text.count(",") if '"enum":' in text else 0
    return _SCHEMA + _SUBSCHEMA * text.count("{") + _ITEM * items + _ENUM_VALUE * values


def is_costly(spec: Spec) -> bool:
    """Return whether its check may take more than a few milliseconds of the GIL, or memory: large
    ones, grammars, and patterns that jsonschema_rs spells out."""
    text = spec.text
    if spec.kind is Kind.GRAMMAR or len(text) > PLAIN:
        return True
    if spec.kind is Kind.STRUCTURAL_TAG and '"grammar"' in text:
        return True
    if text.count("{") > _MANY_SCHEMAS and spec.kind is not Kind.REGEX:
        return True
    if '"unevaluated' in text:  # held against every way through the references
        return True
    if spec.kind is not Kind.REGEX and not _HAS_PATTERNS.search(text):
        return False
    if len(text) > SMALL or _MANY_REPEATS.search(text) or len(_REPEAT.findall(text)) > 20:
        return True
    return len(_SHORTHAND.findall(text)) > 60 or len(_PROPERTY.findall(text)) > 10
