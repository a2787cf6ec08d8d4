"""A structural tag as a Lark grammar of llguidance's.

Text goes until a word that ends it or begins a tag: both together are one lexeme that is as short
as it can be, because a lexer never goes back to where a text might have ended before. (Its own
StructTag has text with triggers alone, and none of the other formats.)

What is not written here (tokens by their ids, text of so many tokens, EBNF, and some XML) is
xgrammar's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from inferway_structured.errors import SpecError
from inferway_structured.validate.keywords import ANNOTATIONS
from inferway_structured.validate.respelled import ascii_classes

_ANYTHING = "/(?s:.*)/"

Pieces = tuple[str | int, ...]  # text, and special tokens by their number
Tag = Mapping[str, Any]


def tag_grammar(text: str, ways: Mapping[str, object], special_tokens: Mapping[str, int]) -> str:
    """Return a tag's grammar; `ways`: how JSON may be written. Raises SpecError if it has none."""
    return _Writer(ways, special_tokens).written(format_of(json.loads(text)))


def format_of(tag: Tag) -> Tag:
    """Return the format of a tag of either form: the older one is text with triggers."""
    if "structures" not in tag:
        found: Tag = tag["format"]
        return found
    tags = [
        {
            "type": "tag",
            "begin": structure["begin"],
            "content": {"type": "json_schema", "json_schema": structure["schema"]},
            "end": structure["end"],
        }
        for structure in tag["structures"]
    ]
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}


