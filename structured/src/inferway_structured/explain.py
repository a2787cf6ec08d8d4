"""An explanation of a spec, keyword by keyword, told without a tokenizer. Pure.

    {"key", "kind", "strict",
     "verdict": "enforced", "partly" (something is left out, by name) or "refused",
     "backend": which library, null if refused,
     "refused": null or {"place", "keyword", "reason", "by": "limits", "backends" or "strict"},
     "keywords": [{"place", "keyword", "is", "by"}], those that decide something first,
     "num_keywords": all of them, of which so many are listed at most,
     "limits": {what: {"used", "most"}},
     "compile": {"seconds": estimated}}

A keyword *is* enforced (by the backend named), unenforced (the answer may break it), refused (the
reason for it), an annotation (forbids nothing), unknown (no keyword of JSON Schema; forbids
nothing), or undecided (the spec is refused for another reason). Places are JSON pointers to the
schema in which the keyword stands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inferway_structured.compile.cost import estimated_seconds
from inferway_structured.errors import SpecError
from inferway_structured.grammar import Verdict
from inferway_structured.spec import Kind, OutputConstraint, Spec
from inferway_structured.validate.keywords import ANNOTATIONS, ASSERTIONS
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.validate.schema_walk import Subschema, graph
from inferway_structured.validate.schemas import nesting

MAX_LISTED = 1000

Mentioned = dict[tuple[str, str | None], str]


def explain(
    asked: OutputConstraint,
    invalid: SpecError | None,
    verdict: Verdict | SpecError | None,
    limits: SpecLimits,
    refuses_unenforced: bool = False,
) -> dict[str, Any]:
    """Return what becomes of a shape, as JSON. `invalid`: what its check has refused it for; if it
    has not, `verdict` is the one on it, or what the backends refuse it for. `refuses_unenforced`:
    where it is `strict`."""
    spec = asked.spec
    if asked.free:
        invalid = SpecError(asked.free)
    found = verdict if isinstance(verdict, Verdict) and not invalid else None
    refused = _refused(invalid, verdict, refuses_unenforced and asked.strict)
    within = refused is None or refused["by"] != "limits"
    schema = json.loads(spec.text) if within and spec.kind is Kind.JSON else None
    with graph(schema) as subschemas:
        nodes = subschemas.nodes
        keywords = _keywords(spec, nodes, found, refused)
        used = _used(spec, schema, nodes, limits)
        seconds = estimated_seconds(spec) if within else 0.0
    keywords.sort(key=lambda each: _ORDER.index(each["is"]))
    left_out = found.unenforced if found is not None else ()
    word = "refused" if refused else "partly" if left_out else "enforced"
    return {
        "key": spec.key,
        "kind": spec.kind.value,
        "strict": asked.strict,
        "verdict": word,
        "backend": None if refused or found is None else found.backend,
        "refused": refused,
        "keywords": keywords[:MAX_LISTED],
        "num_keywords": len(keywords),
        "limits": used,
        "compile": {"seconds": seconds},
    }


# What decides something comes first.
_ORDER = ("refused", "unenforced", "undecided", "enforced", "unknown", "annotation")


def _refused(
    invalid: SpecError | None, verdict: Verdict | SpecError | None, whole: bool
) -> dict[str, Any] | None:
    """Return why and by what a spec is refused; None: not. `whole`: nothing may be left out."""
    if invalid is not None:
        return _refusal(invalid, "limits")
    if isinstance(verdict, SpecError):
        return _refusal(verdict, "backends")
    if not whole or verdict is None or not verdict.unenforced:
        return None
    first = verdict.unenforced[0]
    why = "cannot be enforced, and `strict` was asked for"
    return _refusal(SpecError(why, place=first.place, keyword=first.keyword), "strict")


def _refusal(error: SpecError, by: str) -> dict[str, Any]:
    return {"place": error.place, "keyword": error.keyword, "reason": str(error), "by": by}


def _keywords(
    spec: Spec, nodes: Sequence[Subschema], found: Verdict | None, refused: dict[str, Any] | None
) -> list[dict[str, Any]]:
    mentioned: Mentioned = {}
    if found is not None:
        mentioned |= {(each.place, each.keyword): "unenforced" for each in found.unenforced}
    if refused is not None:
        mentioned[refused["place"], refused["keyword"]] = "refused"
    backend = found.backend if found is not None else None
    listed = []
    occurring = [(node.place, keyword) for node in nodes for keyword in node.schema]
    if spec.kind is not Kind.JSON:
        occurring.insert(0, ("", spec.kind.value))
    for place, keyword in occurring:
        word = _taken(mentioned, place, keyword) or _default(spec, keyword, backend)
        listed.append(_entry(place, keyword, word, backend))
    # What stands where no keyword makes a schema, or was made of several keywords.
    listed += [
        _entry(place, keyword, word, backend)
        for (place, keyword), word in mentioned.items()
        if keyword is not None
    ]
    return listed


def _taken(mentioned: Mentioned, place: str, keyword: str) -> str | None:
    """Whoever mentions a keyword points to the schema it stands in, or to itself."""
    itself = mentioned.pop((f"{place}/{keyword}", keyword), None)
    return mentioned.pop((place, keyword), itself)


def _default(spec: Spec, keyword: str, backend: str | None) -> str:
    if spec.kind is Kind.JSON and keyword in ANNOTATIONS:
        return "annotation"
    if spec.kind is Kind.JSON and keyword not in ASSERTIONS:
        return "unknown"
    return "undecided" if backend is None else "enforced"


def _entry(place: str, keyword: str, word: str, backend: str | None) -> dict[str, Any]:
    by = backend if word == "enforced" else None
    return {"place": place, "keyword": keyword, "is": word, "by": by}


def _used(
    spec: Spec, schema: Any, nodes: Sequence[Subschema], limits: SpecLimits
) -> dict[str, dict[str, int]]:
    used = {"bytes": (len(spec.text.encode()), limits.max_bytes)}
    if spec.kind is Kind.GRAMMAR:
        used["bytes"] = (used["bytes"][0], limits.max_grammar_bytes)
    if isinstance(schema, dict):
        used["nesting"] = (nesting(schema, limits.max_bytes), limits.max_nesting)
        used |= _used_by([node.schema for node in nodes], limits)
    return {what: {"used": number, "most": most} for what, (number, most) in used.items()}


def _used_by(schemas: Sequence[dict[str, Any]], limits: SpecLimits) -> dict[str, tuple[int, int]]:
    def sizes(keyword: str) -> list[int]:
        return [
            len(each[keyword]) for each in schemas if isinstance(each.get(keyword), dict | list)
        ]

    branches = [size for word in ("anyOf", "oneOf", "allOf") for size in sizes(word)]
    patterns = sum(isinstance(each.get("pattern"), str) for each in schemas)
    return {
        "enum": (max(sizes("enum"), default=0), limits.max_enum),
        "object_properties": (max(sizes("properties"), default=0), limits.max_object_properties),
        "properties": (sum(sizes("properties")), limits.max_properties),
        "branches": (max(branches, default=0), limits.max_branches),
        "patterns": (patterns + sum(sizes("patternProperties")), limits.max_patterns),
    }
