"""A JSON Schema -> what holds values against it, by the draft it is written in; or what that draft
forbids. By jsonschema_rs, which fetches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any
from urllib.parse import quote

from inferway_structured.errors import SpecError
from inferway_structured.validate.keywords import DRAFTS, NAMING, pointer
from inferway_structured.validate.schema_walk import Graph, SchemaObject, graph


def validator_of(schema: SchemaObject | bool) -> Any:
    """jsonschema_rs's for it, a class per draft; None if a pattern is too large for it. Raises
    SpecError with the place of what the schema's own rules forbid.

    A schema that does not name its draft, names one that nobody knows, or is not written by its
    rules, is read by the newest that allows it: many are written by the rules of draft 4 or 7 and
    do not say so. What forbids no answer makes no schema invalid."""
    if isinstance(schema, bool):
        return _class("2020-12")(schema)
    named = schema.get("$schema")
    known = isinstance(named, str) and named.rstrip("#") in DRAFTS
    if not known and "$schema" in schema and isinstance(named, str):
        schema = {name: value for name, value in schema.items() if name != "$schema"}
    drafts = ["2020-12", "7", "4"]
    if known:
        drafts.insert(0, DRAFTS[str(named).rstrip("#")])
    try:
        return _by_first(drafts, schema)
    except SpecError:
        mended = _mended(schema)
        if mended == schema:
            raise
    return _by_first(drafts, mended)


def is_ordinary(found: Graph, odd: Sequence[SchemaObject], text: str) -> bool:
    """Return whether `validator_of` surely takes the schema of a graph, whose references all lead
    somewhere: told by the rules of its draft, in a tenth of the time. `odd`: its patterns of a
    syntax that not all dialects share, each in a schema. `text`: the schema's own."""
    root = found.nodes[0].schema
    draft = _draft_of(root, text)
    if draft is None or any(node.schema is not root for node in found.named):
        return False
    for word in NAMING & root.keys():
        said = root[word]
        if word not in ("$id", "id") or not (
            isinstance(said, str) and _ORDINARY_ID.fullmatch(said)
        ):
            return False
    if not all(_is_ordinary_reference(word, said, draft) for word, said in found.references):
        return False
    if not _keeps_rules(root):
        return False
    try:  # False, too, where it is told of some patterns only
        return not odd or _built({"allOf": odd}, draft) is not None
    except SpecError:
        return False


def is_ordinary_tree(root: SchemaObject, text: str) -> bool:
    """Return what `is_ordinary` does of a schema that has neither references nor patterns nor names
    of its own, inside it."""
    return _draft_of(root, text) is not None and _keeps_rules(root)


def _draft_of(root: SchemaObject, text: str) -> str | None:
    """Return the draft that a schema is written in; None where that is not told so easily."""
    if "\\u" in text:  # half of a surrogate pair: what is built refuses it
        return None
    if len(_DRAFT.findall(text)) > ("$schema" in root) or '"$vocabulary"' in text:
        return None  # there may be another one inside
    return DRAFTS.get(str(root["$schema"]).rstrip("#")) if "$schema" in root else "2020-12"


def _keeps_rules(root: SchemaObject) -> bool:
    import jsonschema_rs as library

    return bool(library.meta.is_valid(root))


_DRAFT = re.compile(r'"\$schema": ?"')
_ORDINARY_REFERENCE = re.compile(
    r"#(?:/(?:definitions|\$defs|properties|patternProperties)/[\w.:-]+"
    r"|/(?:items|additionalProperties|additionalItems|not))*",
    re.ASCII,
)
_ORDINARY_ID = re.compile(r"https?://[\w.-]+(?:/[\w.-]+)*/?#?", re.ASCII)


def _is_ordinary_reference(word: str, said: str, draft: str) -> bool:
    """Return whether all libraries find the same there, which the draft's rules hold for."""
    if word != "$ref" or not _ORDINARY_REFERENCE.fullmatch(said):
        return False
    return "/$defs/" not in said or draft in ("2019-09", "2020-12")


def _by_first(drafts: Sequence[str], schema: SchemaObject) -> Any:
    first: SpecError | None = None
    for draft in drafts:
        try:
            return _built(schema, draft)
        except SpecError as e:
            first = first or e
            if first.keyword not in _CHANGED:
                break
    assert first is not None
    raise first


