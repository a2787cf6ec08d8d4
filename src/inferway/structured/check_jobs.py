"""What a helper process does: check a spec, or hold a finished text against one.

Where libraries' words for time and memory are not trusted, this may be killed instead of us.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from inferway.errors import SpecError
from inferway.structured import check as checks
from inferway.structured.limits import Limits
from inferway.structured.spec import Kind, Options, Spec

# A helper imports nothing once its limits hold.
MODULES = (
    *(__name__, "inferway.structured.valid", "jsonschema_rs"),
    *("llguidance", "llguidance.gbnf_to_lark"),
)
CHECK = f"{__name__}:check"
KEEPS = f"{__name__}:keeps"


def argument(spec: Spec, **more: object) -> bytes:
    """For any of these jobs."""
    options = asdict(spec.options)
    return json.dumps({"kind": spec.kind, "text": spec.text, "options": options, **more}).encode()


def check(argument: bytes) -> bytes:
    """A SpecError's words, place and keyword; empty when there is none."""
    given = json.loads(argument)
    try:
        checks.check(_spec(given), Limits(**given["limits"]))
    except SpecError as e:
        return json.dumps([str(e), e.place, e.keyword]).encode()
    return b""


def keeps(argument: bytes) -> bytes:
    """A verdict's three fields (valid.py)."""
    from inferway.structured.valid import verdict

    given = json.loads(argument)
    found = verdict(_spec(given), given["answer"])
    return json.dumps([found.valid, found.place, found.keyword]).encode()


def _spec(given: dict[str, object]) -> Spec:
    options = given["options"]
    assert isinstance(options, dict)
    return Spec(Kind(str(given["kind"])), str(given["text"]), Options(**options))
