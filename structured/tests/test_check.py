from __future__ import annotations

import gc
import json
from contextlib import suppress
from typing import Any

import pytest
from structured.tests.lifelike import keywords, lifelike_schemas

from inferway_structured.backends.cascade import verdict
from inferway_structured.compile.cost import estimated_seconds
from inferway_structured.errors import SpecError, is_panic
from inferway_structured.report import in_request
from inferway_structured.spec import Kind, Options, OutputConstraint, Spec
from inferway_structured.validate.check import DEFAULT, check
from inferway_structured.validate.json_schema_drafts import validator_of
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.validate.schema_walk import graph, longest_path
from inferway_structured.validate.validator import is_valid

# What schemas of JSONSchemaBench say; 300 of them were checked once, and all passed.
SAID = """$comment $defs $id $ref $schema additionalItems additionalProperties allOf anyOf const
contains default definitions dependencies description enum examples exclusiveMaximum
exclusiveMinimum format id if items maxItems maxLength maxProperties maximum minItems minLength
minProperties minimum multipleOf not nullable oneOf pattern patternProperties properties
propertyNames readOnly required title type uniqueItems"""


BAD = {"type": "nonsense"}


def of(schema: Any) -> Spec:
    return Spec(Kind.JSON, json.dumps(schema))


def refused(spec: Spec, *, limits: SpecLimits = DEFAULT) -> SpecError:
    with pytest.raises(SpecError) as caught:
        check(spec, limits)
    return caught.value


@pytest.mark.slow
def test_every_lifelike_schema_passes() -> None:
    schemas = lifelike_schemas(seed=1, count=300)

    for schema in schemas:
        check(of(schema))

    assert {keyword for schema in schemas for keyword in keywords(schema)} >= set(SAID.split())
    assert max(len(json.dumps(schema)) for schema in schemas) > 150_000


BAD_SCHEMAS: list[tuple[Any, str, str | None, str]] = [
    ({"type": "objec"}, "/type", "type", "anyOf"),
    ({"properties": {"a/b": {"minimum": "x"}}}, "/properties/a~1b/minimum", "minimum", "number"),
    ({"required": "a"}, "/required", "required", "array"),
    ({"items": {"minItems": -1}}, "/items/minItems", "minItems", "less than the minimum"),
    ({"$defs": {"x": 5}}, "/$defs/x", "x", "boolean"),
    ({"pattern": "("}, "/pattern", "pattern", "unclosed group"),
    ({"patternProperties": {"[": {}}}, "/patternProperties/[", "patternProperties", "unclosed"),
    ({"$ref": "#/nope"}, "/$ref", "$ref", "leads nowhere"),
    ({"items": {"$ref": "#/$defs/x~1y"}}, "/items/$ref", "$ref", "leads nowhere"),
    ({"$ref": "#anchor"}, "/$ref", "$ref", "leads nowhere"),
    ({"$ref": "http://a.b/c"}, "/$ref", "$ref", "nothing is fetched"),
    ({"$ref": "file:///etc/passwd"}, "/$ref", "$ref", "nothing is fetched"),
    ({"$ref": "other.json#/x"}, "/$ref", "$ref", "refers to another document"),
    ({"$ref": "#"}, "/$ref", "$ref", "leads back to itself"),
    ({"allOf": [{"$ref": "#"}]}, "/allOf/0/$ref", "$ref", "leads back to itself"),
    ({"not": {"anyOf": [{"$ref": "#"}]}}, "/not/anyOf/0/$ref", "$ref", "leads back to itself"),
    (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "/$defs/b/$ref",
        "$ref",
        "leads back to itself",
    ),
    ({"properties": {"a": {"maxItems": 100_000}}}, "/properties/a/maxItems", "maxItems", "10000"),
    ({"minItems": 10_001}, "/minItems", "minItems", "at most 10000"),
    ({"maxLength": 10**30}, "/maxLength", "maxLength", "at most 4294967295"),
    ({"enum": list(range(10_001))}, "/enum", "enum", "10001 entries, at most 10000"),
    ({"properties": {f"p{i}": {} for i in range(2001)}}, "/properties", "properties", "2001"),
    ({"anyOf": [{}] * 2001}, "/anyOf", "anyOf", "2001 entries"),
    ({"pattern": "(a|b)*a(a|b){12}"}, "/pattern", "pattern", "states without bound"),
    ({"pattern": "(a{1,1000}){1,1001}"}, "/pattern", "pattern", "more than 1000000 rounds"),
]


