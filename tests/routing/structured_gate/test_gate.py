from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.routing.structured_gate.doubles import (
    CHAT,
    Clock,
    Engines,
    Words,
    answers,
    endpoints,
    make_gate,
    schema,
    target,
)

from inferway.config import StructuredSettings
from inferway.errors import ChecksBusyError, SpecError
from inferway.routing.structured_gate.gate import Gate
from inferway.routing.structured_gate.shape import Shape
from inferway.scheduling.plugin import RequestOutcome
from inferway_structured.requests import parse_constraints
from inferway_structured.texts import AnswerText

OURS = Engines(plugins={"e0", "e1"})
PLACE = "response_format/json_schema/schema"


async def check(gate: Gate, fields: dict[str, Any], *names: str, body_bytes: int = 100) -> Shape:
    shape = await gate.check(CHAT, fields, body_bytes, endpoints(*names or ("e0",)))
    assert shape is not None
    return shape


async def refusal(gate: Gate, fields: dict[str, Any], *names: str) -> SpecError:
    with pytest.raises(SpecError) as e:
        await check(gate, fields, *names)
    return e.value


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ],
)
async def test_what_asks_for_no_shape_passes(fields: dict[str, Any]) -> None:
    gate = make_gate(OURS)

    assert await gate.check(CHAT, fields, 100, endpoints("e0")) is None
    assert gate.counts.requests == {}


@pytest.mark.parametrize("body_bytes", [100, 1_000_000])
async def test_what_is_unreadable_is_refused_with_its_place(body_bytes: int) -> None:
    gate = make_gate()

    with pytest.raises(SpecError) as e:
        await check(gate, {"response_format": {"type": "json_schema"}}, body_bytes=body_bytes)

    assert e.value.param == "response_format/json_schema"
    assert gate.counts.requests == {("unreadable", "refused"): 1}


async def test_what_is_invalid_is_refused_whatever_engines_there_are() -> None:
    gate = make_gate(Engines())

    error = await refusal(gate, schema("invalid"))

    assert error.param == f"{PLACE}/type"
    assert gate.counts.requests == {("json", "refused"): 1}


async def test_what_no_backend_takes_is_refused_where_engines_have_our_plugin() -> None:
    error = await refusal(make_gate(OURS), schema("refused"))

    assert str(error) == f"{PLACE}/oneOf: 'oneOf' cannot be compiled"
    assert (error.param, error.keyword) == (f"{PLACE}/oneOf", "oneOf")
    assert await check(make_gate(Engines()), schema("refused"))


async def test_strict_with_a_keyword_that_cannot_be_enforced_is_refused_if_that_is_set() -> None:
    gate = make_gate(OURS, refuse_unenforced=True)

    error = await refusal(gate, schema("uniqueItems", strict=True))

    assert error.param == f"{PLACE}/properties/a b,c"
    assert error.keyword == "uniqueItems"
    assert await check(gate, schema("uniqueItems"))


@pytest.mark.parametrize("is_strict", [True, False])
async def test_what_cannot_be_enforced_is_named_to_the_client(is_strict: bool) -> None:
    shape = await check(make_gate(OURS), schema("uniqueItems", strict=is_strict))
    shape.on_attempt(target("e0"), 0.0)

    assert shape.on_head(200) == ((b"x-inferway-unenforced", b"/properties/a%20b%2Cc uniqueItems"),)
    assert shape.on_head(400) == ()


async def test_of_a_shape_that_is_enforced_whole_nothing_is_named() -> None:
    shape = await check(make_gate(OURS), schema("plain", strict=True))
    shape.on_attempt(target("e0"), 0.0)

    assert shape.on_head(200) == ()


async def test_what_a_stock_engine_enforces_is_not_known() -> None:
    """Strict or not: the gate has found the request valid, and says no more."""
    shape = await check(make_gate(), schema("uniqueItems", strict=True))
    shape.on_attempt(target("e0"), 0.0)

    assert shape.on_head(200) == ((b"x-inferway-unenforced", b"unknown"),)


