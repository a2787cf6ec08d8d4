"""What a helper process does: check a spec. (Another holds finished texts against one: valid.py.)

Where libraries' words for time and memory are not trusted, this may be killed instead of us.
"""

from __future__ import annotations

import json

from inferway_structured import check as checks
from inferway_structured.errors import SpecError
from inferway_structured.limits import SpecLimits
from inferway_structured.spec import unpacked

# A helper imports nothing once its limits hold.
MODULES = (
    *(__name__, "inferway_structured.valid", "jsonschema_rs"),
    *("llguidance", "llguidance.gbnf_to_lark"),
)
CHECK = f"{__name__}:check"


def check(argument: bytes) -> bytes:
    """A SpecError's words, place and keyword; empty when there is none."""
    given = json.loads(argument)
    try:
        checks.check(unpacked(given), SpecLimits(**given["limits"]))
    except SpecError as e:
        return json.dumps([str(e), e.place, e.keyword]).encode()
    return b""