@pytest.mark.parametrize(("schema", "place", "keyword", "words"), BAD_SCHEMAS)
def test_a_bad_schema_is_refused_with_its_place(
    schema: Any, place: str, keyword: str | None, words: str
) -> None:
    error = refused(of(schema))

    assert (error.place, error.keyword) == (place, keyword)
    assert words in str(error)
    assert str(error).startswith(place)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}},
        {"$defs": {"a b": {}, "c/d": {}}, "anyOf": [{"$ref": "#/$defs/a%20b"}]},
        {"$defs": {"c/d": {}}, "$ref": "#/$defs/c~1d"},
        {"$defs": {"a": {"$anchor": "here"}}, "items": {"$ref": "#here"}},
        {"$id": "http://a.b/c", "$defs": {"a": {}}, "items": {"$ref": "http://a.b/c#/$defs/a"}},
        {"$defs": {"a": {"$id": "http://a.b/a"}}, "items": {"$ref": "http://a.b/a"}},
        {"components": {"a": {"type": "string"}}, "items": {"$ref": "#/components/a"}},
        {"items": [{"type": "string"}]},  # draft 4 to 2019-09, and does not say so
        {"maximum": 3, "exclusiveMaximum": True},  # draft 4
        {"$schema": "http://nobody.knows/this", "type": "string"},
        {
            "$schema": "http://json-schema.org/draft-04/schema",
            "exclusiveMinimum": True,
            "minimum": 1,
        },
        {"$schema": "https://json-schema.org/draft/2020-12/schema#"},
        {"enum": [{"$ref": 5, "type": "nonsense"}], "const": {"pattern": "("}},
        {"maxLength": 2**32 - 1, "pattern": r"^[\s\S]{0,65535}$"},
        {"maximum": 10**400},
        {"nullable": True, "x-anything": 1, "discriminator": {"propertyName": 5}, "self": None},
        {"maxlength": 3, "_format": "money", "json_schema_extra": {"type": "nonsense"}},
        {"pattern": "^(?!a)"},
        {"patternProperties": {r"(a)\1": {}}},
        {"title": 5, "description": None, "$comment": [], "examples": {}, "deprecated": "soon"},
        {"$defs": None, "$id": 5, "$schema": None, "type": "string"},
        {"properties": {"a": {"description": None}}, "required": ["a", "a"]},
        {"patternProperties": {"^x": {}}, "items": {"$ref": "#/patternProperties/^x"}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{"type": "null"}]},
    ],
)
def test_what_holds_passes(schema: Any) -> None:
    check(of(schema))


def test_what_is_mended_is_enforced_and_answers_are_held_against_it() -> None:
    schema = {"type": "object", "description": None, "properties": {"a": {"title": 5}}}
    spec = of({**schema, "required": ["a", "a"], "additionalProperties": False})

    check(spec)

    assert list(verdict(spec).unenforced) == []
    assert is_valid(spec, '{"a":1}') is True
    assert is_valid(spec, "{}") is False


DRAFTS = (
    *(f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7)),
    *(f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12")),
)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"items": {"properties": {"a": BAD}}}, "/items/properties/a/type"),
        ({"items": {"items": {"items": BAD}}}, "/items/items/items/type"),
        ({"properties": {"a": {"items": {"pattern": "("}}}}, "/properties/a/items/pattern"),
        ({"additionalProperties": {"items": BAD}}, "/additionalProperties/items/type"),
        ({"dependencies": {"a/b": {"items": BAD}}}, "/dependencies/a~1b/items/type"),
    ],
)
def test_the_place_of_a_fault_is_as_deep_in_every_draft(
    draft: str, schema: dict[str, Any], place: str
) -> None:
    assert refused(of({"$schema": draft, **schema})).place == place