class _Writer:
    """Each method returns what stands in a rule. `ends`: words of which one follows at once; what
    is free text goes as far as that."""

    def __init__(self, ways: Mapping[str, object], special_tokens: Mapping[str, int]) -> None:
        self._ways = ways
        self._special_tokens = special_tokens
        self._rules: dict[str, str] = {}  # what they say -> their name; equal ones are one
        self._formats: dict[str, Callable[[Tag, Sequence[Pieces]], str]] = {
            "const_string": self._const_string,
            "any_text": self._any_text,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "sequence": lambda one, ends: self._sequence(one["elements"], ends),
            "or": self._or,
            "tag": self._tag,
            "optional": lambda one, ends: self._repeated(one, "?", ends),
            "plus": lambda one, ends: self._repeated(one, "+", ends),
            "star": lambda one, ends: self._repeated(one, "*", ends),
            "tags_with_separator": self._tags_with_separator,
            "triggered_tags": self._triggered_tags,
        }

    def written(self, top: Tag) -> str:
        start = self._format(top)
        rules = (f"{name}{says}" for says, name in self._rules.items())
        return "\n".join(("%llguidance {}", f"start: {start or _NOTHING}", *rules))

    def _format(self, one: Tag, ends: Sequence[Pieces] = ()) -> str:
        write = self._formats.get(one.get("type", ""))
        if write is None:
            raise SpecError(f"structural tags of type {one.get('type')!r} cannot be kept")
        try:
            return write(one, ends)
        except (KeyError, TypeError, AttributeError):
            raise SpecError(f"not a structural tag of type {one['type']!r}") from None

    def _rule(self, says: str, kind: str = "rule") -> str:
        """The name of a rule, or of a terminal if `kind` is in capitals."""
        colon = "[lazy]: " if kind == "until" else ": "
        return self._rules.setdefault(colon + (says or _NOTHING), f"{kind}_{len(self._rules)}")

    # -------------------------------------------------------------------------- one after another

    def _const_string(self, one: Tag, ends: Sequence[Pieces]) -> str:
        return _in_turn(_spelled(self._pieces(one["value"])), _one_of(ends))

    def _sequence(self, elements: Sequence[Tag], ends: Sequence[Pieces]) -> str:
        if not elements:
            return _one_of(ends)
        first, *rest = elements
        if rest and rest[0]["type"] == "const_string" and rest[0]["value"]:
            until = [self._pieces(rest[0]["value"])]
            return _in_turn(self._format(first, until), self._sequence(rest[1:], ends))
        if rest:
            return _in_turn(self._format(first), self._sequence(rest, ends))
        return self._format(first, ends)

    def _or(self, one: Tag, ends: Sequence[Pieces]) -> str:
        return _either([self._format(each, ends) for each in one["elements"]])

    def _repeated(self, one: Tag, times: str, ends: Sequence[Pieces]) -> str:
        return _in_turn(f"({self._rule(self._format(one['content']))}){times}", _one_of(ends))

    def _tag(self, one: Tag, ends: Sequence[Pieces]) -> str:
        begin = _spelled(self._pieces(_text(one["begin"])))
        return self._rule(_in_turn(begin, self._rest(one), _one_of(ends)))

    def _rest(self, tag: Tag) -> str:
        """Return the rule of what comes after the beginning of a tag."""
        ends = tag["end"] if isinstance(tag["end"], list) else [tag["end"]]
        return self._format(tag["content"], [self._pieces(_text(end)) for end in ends])

    def _tags_with_separator(self, one: Tag, ends: Sequence[Pieces]) -> str:
        tag = self._rule(_either([self._tag(each, ()) for each in one["tags"]]))
        tags = tag
        if not one.get("stop_after_first"):
            tags = f"{tag} ({_in_turn(_spelled(self._pieces(one['separator'])), tag)})*"
        return _in_turn(tags if one.get("at_least_one") else f"({tags})?", _one_of(ends))

    # --------------------------------------------------------------------------------------- JSON

    def _json_schema(self, one: Tag, ends: Sequence[Pieces]) -> str:
        style, schema = one.get("style", "json"), one["json_schema"]
        if one.get("excludes") or (style != "json" and style not in _STYLES):
            raise SpecError("JSON in another style cannot be kept")
        if not schema and isinstance(schema, bool):
            raise SpecError("no answer can keep this schema")
        if style != "json":
            return _in_turn(self._xml(schema, _STYLES[style]), _one_of(ends))
        return _in_turn(self._json(schema if isinstance(schema, dict) else {}), _one_of(ends))

    def _json(self, schema: Mapping[str, Any]) -> str:
        return self._rule("%json " + json.dumps({**schema, "x-guidance": dict(self._ways)}), "json")

    def _xml(self, schema: Any, style: _Wrapper) -> str:
        properties = list(_arguments(schema))
        declared = [each.name for each in properties if each.name is not None]
        parts = []
        for each in properties:
            ways = [self._element(each.name, value, style, declared) for value in each.values]
            times = "" if each.is_required else "*" if each.name is None else "?"
            parts.append(f"({_either(list(dict.fromkeys(ways)))}){times}")
        return self._rule(_in_turn(*parts))

    def _element(
        self, name: str | None, value: _Value, style: _Wrapper, declared: Sequence[str]
    ) -> str:
        is_json = value.schema is not None
        after = (is_json and style.after_json) or style.after
        close = self._pieces(style.close)
        if value.words is not None:
            rest = _in_turn(_BLANKS, _spelled(self._pieces(value.words)), _BLANKS)
            rest = _in_turn(rest, _spelled(close))
        elif is_json:
            rest = _in_turn(_BLANKS, self._json(value.schema), _BLANKS, _spelled(close))
        else:
            rest = self._until((), close)
        return _in_turn(self._opened(name, style.before, after, declared), rest)

    def _opened(self, name: str | None, before: str, after: str, declared: Sequence[str]) -> str:
        """Up to the value. Text is one lexeme with the blanks before it, and with the name: a lexer
        never goes back to where a shorter one might have ended."""
        if name is not None:
            first, *rest = self._pieces(f"{before}{name}{after}")
            if isinstance(first, int):
                return _in_turn(_BLANKS, _spelled((first, *rest)))
            return _in_turn(
                self._rule(f"{_BLANKS_OF_LEXEME} {_spelled((first,))}", "OPEN"),
                _spelled(tuple(rest)),
            )
        known = " | ".join(json.dumps(one, ensure_ascii=False) for one in declared)
        other = self._rule(_NAME + (f" & ~({known})" if known else ""), "NAME")
        opening, closing = self._pieces(before), self._pieces(after)
        if any(isinstance(piece, int) for piece in (*opening, *closing)):
            return _in_turn(_BLANKS, _spelled(opening), other, _spelled(closing))
        words = f"{_BLANKS_OF_LEXEME} {_spelled(opening)} {other} {_spelled(closing)}"
        return self._rule(words, "OPEN")

    # --------------------------------------------------------------------------------------- text

    def _regex(self, one: Tag, ends: Sequence[Pieces]) -> str:
        """A special token may stand at its end alone: there is no text that spells it."""
        pattern, end = one["pattern"], ""
        for token, number in self._special_tokens.items():
            if token and pattern.endswith(spelled := token.replace("|", r"\|")):
                pattern, end = pattern.removesuffix(spelled), _spelled((number,))
        plain = pattern.replace("\\", "")
        if any(token in plain for token in self._special_tokens if token):
            raise SpecError("a special token inside a regular expression cannot be kept")
        terminal = self._rule(f"/{_SLASH.sub(_escaped, ascii_classes(pattern))}/", "REGEX")
        return _in_turn(terminal, end, _one_of(ends))

    def _any_text(self, one: Tag, ends: Sequence[Pieces]) -> str:
        if one.get("max_tokens") is not None or one.get("max_chars") is not None:
            raise SpecError("text of so many tokens or characters cannot be kept")
        return self._text(one.get("excludes") or [], ends)

    def _text(self, without: Sequence[str], ends: Sequence[Pieces]) -> str:
        if not any(ends):
            return self._words(without)
        beginnings = [end[0] for end in ends if end]
        return _either(
            [
                self._until(without, end)
                if end
                else self._words([*without, *(one for one in beginnings if isinstance(one, str))])
                for end in ends
            ]
        )

    def _until(self, without: Sequence[str], end: Pieces) -> str:
        """Text up to the end, and that."""
        first, *rest = end
        if isinstance(first, int):
            head = _in_turn(self._words(without), _spelled((first,)))
        else:
            head = self._rule(f"{self._words(without)} {json.dumps(first)}", "until")
        return _in_turn(head, _spelled(tuple(rest)))

    def _words(self, without: Sequence[str]) -> str:
        """The terminal of text in which these do not stand."""
        unwanted = sorted({word for word in without if word})
        if not unwanted:
            return self._rule(_ANYTHING, "TEXT")
        any_word = " | ".join(json.dumps(word, ensure_ascii=False) for word in unwanted)
        holding = self._rule(f"{_ANYTHING} ({any_word}) {_ANYTHING}", "WITH")
        return self._rule(f"{_ANYTHING} & ~{holding}", "TEXT")

    def _triggered_tags(self, one: Tag, ends: Sequence[Pieces]) -> str:
        triggers = sorted(one["triggers"], key=len, reverse=True)
        beginnings = [end[0] for end in ends if end]
        stops = [word for word in beginnings if isinstance(word, str)]
        without = [*triggers, *(one.get("excludes") or []), *stops]
        heads: dict[Pieces, list[str]] = {}
        for tag in one["tags"]:
            head, rest = self._triggered(tag["begin"], triggers)
            heads.setdefault(head, []).append(_in_turn(_spelled(rest), self._rest(tag)))
        after_text = self._rule(
            _either(
                [
                    _in_turn(self._until(without, head), _either(rests))
                    for head, rests in heads.items()
                ]
            )
        )
        tail = self._text(without, ends)
        if not one.get("at_least_one"):
            if one.get("stop_after_first"):
                return _either([_in_turn(after_text, _one_of(ends)), tail])
            return _in_turn(f"({after_text})*", tail)
        first = self._rule(_either([self._tag(tag, ()) for tag in one["tags"]]))
        if one.get("stop_after_first"):
            return _in_turn(first, _one_of(ends))
        return _in_turn(first, f"({after_text})*", tail)

    def _triggered(self, begin: str, triggers: Sequence[str]) -> tuple[Pieces, Pieces]:
        """Return what the text goes up to, and the rest of the tag's beginning."""
        trigger = next((one for one in triggers if begin.startswith(one)), None)
        if trigger is None:
            raise SpecError(f"no trigger begins {begin!r}", keyword="begin")
        first, *rest = self._pieces(begin)
        if isinstance(first, str) and len(first) > len(trigger):
            return (trigger,), (first[len(trigger) :], *rest)
        return (first,), tuple(rest)

    def _pieces(self, text: str) -> Pieces:
        found = [token for token in self._special_tokens if token and token in text]
        if not found:
            return (text,) if text else ()
        first = min(found, key=lambda token: (text.index(token), -len(token)))
        before, _, after = text.partition(first)
        return (*((before,) if before else ()), self._special_tokens[first], *self._pieces(after))


