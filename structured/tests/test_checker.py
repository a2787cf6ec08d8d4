from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from threading import Event

import pytest
from structured.tests.patient import PATIENT

from inferway_structured.checker import Checker
from inferway_structured.cost import is_costly
from inferway_structured.errors import ChecksBusyError, SpecError
from inferway_structured.helper.process import Limits as HelperLimits
from inferway_structured.limits import SpecLimits
from inferway_structured.spec import Asked, Kind, Spec

GOOD = Asked(Spec(Kind.JSON, '{"type":"object"}'), "guided_json")
BAD = Asked(Spec(Kind.JSON, '{"items":{"type":"x"}}'), "guided_json")
LARK = Asked(Spec(Kind.GRAMMAR, 'start: "a"\n'), "guided_grammar")
BAD_LARK = Asked(Spec(Kind.GRAMMAR, "start: foo\n"), "guided_grammar")


@pytest.fixture
def checker() -> Iterator[Checker]:
    checker = Checker(helper_limits=PATIENT)
    yield checker
    checker.close()


@pytest.mark.parametrize("asked", [GOOD, LARK])
def test_a_good_spec_passes_and_is_known_then(checker: Checker, asked: Asked) -> None:
    checker.check_now(asked)
    checker.check_now(asked)

    assert (checker.stats.checked, checker.stats.known, checker.stats.refused) == (1, 1, 0)


@pytest.mark.parametrize("asked", [BAD, BAD_LARK])
def test_a_bad_one_is_refused_each_time_and_checked_once(checker: Checker, asked: Asked) -> None:
    words = set()
    for _ in range(3):
        with pytest.raises(SpecError) as refused:
            checker.check_now(asked)
        words.add(str(refused.value))

    assert len(words) == 1
    assert (checker.stats.checked, checker.stats.known, checker.stats.refused) == (1, 2, 1)


def test_an_error_says_the_place_in_this_request(checker: Checker) -> None:
    elsewhere = Asked(BAD.spec, "response_format/json_schema/schema")
    with pytest.raises(SpecError):
        checker.check_now(BAD)

    with pytest.raises(SpecError) as refused:
        checker.check_now(elsewhere)

    assert refused.value.param == "response_format/json_schema/schema/items/type"
    assert refused.value.keyword == "type"


async def test_who_asks_for_the_same_joins(checker: Checker) -> None:
    await asyncio.gather(*(checker.check(LARK) for _ in range(20)))

    stats = checker.stats
    assert stats.checked == 1
    assert stats.joined + stats.known == 19


async def test_who_leaves_takes_nothing_from_who_stays(checker: Checker) -> None:
    leaves = asyncio.create_task(checker.check(LARK))
    stays = asyncio.create_task(checker.check(LARK))
    await asyncio.sleep(0)

    leaves.cancel()

    await stays
    assert checker.stats.checked == 1
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_too_many_that_wait_are_refused_and_none_passes_unchecked() -> None:
    checker = Checker(max_waiting=2, helper_limits=PATIENT)
    held = Event()
    checker._thread.submit(held.wait)
    specs = [Asked(Spec(Kind.JSON, json.dumps({"title": str(i)})), "x") for i in range(3)]
    waiting = [asyncio.create_task(checker.check(one)) for one in specs[:2]]
    await asyncio.sleep(0)

    with pytest.raises(ChecksBusyError, match="2 shapes wait to be checked"):
        await checker.check(specs[2])
    held.set()

    await asyncio.gather(*waiting)
    await checker.check(specs[2])
    assert checker.stats.busy == 1
    checker.close()


async def test_what_is_known_needs_no_thread(checker: Checker) -> None:
    await checker.check(GOOD)
    held = Event()
    checker._thread.submit(held.wait)

    await checker.check(GOOD)

    held.set()


def test_verdicts_are_bounded_in_number() -> None:
    checker = Checker(max_entries=3, helper_limits=PATIENT)
    for i in range(10):
        checker.check_now(Asked(Spec(Kind.CHOICE, f'["{i}"]'), "x"))

    assert checker.stats.entries == 3
    checker.close()


def test_what_is_kept_of_a_refusal_is_short(checker: Checker) -> None:
    name = "x" * 100_000
    schema = json.dumps({"properties": {name: {"type": "nonsense"}}})

    with pytest.raises(SpecError) as refused:
        checker.check_now(Asked(Spec(Kind.JSON, schema), "x"))

    assert len(str(refused.value)) + len(refused.value.place) < 2_000