@pytest.mark.parametrize("draft", DRAFTS[:4])
def test_so_it_is_in_lists_of_items(draft: str) -> None:
    listed, more = {"items": [{}, BAD]}, {"items": [{}], "additionalItems": BAD}

    assert refused(of({"$schema": draft, **listed})).place == "/items/1/type"
    assert refused(of({"$schema": draft, **more})).place == "/additionalItems/type"


def test_nesting_is_vllms() -> None:
    deepest: Any = {}
    for _ in range(31):
        deepest = {"properties": {"a": deepest}}  # two levels
    check(of({"items": deepest}))

    error = refused(of({"items": {"items": deepest}}))

    assert str(error) == "nested deeper than 64 objects and arrays"


def test_counts_are_added_up() -> None:
    properties = {f"p{i}": {"maxItems": 9_999} for i in range(11)}

    assert "together pass 100000" in str(refused(of({"properties": properties})))


def test_references_spelled_out_are_counted() -> None:
    chain = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(20)}

    error = refused(of({"$defs": {**chain, "a20": {}}, "$ref": "#/$defs/a0"}))

    assert error.place.startswith("/$defs/a")
    assert "pass 20000" in str(error)


def test_patterns_on_one_string_are_counted_across_all_of() -> None:
    def at(depth: int, i: int) -> Any:
        leaf: Any = {"pattern": f"x{i}"}
        for _ in range(depth):
            leaf = {"properties": {"a": leaf}}
        return leaf

    for depth in (0, 1, 2):
        check(of({"allOf": [at(depth, i) for i in range(10)]}))
        assert "must match pass 10" in str(
            refused(of({"allOf": [at(depth, i) for i in range(11)]}))
        )


def test_patterns_of_different_properties_are_not_one_strings() -> None:
    check(of({"allOf": [{"properties": {f"p{i}": {"pattern": "x"}}} for i in range(50)]}))
    check(of({"anyOf": [{"pattern": f"x{i}"} for i in range(50)]}))


@pytest.mark.parametrize("length", [10, 499])
def test_a_way_through_references_is_bounded(length: int) -> None:
    """llguidance recurses along it, and a stack that overflows ends the process."""
    steps = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(length)}
    schema = {"$defs": {**steps, f"a{length}": {}}, "$ref": "#/$defs/a0"}

    assert longest_path(graph(schema)) == 2 * length + 2
    if length == 10:
        check(of(schema))
    else:
        check(of(schema))
        assert "lead to each other" in str(refused(of(schema), limits=SpecLimits(max_path=999)))


def test_a_circle_counts_with_all_its_nodes() -> None:
    schema = {
        "properties": {"x": {"$ref": "#"}, "y": {"items": {"$ref": "#"}}, "z": {"type": "string"}}
    }

    assert longest_path(graph(schema)) == 5


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec(Kind.REGEX, "("), "unclosed group"),
        (Spec(Kind.REGEX, "(?=a)b"), "look-ahead at character 0"),
        (Spec(Kind.REGEX, r"(a)\1"), "a back-reference at character 3"),
        (Spec(Kind.REGEX, "(a|b)*a(a|b){12}"), "states without bound"),
        (Spec(Kind.REGEX, "a\0b"), "NUL"),
        (Spec(Kind.REGEX, "((a{1000}){1000}){1000}"), "more than 1000000 rounds"),
        (Spec(Kind.GRAMMAR, "start: foo\n"), "not a Lark grammar: at 1(8)"),
        (Spec(Kind.GRAMMAR, 'start: "a'), "not a Lark grammar"),
        (
            Spec(Kind.GRAMMAR, 'start: a\na: %json {"pattern": "(a|b)*a(a|b){12}"}\n'),
            "line 2: %json: /pattern: a counted repeat",
        ),
        (Spec(Kind.GRAMMAR, "root ::= foo"), "line 1: there is no rule 'foo'"),
        (Spec(Kind.GRAMMAR, "a: A\n" * 1001), "1001 rules, at most 1000"),
        (Spec(Kind.GRAMMAR, " " * 70_000), "70000 characters, at most 65536"),
        (Spec(Kind.CHOICE, json.dumps(["a"] * 10_001)), "10001 choices, at most 10000"),
        (Spec(Kind.JSON, "{}", Options(whitespace_pattern="(")), "whitespace_pattern: not a"),
        (Spec(Kind.CHOICE, "é" * 131_073), "262146 bytes, at most 262144"),
    ],
)
def test_other_kinds_are_refused_in_words(spec: Spec, words: str) -> None:
    error = refused(spec)

    assert words in str(error)
    assert error.place == ""


