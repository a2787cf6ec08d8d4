"""Checks of shapes by the libraries themselves, once per spec and bounded in time and memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structured.tests.patient import PATIENT

from inferway_structured.compile.cost import is_costly
from inferway_structured.errors import ChecksBusyError, SpecError
from inferway_structured.library import GrammarLibrary
from inferway_structured.sandbox.process import Limits as HelperLimits
from inferway_structured.spec import Kind, OutputConstraint, Spec
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.verdicts import Verdicts

GOOD = OutputConstraint(Spec(Kind.JSON, '{"type":"object"}'), "guided_json")
BAD = OutputConstraint(Spec(Kind.JSON, '{"items":{"type":"x"}}'), "guided_json")
LARK = OutputConstraint(Spec(Kind.GRAMMAR, 'start: "a"\n'), "guided_grammar")
BAD_LARK = OutputConstraint(Spec(Kind.GRAMMAR, "start: foo\n"), "guided_grammar")


class Checks:
    """The service, asked only whether a spec is valid."""

    def __init__(self, library: GrammarLibrary) -> None:
        self.verdicts = Verdicts(library, quarantine_seconds=60.0)
        self.stats = library.helpers["structured"].stats

    async def check(self, asked: OutputConstraint) -> None:
        await self.verdicts.find(asked, compiles=False)

    async def refusal(self, asked: OutputConstraint) -> SpecError:
        with pytest.raises(SpecError) as refused:
            await self.check(asked)
        return refused.value


@pytest.fixture
async def checks() -> AsyncIterator[Checks]:
    made = Checks(GrammarLibrary(PATIENT))
    yield made
    await made.verdicts.close()


async def test_a_good_spec_passes_and_is_checked_once(checks: Checks) -> None:
    await checks.check(GOOD)
    for _ in range(2):
        await checks.check(LARK)

    assert checks.stats.jobs == 1


@pytest.mark.parametrize("asked", [BAD, BAD_LARK])
async def test_a_bad_one_is_refused_each_time_in_the_same_words(
    checks: Checks, asked: OutputConstraint
) -> None:
    words = {str(await checks.refusal(asked)) for _ in range(3)}

    assert len(words) == 1
    assert checks.stats.jobs == (asked is BAD_LARK)


async def test_an_error_says_the_place_in_this_request(checks: Checks) -> None:
    elsewhere = OutputConstraint(BAD.spec, "response_format/json_schema/schema")
    await checks.refusal(BAD)

    refused = await checks.refusal(elsewhere)

    assert refused.param == "response_format/json_schema/schema/items/type"
    assert refused.keyword == "type"


async def test_who_asks_for_the_same_joins(checks: Checks) -> None:
    await asyncio.gather(*(checks.check(LARK) for _ in range(20)))

    assert checks.stats.jobs == 1


async def test_who_leaves_takes_nothing_from_who_stays(checks: Checks) -> None:
    leaves = asyncio.create_task(checks.check(LARK))
    stays = asyncio.create_task(checks.check(LARK))
    await asyncio.sleep(0)

    leaves.cancel()

    await stays
    assert checks.stats.jobs == 1
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_what_is_kept_of_a_refusal_is_short(checks: Checks) -> None:
    name = "x" * 100_000
    schema = json.dumps({"properties": {name: {"type": "nonsense"}}})

    refused = await checks.refusal(OutputConstraint(Spec(Kind.JSON, schema), "x"))

    assert len(str(refused)) + len(refused.place) < 2_000


# What no count of ours sees, and llguidance recurses into until its stack ends.
HOSTILE = OutputConstraint(
    Spec(
        Kind.GRAMMAR,
        "start: r0\n" + "".join(f"r{i}: X r{i + 1}\n" for i in range(4000)) + "r4000: X\nX: /x/\n",
    ),
    "guided_grammar",
)
WIDE = SpecLimits(max_rules=10_000, max_grammar_bytes=1 << 20)


async def test_a_check_that_brings_the_helper_down_is_a_refusal_and_known() -> None:
    checks = Checks(GrammarLibrary(PATIENT, limits=WIDE))

    for _ in range(2):
        assert str(await checks.refusal(HOSTILE)).startswith("guided_grammar: brings down")
    await checks.check(LARK)

    assert (sum(checks.stats.kills.values()), checks.stats.jobs) == (1, 2)
    await checks.verdicts.close()


PATTERNS = {"allOf": [{"type": "string", "pattern": f"x{i}"} for i in range(20)]}
SLOW = OutputConstraint(
    Spec(Kind.GRAMMAR, f"start: %json {json.dumps(PATTERNS)}\n"), "guided_grammar"
)
ROOMY = HelperLimits(memory_bytes=8 << 30, cpu_seconds=60, wall_seconds=60, niceness=0)


async def test_too_long_a_time_says_that_the_machine_is_busy() -> None:
    short = replace(ROOMY, wall_seconds=0.1)
    checks = Checks(GrammarLibrary(short, limits=SpecLimits(max_conjoined=100)))

    for _ in range(2):
        with pytest.raises(ChecksBusyError, match=r"took more than 0\.1 s, for lack of CPU"):
            await checks.check(SLOW)

    assert checks.stats.kills == {"wall": 2}
    await checks.verdicts.close()


async def test_too_much_cpu_time_is_a_refusal() -> None:
    short = replace(ROOMY, cpu_seconds=0.1)
    checks = Checks(GrammarLibrary(short, limits=SpecLimits(max_conjoined=100)))

    for _ in range(2):
        assert "takes more processor time than" in str(await checks.refusal(SLOW))

    assert checks.stats.kills == {"cpu": 1}
    await checks.verdicts.close()


async def test_after_closing_a_spec_is_busy_not_passed(checks: Checks) -> None:
    checks.verdicts.library.helpers["structured"].close()

    with pytest.raises(ChecksBusyError, match="cannot be checked now"):
        await checks.check(LARK)


async def test_limits_reach_the_helper() -> None:
    checks = Checks(GrammarLibrary(PATIENT, limits=SpecLimits(max_rules=1)))

    refused = await checks.refusal(OutputConstraint(Spec(Kind.GRAMMAR, 'start: a\na: "a"\n'), "x"))

    assert "2 rules, at most 1" in str(refused)
    await checks.verdicts.close()


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
        "import inferway_structured.requests, inferway_structured.library,"
        " inferway_structured.validate.check, inferway_structured.validate.validator;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    # vLLM has loaded msgspec, too
    assert out.stdout.strip() == "['inferway_structured', 'msgspec', 'typing_extensions']"
