"""JSON values -> the integer or truth value that vLLM reads in them: pydantic's lax mode for Python
input, as of pydantic 2.14 (its "conversion table").

wanted   taken
int      an integer; a float without a fraction, below 2**63; true and false; text of an integer,
         with "_" between digits, a fraction of zeros, spaces around it
bool     true, false; 0, 1, as floats too; 0 1 f t n y no yes off on false true as text, of any case

What its parser takes by accident ("0-1" for -1, "0__1" for 1) is refused. tests/openai_api/
test_vllm_verdicts.py holds it against vLLM's classes.
"""

from __future__ import annotations

import re

_TRUE = frozenset({"1", "t", "y", "yes", "on", "true"})
_FALSE = frozenset({"0", "f", "n", "no", "off", "false"})

# Unicode's White_Space, which Rust trims. `str.strip` takes U+001C to U+001F, too.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_INTEGER = re.compile(r"([+-]?)([0-9]+(?:_[0-9]+)*)(?:\.0+)?", re.ASCII)
_MAX_DIGITS = 4300  # Python's own limit for text
_MAX_FLOAT = 2.0**63


def lax_int(value: object) -> int:
    """Return the integer that vLLM reads. Raises ValueError if it reads none."""
    if isinstance(value, int):  # a bool is one
        return int(value)
    if isinstance(value, float):
        if value.is_integer() and -_MAX_FLOAT < value < _MAX_FLOAT:
            return int(value)
    elif isinstance(value, str):
        found = _INTEGER.fullmatch(value.strip(_SPACES))
        if found is not None:
            digits = found[2].replace("_", "").lstrip("0")
            if len(digits) <= _MAX_DIGITS:
                return int(f"{found[1]}{digits or '0'}")
    raise ValueError("not an integer")


def lax_bool(value: object) -> bool:
    """Return the truth value that vLLM reads. Raises ValueError if it reads none."""
    if isinstance(value, str):
        word = value.lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
    elif isinstance(value, int | float) and value in (0, 1):  # a bool is an int
        return bool(value)
    raise ValueError("not a truth value")
