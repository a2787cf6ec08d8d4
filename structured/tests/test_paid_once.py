"""A shape costs the libraries' work once, little of Python's, and a look-up when it comes again.

Counted are calls of libraries and bytecode instructions, which no busy machine changes.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest
from structured.tests.compiling import smollm2
from structured.tests.lifelike import lifelike_schemas
from structured.tests.patient import PATIENT

from inferway_structured.backends.cascade import Cascade
from inferway_structured.backends.schemas.plain import as_it_came
from inferway_structured.errors import HeavyError, SpecError
from inferway_structured.library import GrammarLibrary
from inferway_structured.requests import key_of_body, key_of_fields, parse_constraints
from inferway_structured.spec import json_spec
from inferway_structured.turns import ANYBODY
from inferway_structured.validate.check import check
from inferway_structured.verdicts import Verdicts

CHAT = "/v1/chat/completions"
# Of CPython 3.11: 370 and 480 for a sub-schema, 382 for a request, on 2026-12-01.
MOST_TO_CHECK = 420
MOST_TO_COMPILE = 540
MOST_TO_LOOK_UP = 450  # however many shapes it has


class Counted:
    """The bytecode instructions of this package, and the library's functions that were called."""

    def __init__(self) -> None:
        self.instructions = 0
        self.calls: Counter[str] = Counter()

    @contextmanager
    def here(self) -> Iterator[None]:
        tracing, profiling = sys.gettrace(), sys.getprofile()
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(profiling)
            sys.settrace(tracing)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        self.instructions += event == "opcode"
        return self._trace

    def _profile(self, _: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            self.calls[getattr(called, "__qualname__", "")] += 1


def counted(work: Callable[[], object]) -> Counted:
    found = Counted()
    with found.here():
        work()
    return found


@pytest.fixture(scope="module")
def cascade() -> Cascade:
    made = Cascade(smollm2())
    made.compile_light(json_spec({}, ""))  # what a vocabulary is asked for once
    return made


def test_a_check_asks_no_grammar_library_and_a_compile_asks_it_once(cascade: Cascade) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}}
    spec = json_spec(schema, "")

    checked = counted(lambda: check(spec))
    compiled = counted(lambda: cascade.compile_light(spec))

    assert not [name for name in checked.calls if name.startswith("LLMatcher")]
    assert compiled.calls["LLMatcher.validate_grammar_with_warnings"] == 0
    assert compiled.calls["LLMatcher.grammar_from_json_schema"] == 1


def test_python_takes_few_instructions_for_a_sub_schema(cascade: Cascade) -> None:
    num_schemas = to_check = to_compile = 0
    for schema in lifelike_schemas(5, 120):
        spec = json_spec(schema, "")
        if as_it_came(spec.text) is None:
            continue
        try:
            checked = counted(partial(check, spec))
            compiled = counted(partial(cascade.compile_light, spec))
        except (SpecError, HeavyError):
            continue
        num_schemas += spec.text.count("{")
        to_check += checked.instructions
        to_compile += compiled.instructions

    assert num_schemas > 500
    assert to_check / num_schemas < MOST_TO_CHECK
    assert to_compile / num_schemas < MOST_TO_COMPILE


def tools(num: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    return {
        "tool_choice": "required",
        "tools": [
            {"type": "function", "function": {"name": f"f{at}", "parameters": schema}}
            for at in range(num)
        ],
    }


@pytest.mark.parametrize("num", [1, 100])
async def test_a_request_that_comes_again_costs_a_look_up_however_many_tools_it_has(
    num: int,
) -> None:
    fields = tools(num)
    body = json.dumps({"messages": ["x" * 1_000], **fields}).encode()
    verdicts = Verdicts(GrammarLibrary(PATIENT), quarantine_seconds=1.0)

    async def examine(key: bytes | None) -> object:
        asked = await verdicts.read_request(
            ANYBODY, key, parse_constraints, CHAT, fields, num_bytes=len(body)
        )
        return await verdicts.examine(asked, key=key)

    try:
        for key in (partial(key_of_fields, CHAT, fields), partial(key_of_body, CHAT, body)):
            first = await examine(key())
            found = Counted()
            with found.here():
                again = await examine(key())

            assert again is first
            assert found.instructions < MOST_TO_LOOK_UP
    finally:
        await verdicts.close()