@pytest.mark.parametrize(
    "spec",
    [
        Spec(Kind.REGEX, ""),
        Spec(Kind.REGEX, r"\d{3}-\d{4}"),
        Spec(Kind.REGEX, "[a-z]{1,5000}"),
        Spec(Kind.REGEX, ".{1,50000}"),
        Spec(Kind.GRAMMAR, 'start: "a" | /[0-9]+/\n'),
        Spec(Kind.GRAMMAR, 'root ::= "a" | [0-9]+\n'),
        Spec(Kind.CHOICE, '["a",""]'),
        Spec(Kind.JSON_OBJECT, ""),
        Spec(Kind.JSON, "{}", Options(whitespace_pattern="[ \n]{0,2}")),
    ],
)
def test_other_kinds_pass(spec: Spec) -> None:
    check(spec)


def tag(content: Any) -> Spec:
    form = {"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}
    return Spec(Kind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": form}))


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (
            Spec(
                Kind.STRUCTURAL_TAG,
                json.dumps(
                    {
                        "structures": [
                            {"begin": "<f>", "schema": {}, "end": ""},
                            {"begin": "<f>", "schema": {"items": {"type": "x"}}, "end": ""},
                        ],
                        "triggers": ["<"],
                    }
                ),
            ),
            "/structures/1/schema/items/type",
        ),
        (
            tag({"type": "json_schema", "json_schema": {"pattern": 5}}),
            "/format/content/json_schema/pattern",
        ),
        (tag({"type": "regex", "pattern": "("}), "/format/content/pattern"),
        (tag({"type": "grammar", "grammar": "root ::= x"}), "/format/content/grammar"),
        (
            tag({"type": "or", "elements": [{"type": "any_text"}, {"type": "regex"}]}),
            "/format/content/elements/1/pattern",
        ),
    ],
)
def test_shapes_inside_a_structural_tag_are_checked(spec: Spec, place: str) -> None:
    error = refused(spec)

    assert error.place == place
    assert str(error).startswith(place)


def test_in_a_request_the_place_is_the_whole_one() -> None:
    asked = OutputConstraint(of({"items": {"type": "x"}}), "response_format/json_schema/schema")

    error = in_request(asked, refused(asked.spec))

    assert error.param == "response_format/json_schema/schema/items/type"
    assert str(error).startswith(f"{error.param}: ")
    assert (error.place, error.keyword) == ("/items/type", "type")


@pytest.mark.parametrize(
    ("schema", "draft"),
    [
        ({}, "Draft202012Validator"),
        ({"items": [{}]}, "Draft7Validator"),
        ({"maximum": 1, "exclusiveMaximum": True}, "Draft4Validator"),
        ({"$schema": "http://json-schema.org/draft-06/schema#"}, "Draft6Validator"),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema"}, "Draft201909Validator"),
        ({"$schema": "http://nobody.knows/this"}, "Draft202012Validator"),
    ],
)
def test_a_schema_is_read_by_its_draft_or_the_newest_that_allows_it(
    schema: Any, draft: str
) -> None:
    assert type(validator_of(schema)).__name__ == draft


def test_a_panic_is_told_by_its_name() -> None:
    """pyo3 makes the type anew in every library."""
    panic = type("PanicException", (BaseException,), {})

    assert is_panic(panic("index out of bounds"))
    assert not is_panic(KeyboardInterrupt())


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"items": {"type": "string"}}}},
        {"properties": {"x": {"$ref": "#"}}},
        {"properties": {"a": {"maxItems": 1_000_000}}},
    ],
    ids=["a tree", "a circle", "refused"],
)
def test_a_check_leaves_nothing_to_the_garbage_collector(schema: dict[str, Any]) -> None:
    """It would hold every thread, longer the more of them were checked."""
    gc.collect()
    gc.disable()
    try:
        with suppress(SpecError):
            check(of(schema))
        estimated_seconds(of(schema))

        assert gc.collect() == 0
    finally:
        gc.enable()