_NOTHING = '""'
_BLANKS_OF_LEXEME = r"/[ \n\r\t]{0,4}/"
_BLANKS = r"(/[ \n\r\t]{1,4}/)?"
_NAME = r"/[a-zA-Z_][a-zA-Z0-9_.-]*/"
_SLASH = re.compile(r"\\.|[/\n\r]", re.DOTALL)


def _escaped(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\r": r"\r"}.get(found[0], found[0])


def _text(word: object) -> str:
    if not isinstance(word, str):
        raise SpecError("tokens by their ids cannot be kept")
    return word


def _spelled(pieces: Pieces) -> str:
    return " ".join(
        json.dumps(piece, ensure_ascii=False) if isinstance(piece, str) else f"<[{piece}]>"
        for piece in pieces
    )


def _in_turn(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _either(ways: Sequence[str]) -> str:
    """Return a rule of one of these; an empty one makes the others optional."""
    some = list(dict.fromkeys(way for way in ways if way))
    if not some:
        return ""
    joined = some[0] if len(some) == 1 else f"({' | '.join(some)})"
    return joined if all(ways) else f"({joined})?"


def _one_of(ends: Sequence[Pieces]) -> str:
    return _either([_spelled(end) for end in ends]) if ends else ""


# Arguments of a call as XML: one element a property, in the schema's order. Strings stand there as
# they are, everything else as JSON.


class _Wrapper(NamedTuple):
    """The texts before and after a property's name and its value."""

    before: str
    after: str
    close: str
    after_json: str = ""  # of a value that is no string, where that differs


_STYLES: Mapping[str, _Wrapper] = {
    "qwen_xml": _Wrapper("<parameter=", ">", "</parameter>"),
    "minimax_xml": _Wrapper('<parameter name="', '">', "</parameter>"),
    "glm_xml": _Wrapper("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
    "deepseek_xml": _Wrapper(
        *('<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>"),
        '" string="false">',
    ),
    "deepseek_v4_1_xml": _Wrapper(
        *('<｜DSML｜ parameter name="', '" string="true">', "</｜DSML｜ parameter>"),
        '" string="false">',
    ),
}
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "$defs"})


class _Value(NamedTuple):
    """One way to write a property's value; any text if it has neither member."""

    words: str | None = None
    schema: Any = None


class _Property(NamedTuple):
    name: str | None  # None: any that is not declared
    values: list[_Value]
    is_required: bool = False


def _arguments(schema: Any) -> Iterator[_Property]:
    """Raises SpecError for what is no plain object."""
    if schema is True or schema == {}:
        yield _Property(None, [_Value()])
        return
    said = _said(schema)
    properties, required = said.get("properties", {}), said.get("required", [])
    others = said.get("additionalProperties", True)
    is_plain = said.get("type") == "object" and not set(said) - _OBJECT
    if not is_plain or set(required) - set(properties) or not isinstance(others, bool):
        raise SpecError("arguments in XML that are no plain object cannot be kept")
    for name, inner in properties.items():
        yield _Property(name, list(_values(inner, said.get("$defs"))), name in required)
    if others:
        yield _Property(None, [_Value()])


def _values(schema: Any, definitions: Any) -> Iterator[_Value]:
    said = _said(schema)
    kinds = said.get("type")
    if not said:
        yield _Value()
    elif "enum" in said or "const" in said:
        if set(said) - {"enum", "const", "type"} or {"enum", "const"} <= set(said):
            raise SpecError("choices of arguments in XML with other keywords cannot be kept")
        for one in said.get("enum", [said.get("const")]):
            yield _Value(words=one if isinstance(one, str) else json.dumps(one))
    elif set(said) == {"anyOf"}:
        for one in said["anyOf"]:
            yield from _values(one, definitions)
    elif isinstance(kinds, list) and set(said) == {"type"}:
        for kind in kinds:
            yield from _values({"type": kind}, definitions)
    elif isinstance(kinds, str) and kinds != "string":
        yield _Value(schema={**said, **({"$defs": definitions} if definitions else {})})
    elif said == {"type": "string"}:
        yield _Value()
    else:
        raise SpecError("strings with keywords cannot be kept in XML")


def _said(schema: Any) -> dict[str, Any]:
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise SpecError("no answer can keep this schema")
    return {word: rule for word, rule in schema.items() if word not in ANNOTATIONS}