_DESCRIBING: Mapping[str, type] = {
    **dict.fromkeys(("title", "description", "$comment", "$schema", "$id", "id"), str),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), str),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), bool),
    "examples": list,
    "$defs": dict,
    "definitions": dict,
}
_IN_URIS = "!#$%&'()*+,/:;=?@[]~"


def _mended(schema: SchemaObject) -> SchemaObject:
    """Without what only describes and is of a wrong type (`"description": null`), names that are
    required twice, and characters that a URI would write otherwise."""
    made = deepcopy(schema)
    with graph(made) as found:
        for inner in [node.schema for node in found.nodes]:
            described = [(word, type_) for word, type_ in _DESCRIBING.items() if word in inner]
            for word in [word for word, type_ in described if not isinstance(inner[word], type_)]:
                del inner[word]
            required, reference = inner.get("required"), inner.get("$ref")
            if isinstance(required, list) and all(isinstance(name, str) for name in required):
                inner["required"] = list(dict.fromkeys(required))
            if isinstance(reference, str):
                inner["$ref"] = quote(reference, safe=_IN_URIS)
    return made


def _built(schema: SchemaObject, draft: str) -> Any:
    import jsonschema_rs as library

    for regexes in (
        library.RegexOptions(size_limit=_REGEX_BYTES),
        library.FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=_REGEX_BYTES),
    ):
        try:
            return _class(draft)(
                schema, validate_formats=True, offline=True, pattern_options=regexes
            )
        except library.ValidationError as e:
            fault = e
            if not _is_pattern(e):
                raise _invalid(e, draft) from None
        except (ValueError, library.ReferencingError) as e:
            raise SpecError(f"not a JSON Schema: {_short(str(e))}") from None
    if regex_fault(str(fault.instance)) is None:
        return None  # too large: jsonschema_rs builds its automata at once
    raise _invalid(fault, draft)


_CHANGED = ("items", "exclusiveMaximum", "exclusiveMinimum")  # what a newer draft forbids
_REGEX_BYTES = 1024 * 1024
_BACKTRACKS = 10_000  # of a pattern with look-around, on one string


def _class(draft: str) -> Callable[..., Any]:
    import jsonschema_rs as library

    return {
        "4": library.Draft4Validator,
        "6": library.Draft6Validator,
        "7": library.Draft7Validator,
        "2019-09": library.Draft201909Validator,
        "2020-12": library.Draft202012Validator,
    }[draft]


def _is_pattern(error: Any) -> bool:
    return type(error.kind).__name__ == "Format" and getattr(error.kind, "format", "") == "regex"


def regex_fault(pattern: str) -> str | None:
    """Return what the engine's regex library has against a regex, in its words; None if it takes
    it."""
    import llguidance

    grammar = llguidance.grammar_from("regex", pattern)
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if not is_error:
        return None
    return _short(" ".join(str(messages[0]).split()).rpartition("error: ")[2])


def _invalid(error: Any, draft: str) -> SpecError:
    steps = list(error.instance_path)
    deeper = _deeper(error.instance, steps, draft)
    if deeper is not None:
        return deeper
    place = pointer(steps)
    keyword = next((step for step in reversed(steps) if isinstance(step, str)), None)
    if _is_pattern(error):
        fault = regex_fault(str(error.instance))
        words = f"not a regular expression that can be followed: {fault}"
        if len(steps) > 1 and steps[-2] == "patternProperties":
            keyword = "patternProperties"
    else:
        words = _short(str(error).split("\n", 1)[0])
    message = f"{place}: {words}" if place else words
    return SpecError(message, place=place, keyword=keyword)


_OR_ELSE = ("items", "additionalItems", "additionalProperties", "dependencies")


def _deeper(inside: object, steps: list[str | int], draft: str) -> SpecError | None:
    """Up to draft 2019-09, these are a schema or something else, and the library says of what is
    neither only where it begins."""
    if not any(step in _OR_ELSE for step in steps[-2:]):
        return None
    children = enumerate(inside) if isinstance(inside, list) else [(None, inside)]
    for i, child in children:
        if not isinstance(child, dict):
            continue
        try:
            _built(child, draft)
        except SpecError as e:
            if e.place:
                before = pointer(steps if i is None else [*steps, i])
                return SpecError(f"{before}{e}", place=before + e.place, keyword=e.keyword)
    return None


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."
