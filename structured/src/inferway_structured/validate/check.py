"""Spec -> valid and within limits, or SpecError with the place and what is allowed. Pure.

No tokenizer is needed and nothing is compiled, so a gateway can say it before any engine sees the
request. `library.GrammarLibrary` does it off the event loop, `verdicts.Verdicts` once per spec.

What a client sends bounds the time: what could be long is counted first (limits.py), and what
only a library can judge (grammars) is judged where it can be killed (`check_packed`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inferway_structured.backends.schemas.nodes import parsed
from inferway_structured.backends.schemas.numbers import check_grammar_numbers
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Spec, unpacked
from inferway_structured.validate.ebnf import check_ebnf, is_ebnf
from inferway_structured.validate.json_schema_drafts import regex_fault
from inferway_structured.validate.keywords import pointer
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.validate.schemas import check_nesting, check_pattern, check_schema

DEFAULT = SpecLimits()
CHECK = f"{__name__}:check_packed"


def check(spec: Spec, limits: SpecLimits = DEFAULT) -> None:
    """Raises SpecError; `place` is a pointer into the spec. What could only be left out passes:
    whoever compiles leaves it out and says so."""
    size = len(spec.text) if spec.text.isascii() else len(spec.text.encode())
    if size > limits.max_bytes:
        raise SpecError(f"{size} bytes, at most {limits.max_bytes}")
    whitespace = spec.options.whitespace_pattern
    if whitespace is not None:
        _check_regex(whitespace, limits, "whitespace_pattern: ")
    match spec.kind:
        case Kind.JSON:
            check_schema(parsed(spec.text), limits, spec.text)
        case Kind.REGEX:
            _check_regex(spec.text, limits)
        case Kind.CHOICE:
            num = len(json.loads(spec.text))
            if num > limits.max_choices:
                words = f"{num} choices, at most {limits.max_choices}"
                raise SpecError(words, keyword="choice")
        case Kind.GRAMMAR:
            check_grammar(spec.text, limits)
        case Kind.STRUCTURAL_TAG:
            _check_tag(json.loads(spec.text), limits)
        case Kind.JSON_OBJECT:
            pass


def check_packed(argument: bytes) -> bytes:
    """Check a packed spec with its `limits`, in a helper process: where libraries' words for time
    and memory are not trusted, this may be killed instead of us. Return a SpecError's words, place
    and keyword as JSON; empty when there is none."""
    given = json.loads(argument)
    try:
        check(unpacked(given), SpecLimits(**given["limits"]))
    except SpecError as e:
        return json.dumps([str(e), e.place, e.keyword]).encode()
    return b""


def _check_regex(text: str, limits: SpecLimits, before: str = "") -> None:
    if "\x00" in text:
        raise SpecError(f"{before}holds a NUL character, which no answer can hold")
    try:
        check_pattern(text, limits, "", "regex", required=True)
    except SpecError as e:
        raise SpecError(f"{before}{e}", keyword="regex") from None
    fault = regex_fault(text)
    if fault is not None:
        words = f"{before}not a regular expression that can be followed: {fault}"
        raise SpecError(words, keyword="regex")


def check_grammar(text: str, limits: SpecLimits) -> None:
    """Check a grammar in Lark or EBNF, told apart as vLLM does. Raises SpecError with the library's
    words, which name line and column. Lark may take long: call it where it can be killed."""
    if len(text) > limits.max_grammar_bytes:
        raise SpecError(
            f"{len(text)} characters, at most {limits.max_grammar_bytes} in a grammar",
            keyword="grammar",
        )
    num_rules = text.count("::=") or sum(":" in line for line in text.splitlines())
    if num_rules > limits.max_rules:
        raise SpecError(f"{num_rules} rules, at most {limits.max_rules}", keyword="grammar")
    if is_ebnf(text):
        check_ebnf(text, limits.max_items)
        return
    _check_json_within(text, limits)
    check_grammar_numbers(text)
    import llguidance

    try:
        grammar = llguidance.grammar_from("lark", text)
        is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    except ValueError as e:
        is_error, messages = True, [str(e)]
    if is_error:
        words = " ".join(str(messages[0]).split("\n", 1)[0].split())[:200]
        raise SpecError(f"not a Lark grammar: {words}", keyword="grammar")


def _check_json_within(text: str, limits: SpecLimits) -> None:
    """Schemas that a Lark grammar holds: `%json {...}`."""
    for found in re.finditer(r"%json\s*(?=\{)", text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue  # llguidance says so, with the line
        try:
            check_schema(schema, limits)
        except SpecError as e:
            line = text.count("\n", 0, found.start()) + 1
            raise SpecError(f"line {line}: %json: {e}", keyword="grammar") from None


def _check_tag(tag: dict[str, Any], limits: SpecLimits) -> None:
    """Each shape in it; `structures` and `triggers` themselves were read before (spec.py)."""
    check_nesting(tag, limits, _TAG_WRAPPERS)
    for i, structure in enumerate(tag.get("structures", ())):
        with _within(["structures", i, "schema"]):
            check_schema(structure["schema"], limits)
    waiting: list[tuple[list[str | int], Any]] = [(["format"], tag.get("format"))]
    while waiting:
        steps, item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(([*steps, i], child) for i, child in enumerate(item))
        elif isinstance(item, dict):
            _check_format(steps, item, limits)
            waiting.extend(
                ([*steps, name], child)
                for name, child in item.items()
                if name not in ("json_schema", "pattern", "grammar")
            )


_TAG_WRAPPERS = 16  # levels more, as in vLLM (STRUCTURAL_TAG_WRAPPER_NESTING)


def _check_format(steps: list[str | int], item: dict[str, Any], limits: SpecLimits) -> None:
    """Check one of xgrammar's formats. Those that hold no shape are the engine's to judge."""
    kind = item.get("type")
    if kind not in ("json_schema", "regex", "grammar"):
        return
    name = "pattern" if kind == "regex" else str(kind)
    value = item.get(name)
    place = [*steps, name]
    if kind == "json_schema" and isinstance(value, dict | bool):
        with _within(place):
            check_schema(value, limits)
        return
    if kind == "json_schema" or not isinstance(value, str):
        raise SpecError(f"{pointer(place)}: is missing or of another type", place=pointer(place))
    with _within(place):
        if kind == "regex":
            _check_regex(value, limits)
        else:
            check_grammar(value, limits)


@contextmanager
def _within(steps: list[str | int]) -> Iterator[None]:
    """Have what is refused in there say its place in the whole."""
    try:
        yield
    except SpecError as e:
        place, words = pointer(steps), str(e)
        joint = "" if e.place and words.startswith(e.place) else ": "
        raise SpecError(
            f"{place}{joint}{words}", place=place + e.place, keyword=e.keyword
        ) from None
