"""Structural tags: text in which some words begin a part that has a shape.

The older one, {"structures": [{"begin", "schema", "end"}], "triggers"}, is llguidance's; the newer,
{"format": …}, only xgrammar can read. It passes over keywords in silence: those are named here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from inferway.errors import SpecError
from inferway.structured.backends.schemas.nodes import Document, Node, escaped
from inferway.structured.grammar import Unenforced


class Held(NamedTuple):
    """A schema, and where it stands in the tag."""

    holder: dict[str, Any]
    key: str
    place: str


def schemas_of(tag: Any, place: str = "") -> Iterator[Held]:
    if isinstance(tag, list):
        for at, one in enumerate(tag):
            yield from schemas_of(one, f"{place}/{at}")
    if not isinstance(tag, dict):
        return
    for key, inner in tag.items():
        here = f"{place}/{escaped(key)}"
        is_schema = (key == "schema" and "begin" in tag) or (
            key == "json_schema" and isinstance(tag.get("type"), str)
        )
        if is_schema and isinstance(inner, dict | bool):
            yield Held(tag, key, here)
        else:
            yield from schemas_of(inner, here)


# Alone at their places, xgrammar 0.2.8 keeps these.
_KEPT = frozenset(
    {
        *("type", "enum", "const", "$ref", "anyOf", "properties", "required", "items"),
        *("additionalProperties", "prefixItems", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    }
)


def unkept_by_xgrammar(schema: Any, place: str) -> Iterator[Unenforced]:
    waiting, seen = [Document(schema).root], set()
    while waiting:
        node = waiting.pop()
        if node.place in seen:
            continue
        seen.add(node.place)
        for word, rule in node.keywords.items():
            alone = word == "pattern" and not {"minLength", "maxLength"} & set(node.keywords)
            if word not in _KEPT and not alone and word != "never":
                yield Unenforced(place + node.place, word)
            inner = [*rule.values()] if isinstance(rule, dict) else rule
            waiting += [
                one
                for one in (inner if isinstance(inner, list) else [inner])
                if isinstance(one, Node)
            ]


def tag_grammar(text: str, ways: Mapping[str, object], special_tokens: Mapping[str, int]) -> str:
    """The older form as a Lark grammar of llguidance's: tags, with text before each and after the
    last in which no trigger stands. (Its own StructTag lets triggers stand in the text, so that
    the model may pass every schema by.) Raises SpecError for the newer form."""
    tag = json.loads(text)
    if "structures" not in tag:
        raise SpecError("only structural tags of structures and triggers can be kept")
    triggers = sorted(tag["triggers"], key=len, reverse=True)
    words = [trigger for trigger in triggers if trigger not in special_tokens]
    lines = ["%llguidance {}"]
    names = []
    for at, structure in enumerate(tag["structures"]):
        trigger = next((one for one in triggers if structure["begin"].startswith(one)), None)
        if trigger is None:
            raise SpecError(
                f"no trigger begins {structure['begin']!r}",
                place=f"/structures/{at}/begin",
                keyword="begin",
            )
        rest = _spelled(structure["begin"][len(trigger) :], special_tokens)
        schema = structure["schema"] if isinstance(structure["schema"], dict) else {}
        shape = "%json " + json.dumps({**schema, "x-guidance": dict(ways)})
        names.append(f"tag_{at}")
        end = _spelled(structure["end"], special_tokens)
        lines.append(f"tag_{at}: head_{triggers.index(trigger)} {rest} {shape} {end}")
    for at, trigger in enumerate(triggers):
        if trigger in special_tokens:
            lines.append(f"head_{at}: TEXT {_spelled(trigger, special_tokens)}")
        else:
            lines.append(f"head_{at}[lazy]: TEXT {json.dumps(trigger)}")
    lines += [f"start: ({' | '.join(names)})* tail", "tail: TEXT", *_text_without(words)]
    return "\n".join(lines)


def _text_without(words: Sequence[str]) -> list[str]:
    anything = "/(?s:.*)/"
    if not words:
        return [f"TEXT: {anything}"]
    any_word = " | ".join(map(json.dumps, words))
    return [
        f"TEXT: {anything} & ~WITH_TRIGGER",
        f"WITH_TRIGGER: {anything} ({any_word}) {anything}",
    ]


def _spelled(text: str, special_tokens: Mapping[str, int]) -> str:
    """As a sequence of Lark's: text, and special tokens by their number."""
    found = [token for token in special_tokens if token and token in text]
    if not found:
        return json.dumps(text) if text else ""
    first = min(found, key=lambda token: (text.index(token), -len(token)))
    before, _, after = text.partition(first)
    parts = [_spelled(before, {}), f"<[{special_tokens[first]}]>", _spelled(after, special_tokens)]
    return " ".join(part for part in parts if part)