async def test_in_a_mixed_fleet_the_engine_that_answers_decides_what_is_named() -> None:
    shape = await check(make_gate(Engines(plugins={"e1"})), schema("uniqueItems"), "e0", "e1")

    shape.on_attempt(target("e0"), 0.0)
    first = shape.on_head(200)
    shape.on_attempt(target("e1"), 0.0)

    assert first == ((b"x-inferway-unenforced", b"unknown"),)
    assert shape.on_head(200) == ((b"x-inferway-unenforced", b"/properties/a%20b%2Cc uniqueItems"),)


async def test_a_verdict_is_worked_out_once() -> None:
    library = Words()
    gate = make_gate(OURS, library)

    await asyncio.gather(*(check(gate, schema("plain")) for _ in range(5)))
    await check(gate, schema("plain"))
    for _ in range(2):
        await refusal(gate, schema("refused"))

    assert library.asked["verdict"] == 2


async def test_without_the_library_requests_pass_and_are_counted() -> None:
    gate = Gate(StructuredSettings(), None, OURS, clock=Clock())

    assert await gate.check(CHAT, schema("invalid"), 100, endpoints("e0")) is None
    assert await gate.check(CHAT, schema("large"), 1_000_000, endpoints("e0")) is None
    assert await gate.check(CHAT, {"response_format": 1}, 100, endpoints("e0")) is None
    assert await gate.check(CHAT, {"tools": [{}]}, 100, endpoints("e0")) is None
    assert gate.counts.requests == {
        ("json", "unchecked"): 1,
        ("unread", "unchecked"): 1,
        ("unreadable", "unchecked"): 2,
    }


async def test_a_check_that_fails_for_a_fault_of_ours_lets_the_request_pass() -> None:
    gate = make_gate(OURS)

    assert await gate.check(CHAT, schema("breaks"), 100, endpoints("e0")) is None
    assert gate.counts.requests == {("json", "unchecked"): 1}


async def test_what_kills_the_helper_is_refused_without_another_try_until_its_time_is_over() -> (
    None
):
    clock, library = Clock(), Words()
    gate = make_gate(Engines(), library, clock, trial_compile=True, quarantine_seconds=60)

    errors = [await refusal(gate, schema("hostile")) for _ in range(3)]

    assert {str(e) for e in errors} == {
        f"{PLACE}: is refused for a while: compiling it took more than 2 s of CPU time"
    }
    assert library.asked["trial"] == 1
    assert gate.counts.requests == {("json", "quarantined"): 3}
    clock.now = 61.0
    await refusal(gate, schema("hostile"))
    assert library.asked["trial"] == 2


async def test_without_a_helper_to_be_had_a_request_is_to_come_again() -> None:
    gate = make_gate(OURS, trial_compile=True)

    with pytest.raises(ChecksBusyError):
        await check(gate, schema("busy"))
    with pytest.raises(ChecksBusyError):  # it is no verdict
        await check(gate, schema("busy"))
    with pytest.raises(ChecksBusyError):  # the machine may have been busy
        await check(gate, schema("slow"))
    assert gate.counts.requests == {("json", "busy"): 3}


async def test_a_trial_works_out_the_verdict_where_it_can_be_killed() -> None:
    library = Words()
    gate = make_gate(OURS, library, trial_compile=True)

    assert (await check(gate, schema("uniqueItems"))).unenforced
    await refusal(gate, schema("refused"))
    assert library.asked["verdict"] == 0


async def test_without_trials_only_what_may_take_long_is_worked_out_there() -> None:
    library = Words()
    gate = make_gate(OURS, library)

    await check(gate, schema("plain"))
    await check(gate, schema("costly"))
    error = await refusal(gate, schema("costly hostile"))

    assert (library.asked["verdict"], library.asked["trial"]) == (1, 2)
    assert "took more than 2 s" in str(error)


async def test_what_turns_out_to_be_heavy_is_worked_out_there_too() -> None:
    library = Words()
    gate = make_gate(OURS, library)

    await check(gate, schema("heavy"))

    assert (library.asked["verdict"], library.asked["trial"]) == (1, 1)