# What no count of ours sees, and llguidance recurses into until its stack ends.
HOSTILE = Asked(
    Spec(
        Kind.GRAMMAR,
        "start: r0\n" + "".join(f"r{i}: X r{i + 1}\n" for i in range(4000)) + "r4000: X\nX: /x/\n",
    ),
    "guided_grammar",
)
WIDE = SpecLimits(max_rules=10_000, max_grammar_bytes=1 << 20)


def test_a_check_that_brings_the_helper_down_is_a_refusal_and_known() -> None:
    checker = Checker(WIDE, helper_limits=PATIENT)

    for _ in range(2):
        with pytest.raises(SpecError, match="guided_grammar: brings down"):
            checker.check_now(HOSTILE)
    checker.check_now(LARK)

    assert (checker.stats.killed, checker.stats.checked) == (1, 2)
    checker.close()


def test_too_much_cpu_time_is_a_refusal_and_too_long_a_time_says_that_the_machine_is_busy() -> None:
    patterns = {"allOf": [{"type": "string", "pattern": f"x{i}"} for i in range(20)]}
    slow = Asked(Spec(Kind.GRAMMAR, f"start: %json {json.dumps(patterns)}\n"), "guided_grammar")
    roomy = HelperLimits(memory_bytes=8 << 30, cpu_seconds=60, wall_seconds=60, niceness=0)
    limits = SpecLimits(max_conjoined=100)
    with closing(Checker(limits, helper_limits=replace(roomy, wall_seconds=0.1))) as checker:
        for _ in range(2):
            with pytest.raises(ChecksBusyError, match=r"took more than 0\.1 s, for lack of CPU"):
                checker.check_now(slow)

        assert (checker.stats.killed, checker.stats.busy, checker.stats.refused) == (2, 2, 0)
    with closing(Checker(limits, helper_limits=replace(roomy, cpu_seconds=0.1))) as checker:
        for _ in range(2):
            with pytest.raises(SpecError, match="takes more processor time than"):
                checker.check_now(slow)

        assert (checker.stats.killed, checker.stats.busy, checker.stats.refused) == (1, 0, 1)


def test_after_closing_a_spec_is_busy_not_passed() -> None:
    checker = Checker(helper_limits=PATIENT)
    checker.helper.close()

    with pytest.raises(ChecksBusyError, match="cannot be checked now"):
        checker.check_now(LARK)
    checker.close()


def test_limits_reach_the_helper() -> None:
    checker = Checker(SpecLimits(max_rules=1), helper_limits=PATIENT)

    with pytest.raises(SpecError, match="2 rules, at most 1"):
        checker.check_now(Asked(Spec(Kind.GRAMMAR, 'start: a\na: "a"\n'), "x"))
    checker.close()


@pytest.mark.parametrize(
    ("spec", "costly"),
    [
        (Spec(Kind.JSON, '{"pattern":"^[0-9]{4}-[0-9]{2}$"}'), False),
        (Spec(Kind.JSON, '{"pattern":"x{1,300}"}'), True),
        (Spec(Kind.JSON, '{"pattern":"(x{9}){9}"}'), True),
        (Spec(Kind.JSON, '{"title":"' + "x" * 9000 + '"}'), False),
        (Spec(Kind.JSON, '{"title":"' + "x" * 33_000 + '"}'), True),
        (Spec(Kind.JSON, json.dumps({"allOf": [{"items": {}}] * 800})), True),
        (Spec(Kind.JSON, '{"pattern":"' + "x" * 5000 + '"}'), True),
        (Spec(Kind.JSON, json.dumps({"pattern": r"\w" * 61})), True),
        (Spec(Kind.REGEX, r"\w" * 60), False),
        (Spec(Kind.JSON, json.dumps({"pattern": r"\p{L}" * 11})), True),
        (Spec(Kind.JSON, '{"unevaluatedProperties":false}'), True),
        (Spec(Kind.CHOICE, '["a"]'), False),
        (LARK.spec, True),
        (Spec(Kind.STRUCTURAL_TAG, '{"format":{"type":"grammar"}}'), True),
    ],
)
def test_what_goes_to_the_helper(spec: Spec, costly: bool) -> None:
    assert is_costly(spec) is costly


def test_importing_what_the_plugin_needs_loads_no_library() -> None:
    code = (
        "import sys; before = set(sys.modules);"
        "import inferway_structured.requests, inferway_structured.checker,"
        " inferway_structured.check, inferway_structured.valid;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "['inferway_structured']"
