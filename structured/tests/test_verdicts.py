"""The verdict service with the libraries themselves, as an engine's API server has it. What it owes
to tenants is tested where there are some (tests/routing/structured_gate)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structured.tests.patient import PATIENT

from inferway_structured.compile.compile_trial import LIMITS, Trial
from inferway_structured.errors import (
    ChecksBusyError,
    QuarantinedError,
    SaturatedError,
    SpecError,
)
from inferway_structured.library import GrammarLibrary
from inferway_structured.spec import Kind, OutputConstraint, Spec, json_spec
from inferway_structured.texts import AnswerText
from inferway_structured.turns import ANYBODY, FirstComeTurns, TokenBucket
from inferway_structured.verdicts import Verdicts

PLACE = "response_format/json_schema/schema"
NUMBER = OutputConstraint(json_spec({"type": "object", "required": ["n"]}, ""), PLACE)
SET = OutputConstraint(json_spec({"type": "array", "uniqueItems": True}, ""), PLACE, strict=True)
INVALID = OutputConstraint(json_spec({"type": "objekt"}, ""), PLACE)
REFUSED = OutputConstraint(json_spec({"type": "string", "enum": [1]}, ""), "guided_json")
BAD_GRAMMAR = OutputConstraint(Spec(Kind.GRAMMAR, "start: foo\n"), "guided_grammar")
TOWER = '{"type":"string"}'
for _ in range(9):
    TOWER = f'{{"oneOf":[{{"properties":{{"a":{TOWER}}}}},{{"properties":{{"b":{TOWER}}}}}]}}'
HEAVY = OutputConstraint(Spec(Kind.JSON, TOWER), PLACE)


def service(trial: Trial | None = None) -> Verdicts:
    return Verdicts(GrammarLibrary(PATIENT, trial=trial), quarantine_seconds=60.0)


@pytest.fixture
async def verdicts() -> AsyncIterator[Verdicts]:
    made = service()
    yield made
    await made.close()


async def test_a_request_is_told_what_is_kept_and_what_may_be_broken(verdicts: Verdicts) -> None:
    kept, unenforced = await verdicts.examine([NUMBER, SET])

    assert kept == [NUMBER, SET]
    assert [one.keyword for one in unenforced] == ["uniqueItems"]
    with pytest.raises(SpecError, match="'uniqueItems' cannot be enforced"):
        await verdicts.examine([SET], refuses_unenforced=True)


@pytest.mark.parametrize("asked", [INVALID, REFUSED])
async def test_what_cannot_be_kept_is_refused_with_its_place_unless_it_may_be_free(
    verdicts: Verdicts, asked: OutputConstraint
) -> None:
    tool = replace(asked, place="tools/0/function/parameters", tool="f")
    with pytest.raises(SpecError) as refused:
        await verdicts.examine([asked])

    kept, unenforced = await verdicts.examine([tool])

    assert (refused.value.param or "").startswith(asked.place)
    assert kept[0].free
    assert [one.keyword for one in unenforced] == [tool.place]


async def test_where_nothing_is_compiled_only_what_is_invalid_is_refused(
    verdicts: Verdicts,
) -> None:
    assert await verdicts.examine([REFUSED, SET], compiles=False) == ([REFUSED, SET], [])
    with pytest.raises(SpecError):
        await verdicts.examine([INVALID], compiles=False)
    assert len(verdicts._known) == 0


async def test_who_may_block_is_told_the_same(verdicts: Verdicts) -> None:
    here = await asyncio.to_thread(verdicts.verdict_now, HEAVY)  # of no event loop
    there = verdicts.verdict_now(HEAVY)

    assert here == there == await verdicts.verdict(HEAVY)
    for asked in (INVALID, REFUSED):
        with pytest.raises(SpecError) as waited:
            await verdicts.verdict(asked)
        with pytest.raises(SpecError) as blocked:
            verdicts.verdict_now(asked)
        assert str(blocked.value) == str(waited.value)


async def test_a_spec_whose_compile_is_killed_is_refused_without_another_try() -> None:
    trial = Trial(replace(LIMITS, cpu_seconds=0.02))
    verdicts = service(trial)
    with pytest.raises(QuarantinedError, match=r"took more than 0\.02 s of CPU time") as first:
        await verdicts.verdict(HEAVY)
    with pytest.raises(QuarantinedError) as again:
        verdicts.verdict_now(HEAVY)
    kept, _ = await verdicts.examine([replace(HEAVY, tool="f")])

    assert str(first.value) == str(again.value)
    assert trial.helper.stats.kills == {"cpu": 1}
    assert kept[0].free
    await verdicts.close()


async def test_what_is_killed_or_invalid_is_counted_and_checked_once() -> None:
    trial = Trial(replace(LIMITS, cpu_seconds=0.02))
    verdicts = service(trial)

    for asked in (HEAVY, BAD_GRAMMAR):
        asking = [verdicts.verdict(asked) for _ in range(5)]
        told = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, SpecError) for each in told)
        with pytest.raises(SpecError):
            verdicts.verdict_now(asked)

    assert list(verdicts.counts.refusals.snapshot().values()) == [1]
    assert verdicts.library.helpers["structured"].stats.jobs == 2
    await verdicts.close()


async def test_a_compile_that_lacked_cpu_may_be_tried_again() -> None:
    verdicts = service(Trial(replace(LIMITS, wall_seconds=0.02)))

    for _ in range(2):
        with pytest.raises(ChecksBusyError, match="try again"):
            await verdicts.verdict(HEAVY)
    with pytest.raises(ChecksBusyError):
        verdicts.verdict_now(HEAVY)

    assert len(verdicts.quarantine) == 0
    await verdicts.close()


async def test_an_answer_is_judged_and_counted(verdicts: Verdicts) -> None:
    assert await verdicts.is_valid([NUMBER], [AnswerText('{"n":1}')]) is True
    assert await verdicts.is_valid([NUMBER], [AnswerText("{}")]) is False
    assert await verdicts.is_valid([NUMBER], None) is None

    assert verdicts.counts.answers.snapshot() == {"true": 1, "false": 1, "unknown": 1}


async def test_an_explanation_says_who_refuses(verdicts: Verdicts) -> None:
    told = [
        await verdicts.explain(asked, refuses_unenforced=True)
        for asked in (NUMBER, INVALID, REFUSED, SET)
    ]

    by = [each["refused"] and each["refused"]["by"] for each in told]
    assert by == [None, "limits", "backends", "strict"]
    assert [each["place"] for each in told] == [PLACE, PLACE, REFUSED.place, PLACE]


async def test_turns_come_in_order_and_who_finds_no_room_is_refused() -> None:
    turns = FirstComeTurns(1, 2, 5.0)
    begun: list[int] = []
    go_on = asyncio.Event()

    async def work(number: int) -> None:
        async with turns.turn(ANYBODY):
            begun.append(number)
            await go_on.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert (begun, turns.num_waiting) == ([0], 2)
    with pytest.raises(SaturatedError, match="2 shapes of answers wait"):
        await work(3)
    go_on.set()
    await asyncio.gather(*tasks)

    assert begun == [0, 1, 2]


async def test_who_waits_for_a_turn_for_too_long_is_refused() -> None:
    turns = FirstComeTurns(1, 2, 0.01)
    async with turns.turn(ANYBODY):
        with pytest.raises(SaturatedError):
            async with turns.turn(ANYBODY):
                pass

    async with turns.turn(ANYBODY):
        assert turns.num_waiting == 0


def test_so_many_pass_at_once_and_each_second() -> None:
    now = [0.0]
    bucket = TokenBucket(20.0, lambda: now[0])

    at_once = [bucket.take() for _ in range(30)]
    now[0] = 0.1
    later = [bucket.take() for _ in range(3)]

    assert (at_once.count(True), later) == (20, [True, True, False])