async def test_for_stock_engines_nothing_is_worked_out_without_trials() -> None:
    library = Words()

    await check(make_gate(Engines(), library), schema("costly"))

    assert (library.asked["verdict"], library.asked["trial"]) == (0, 0)


SAID_TRUE, SAID_FALSE = [AnswerText("{}")], [AnswerText("{}"), AnswerText("no")]


@pytest.mark.parametrize(
    ("said", "valid"), [(SAID_TRUE, True), (SAID_FALSE, False), (None, None), ([], None)]
)
async def test_an_answer_is_judged_and_counted(
    said: list[AnswerText] | None, valid: bool | None
) -> None:
    gate = make_gate()
    shape = await check(gate, schema("plain"))

    assert await shape.judge(said) is valid
    assert answers(gate) == {str(valid).lower() if valid is not None else "unknown": 1}


async def test_a_call_is_held_against_the_schema_of_its_tool() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"x-title": name}}}
        for name in ("f", "unsure")
    ]
    shape = await check(make_gate(), {"tools": tools, "tool_choice": "required"})

    assert await shape.judge([AnswerText("{}", "f")]) is True
    assert await shape.judge([AnswerText("[]", "f"), AnswerText("{}", "unsure")]) is False
    assert await shape.judge([AnswerText("{}", "f"), AnswerText("{}", "unsure")]) is None
    assert await shape.judge([AnswerText("{}", "another")]) is None


@pytest.mark.parametrize("word", ["invalid", "refused"])
async def test_a_tool_that_is_not_strict_may_have_any_schema_and_its_arguments_are_named(
    word: str,
) -> None:
    function: dict[str, Any] = {"name": "f", "parameters": {"x-title": word}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    function["strict"] = False

    shape = await check(make_gate(OURS), tools)
    shape.on_attempt(target("e0"), 0.0)

    assert shape.on_head(200) == ((b"x-inferway-unenforced", b"tools/0/function/parameters"),)
    assert await shape.judge([AnswerText("{}", "f")]) is None
    function["strict"] = True
    error = await refusal(make_gate(OURS), tools)
    assert (error.param or "").startswith("tools/0/function/parameters/")


async def lose(gate: Gate, engines: Engines, name: str, fields: dict[str, Any]) -> None:
    """A request goes to the engine, which is lost with it."""
    shape = await check(gate, fields, name)
    shape.on_attempt(target(name), 0.0)
    engines.down.add(name)
    shape.on_end(RequestOutcome("upstream_error", 0.0))
    async with asyncio.timeout(5):
        while gate.num_suspected:
            await asyncio.sleep(0.05)


async def test_what_two_engines_were_lost_with_is_refused() -> None:
    engines = Engines(plugins={"e0", "e1"})
    gate = make_gate(engines)

    await lose(gate, engines, "e0", schema("hostile"))
    await lose(gate, engines, "e1", schema("hostile"))

    error = await refusal(gate, schema("hostile"))
    assert "2 engines were lost while they worked on it alone" in str(error)
    assert gate.verdicts is not None
    told = await gate.explain(gate.verdicts, parse_constraints(CHAT, schema("hostile"))[0])
    assert told["refused"]["reason"] == str(error)
    assert await check(gate, schema("another"))


async def test_an_engine_that_was_lost_with_others_there_is_nobodys_fault() -> None:
    engines = Engines(in_flight={"e0": 1, "e1": 1})
    gate = make_gate(engines)

    await lose(gate, engines, "e0", schema("plain"))
    await lose(gate, engines, "e1", schema("plain"))

    assert await check(gate, schema("plain"))


async def test_a_shape_that_was_never_answered_is_tried_on_two_engines_at_most() -> None:
    gate = make_gate()
    shape = await check(gate, schema("plain"))
    assert shape.may_try == 2

    shape.on_attempt(target("e0"), 0.0)
    shape.on_head(200)
    shape.on_end(RequestOutcome("ok", 1.0))

    assert (await check(gate, schema("plain"))).may_try is None
