"""What will become of a spec, told keyword by keyword."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferway_structured.backends.cascade import verdict as cascades_verdict
from inferway_structured.compile.cost import estimated_seconds
from inferway_structured.errors import SpecError
from inferway_structured.explain import MAX_LISTED, explain
from inferway_structured.grammar import Unenforced, Verdict
from inferway_structured.spec import Kind, OutputConstraint, Spec
from inferway_structured.validate.limits import SpecLimits


def json_spec(schema: Any) -> Spec:
    return Spec(Kind.JSON, json.dumps(schema, separators=(",", ":")))


def explained(
    spec: Spec,
    verdict: Verdict | SpecError | None = None,
    *,
    strict: bool = False,
    refuse_unenforced: bool = False,
    checked: SpecError | None = None,
) -> dict[str, Any]:
    asked = OutputConstraint(spec, "", strict)
    found = verdict or Verdict("llguidance")
    told = explain(asked, checked, found, SpecLimits(), refuse_unenforced)
    through_json: dict[str, Any] = json.loads(json.dumps(told, allow_nan=False))
    return through_json


def words(told: dict[str, Any]) -> dict[str, str]:
    return {f"{each['place']}#{each['keyword']}": each["is"] for each in told["keywords"]}


def test_every_keyword_is_named_with_what_becomes_of_it() -> None:
    schema = {
        "type": "object",
        "title": "T",
        "x-order": 1,
        "properties": {"a/b": {"type": "array", "uniqueItems": True}},
    }

    told = explained(
        json_spec(schema), Verdict("llguidance", [Unenforced("/properties/a~1b", "uniqueItems")])
    )

    assert words(told) == {
        "/properties/a~1b#uniqueItems": "unenforced",
        "#type": "enforced",
        "#properties": "enforced",
        "/properties/a~1b#type": "enforced",
        "#x-order": "unknown",
        "#title": "annotation",
    }
    assert (told["verdict"], told["backend"], told["refused"]) == ("partly", "llguidance", None)
    assert [each["by"] for each in told["keywords"]] == [None, *["llguidance"] * 3, None, None]


def test_what_is_left_out_is_refused_where_strict_is_asked_and_that_is_set() -> None:
    spec = json_spec({"type": "array", "uniqueItems": True})
    left_out = Verdict("llguidance", [Unenforced("", "uniqueItems")])

    told = explained(spec, left_out, strict=True, refuse_unenforced=True)

    assert explained(spec, left_out, strict=True)["verdict"] == "partly"
    assert explained(spec, left_out, refuse_unenforced=True)["verdict"] == "partly"
    assert told["verdict"] == "refused"
    assert told["backend"] is None
    assert told["refused"] == {
        "place": "",
        "keyword": "uniqueItems",
        "reason": "cannot be enforced, and `strict` was asked for",
        "by": "strict",
    }
    assert words(told)["#uniqueItems"] == "refused"


def test_a_refusal_of_the_backends_names_its_keyword_and_leaves_the_others_undecided() -> None:
    spec = json_spec({"type": "object", "not": {"required": ["a"]}})

    told = explained(spec, SpecError("cannot be kept", place="/not", keyword="not"))

    assert told["refused"]["by"] == "backends"
    assert words(told) == {"#not": "refused", "#type": "undecided", "/not#required": "undecided"}


def test_what_is_over_a_limit_is_not_looked_into() -> None:
    spec = json_spec({"enum": list(range(20_000))})

    told = explained(spec, checked=SpecError("20000 entries", place="/enum", keyword="enum"))

    assert told["refused"]["by"] == "limits"
    assert told["keywords"] == [{"place": "/enum", "keyword": "enum", "is": "refused", "by": None}]


def test_limits_are_told_with_what_is_used_of_them() -> None:
    schema = {
        "properties": {"a": {"enum": [1, 2, 3]}, "b": {"pattern": "x"}},
        "anyOf": [True, {"type": "object"}],
    }

    used = explained(json_spec(schema))["limits"]

    assert used["enum"] == {"used": 3, "most": SpecLimits().max_enum}
    assert {what: each["used"] for what, each in used.items()} == {
        "bytes": len(json_spec(schema).text),
        "nesting": 4,
        "enum": 3,
        "object_properties": 2,
        "properties": 2,
        "branches": 2,
        "patterns": 1,
    }


def test_what_is_no_schema_is_one_thing() -> None:
    told = explained(Spec(Kind.REGEX, "[0-9]+"))

    assert told["keywords"] == [
        {"place": "", "keyword": "regex", "is": "enforced", "by": "llguidance"}
    ]
    assert told["verdict"] == "enforced"


def test_only_so_many_keywords_are_listed_those_that_matter_first() -> None:
    schema = {"properties": {f"p{i}": {"type": "string"} for i in range(1500)}}
    last = Unenforced("/properties/p1499", "type")

    told = explained(json_spec(schema), Verdict("llguidance", [last]))

    assert (len(told["keywords"]), told["num_keywords"]) == (MAX_LISTED, 1501)
    assert told["keywords"][0]["is"] == "unenforced"


def test_a_keyword_that_stands_in_no_schema_is_told_too() -> None:
    told = explained(json_spec({"type": "string"}), Verdict("llguidance", [Unenforced("/x", "y")]))

    assert words(told) == {"/x#y": "unenforced", "#type": "enforced"}


@pytest.mark.parametrize(
    "spec",
    [
        json_spec({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}),
        Spec(Kind.JSON_OBJECT, ""),
        Spec(Kind.REGEX, "[0-9]{4}"),
        Spec(Kind.CHOICE, '["yes","no"]'),
        Spec(Kind.GRAMMAR, 'start: "a"'),
    ],
    ids=lambda spec: f"{spec.kind} {spec.text[:10]}",
)
def test_the_cascade_says_itself_what_it_would_do(spec: Spec) -> None:
    asked = OutputConstraint(spec, "", strict=True)
    told = explain(asked, None, cascades_verdict(spec), SpecLimits())

    assert told["verdict"] == "enforced"
    assert told["backend"]
    assert {each["is"] for each in told["keywords"]} <= {"enforced"}
    assert 0 < told["compile"]["seconds"] < 0.01


def test_larger_specs_are_estimated_to_take_longer() -> None:
    few, many = ([f"value {i}" for i in range(number)] for number in (10, 5000))
    pairs = [
        (json_spec({"enum": few}), json_spec({"enum": many})),
        (Spec(Kind.CHOICE, json.dumps(few)), Spec(Kind.CHOICE, json.dumps(many))),
        (json_spec({"maxItems": 1}), json_spec({"maxItems": 5000})),
        (json_spec({"anyOf": [{}]}), json_spec({"anyOf": [{}] * 1000})),
    ]

    for small, large in pairs:
        assert estimated_seconds(large) > 3 * estimated_seconds(small)


def test_an_estimate_of_something_absurd_is_a_number() -> None:
    assert estimated_seconds(Spec(Kind.JSON, '{"maxItems":1e999}')) < 1
