"""What we take and refuse, held against what vLLM 0.32 serves of 1,328 shapes with structured
output of its own (tests/engines/record_shapes.py; a fleet test records it again and compares).

served by both
refused by both
refused by vLLM only   nothing is wrong with that
refused by us only     ON_PURPOSE has the reason of each; docs/structured.md has the same table
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests.stored import Row, rows

from inferway_structured.backends.cascade import verdict
from inferway_structured.errors import SpecError
from inferway_structured.requests import parse_constraints
from inferway_structured.validate.check import check

SHAPES = Path(__file__).with_name("vllm_shapes.jsonl.xz")
DOCS = Path(__file__).parents[2] / "docs" / "structured.md"
CHAT = "/v1/chat/completions"

# What our error says -> why we refuse what vLLM serves.
ON_PURPOSE = {
    r"is not of type|not valid under any|has less than|is not a number": "no JSON Schema",
    r"not a regular expression that can be followed: un(closed|opened) group": "no pattern",
    r"NaN is no number|holds (a number out of range|\\ud800)": "NaN and such in a schema",
    r"no answer can keep this schema|Unsatisfiable schema": "no answer is valid",
    r"leads nowhere": "a reference to nowhere, which vLLM's library takes for anything",
    r"refers to another document": "nothing is fetched; vLLM's library takes it for anything",
    r"leads back to itself": "no answer can be held against it",
    r"lookarounds not supported yet; (Start|End)": "an anchor inside, which nothing matches",
    r"unrecognized escape sequence": "an escape that dialects read differently, or none knows",
    r"backreferences are not supported": r"\0 and \01",
    r"not a Lark grammar: .* Expected token": "rules with capitals, which Lark does not have",
}


@cache
def shapes() -> list[tuple[Row, str | None]]:
    """With what we refuse it for."""
    return [(row, refusal(row)) for row in rows(SHAPES)]


def refusal(row: Row) -> str | None:
    try:
        (one,) = parse_constraints(CHAT, {"structured_outputs": {row["kind"]: row["value"]}})
        check(one.spec)
        verdict(one.spec)
    except SpecError as e:
        return str(e)
    return None


def test_what_vllm_serves_is_served_but_for_what_is_refused_on_purpose() -> None:
    by_mistake, used = [], set()
    for row, said in shapes():
        if row["backend"] is None or said is None:
            continue
        why = [pattern for pattern in ON_PURPOSE if re.search(pattern, said)]
        used.update(why)
        if not why:
            by_mistake.append((row["kind"], row["value"], said))

    assert by_mistake == []
    assert used == set(ON_PURPOSE)


def test_the_shapes_are_of_every_kind_and_verdict() -> None:
    count = Counter(
        (row["backend"] is not None, said is None, row["kind"]) for row, said in shapes()
    )
    kinds = {"json", "regex", "grammar", "choice", "structural_tag"}

    for kind in kinds:
        assert count[True, True, kind] >= 15
        assert count[False, False, kind] >= 10
    assert sum(count[True, False, kind] for kind in kinds) < 60


def test_the_docs_have_these_counts() -> None:
    count = Counter(
        (row["kind"], row["backend"] is not None, said is None) for row, said in shapes()
    )
    lines = [
        f"| `{kind}` | {count[kind, True, True]} | {count[kind, False, False]} |"
        f" {count[kind, False, True]} | {count[kind, True, False]} | 0 |\n"
        for kind in ("json", "regex", "grammar", "choice", "structural_tag")
    ]
    page = DOCS.read_text()

    assert page.partition("<!-- verdicts -->")[2].partition("<!-- end")[0].endswith("".join(lines))
