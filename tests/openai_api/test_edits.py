"""What is added to a request's body, and that nothing else of it changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import InvalidRequestError
from inferway.model import MediaName
from inferway.openai_api.edits import (
    MAX_BYTES,
    with_cache_salt,
    with_media_names,
    with_media_uuids,
    with_model,
    with_model_named,
    with_prompt,
    with_prompt_token_ids,
    with_vllm_xarg,
)

ADDED = b'"kv_cache_report_mode":"full"'


def edited(body: bytes) -> bytes | None:
    return with_vllm_xarg(body, "kv_cache_report_mode", "full")


# JSON as people write it: any spaces, escapes in strings and names, names that stand twice

SPACE = st.text(" \t\r\n", max_size=2)
KEY_WORDS = st.sampled_from(
    [
        "vllm_xargs",
        "kv_cache_report_mode",
        "model",
        "prompt",
        "kv_transfer_params",
        "",
        "é",
        "\u2028",
        '"{',
    ]
)
TEXTS = KEY_WORDS | st.text(max_size=5)


def spelled(text: str, style: int) -> str:
    """A JSON string; some styles escape what need not be."""
    if style == 0:
        return json.dumps(text)
    if style == 1:
        return json.dumps(text, ensure_ascii=False)
    units = text.encode("utf-16-be", "surrogatepass")
    escapes = [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return f'"{"".join(escapes)}"'


STRINGS = st.builds(spelled, TEXTS, st.integers(0, 2))
SCALARS = st.sampled_from(["null", "true", "-1.50e3", "12345678901234567890", "0.10"]) | STRINGS


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(SPACE, STRINGS, SPACE, SPACE, values, SPACE), max_size=4))
    inside = ",".join(f"{a}{key}{b}:{c}{value}{d}" for a, key, b, c, value, d in members)
    return "{" + (inside or draw(SPACE)) + "}"


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(st.tuples(SPACE, values, SPACE), max_size=3))
    return "[" + (",".join("".join(item) for item in items) or draw(SPACE)) + "]"


VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | arrays(inner), max_leaves=6)
BODIES = st.builds("{}{}{}".format, SPACE, objects(VALUES), SPACE).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)


OBJECTS_WITH_A_MEMBER = BODIES.filter(lambda body: b":" in body)


def is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(BODIES.filter(is_text))
def test_the_field_is_there_and_nothing_else_has_changed(body: bytes) -> None:
    before = json.loads(body)
    theirs = before.get("vllm_xargs")
    after = edited(body)

    if theirs is not None and not isinstance(theirs, dict):
        assert after is None
        return
    if theirs is not None and "kv_cache_report_mode" in theirs:
        assert after is None
        return
    assert after is not None
    wanted = {**before, "vllm_xargs": {**(theirs or {}), "kv_cache_report_mode": "full"}}
    assert json.loads(after) == wanted


@given(BODIES.filter(is_text))
def test_every_byte_of_the_body_is_there_in_its_order(body: bytes) -> None:
    after = edited(body)
    if after is None:
        return
    kept = len(common_start(body, after))
    rest = body[kept:]

    if not after.endswith(rest):  # `null` has given way to an object
        assert rest.startswith(b"null")
        assert after.endswith(rest[len(b"null") :])


@given(OBJECTS_WITH_A_MEMBER.filter(is_text))
def test_ids_are_there_and_nothing_else_has_changed(body: bytes) -> None:
    after = with_prompt_token_ids(body, b"[1, 23]")

    assert after is not None
    assert json.loads(after) == {
        **json.loads(body),
        "kv_transfer_params": {"prompt_token_ids": [1, 23]},
    }


@given(OBJECTS_WITH_A_MEMBER.filter(is_text))
def test_ids_take_the_place_of_the_prompt_and_nothing_else_has_changed(body: bytes) -> None:
    before, after = json.loads(body), with_prompt(body, b"[1, 23]")

    if "prompt" in before:
        assert after is not None
        assert json.loads(after) == {**before, "prompt": [1, 23]}
    else:
        assert after is None


def common_start(one: bytes, other: bytes) -> bytes:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return one[:same]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"{}", b'{"vllm_xargs":{%b}}'),
        (b' { "n" : 1.0 } ', b' {"vllm_xargs":{%b}, "n" : 1.0 } '),
        (b'{"vllm_xargs": {}}', b'{"vllm_xargs": {%b}}'),
        (b'{"vllm_xargs": { "a":1}}', b'{"vllm_xargs": {%b, "a":1}}'),
        (b'{"vllm_xargs" :null,"n":1}', b'{"vllm_xargs" :{%b},"n":1}'),
        (b'{"a":{"vllm_xargs":{}}}', b'{"vllm_xargs":{%b},"a":{"vllm_xargs":{}}}'),
        (b'{"a":"\\"vllm_xargs\\":{"}', b'{"vllm_xargs":{%b},"a":"\\"vllm_xargs\\":{"}'),
        (b'{"vllm_x\\u0061rgs":{}}', b'{"vllm_x\\u0061rgs":{%b}}'),
        (
            b'{"vllm_xargs":{"a":1},"vllm_xargs":{"b":2}}',
            b'{"vllm_xargs":{"a":1},"vllm_xargs":{%b,"b":2}}',
        ),
    ],
)
def test_it_is_added_where_the_engine_reads_it(body: bytes, wanted: bytes) -> None:
    assert edited(body) == wanted % ADDED


@pytest.mark.parametrize(
    "body",
    [
        b'{"vllm_xargs":{"kv_cache_report_mode":"incremental"}}',
        b'{"vllm_xargs":{"kv_cache_report_mode":null}}',
        b'{"vllm_xargs":{"kv_cache_report_mod\\u0065":"x"}}',
        b'{"vllm_xargs":[1]}',
        b'{"vllm_xargs":"text"}',
        b"[]",
        b'"{"',
        b"",
        b"{",
        b'{"a":1}{',
    ],
)
def test_what_the_client_says_itself_or_cannot_be_added_to_is_left_alone(body: bytes) -> None:
    assert edited(body) is None


def padded(fields: dict[str, Any], size: int) -> bytes:
    body = json.dumps({**fields, "prompt": ""}).encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


def test_bodies_that_would_take_too_long_are_left_alone() -> None:
    assert edited(padded({}, MAX_BYTES)) is not None
    assert edited(padded({}, MAX_BYTES + 1)) is None


@given(BODIES)
def test_another_model_changes_nothing_else(body: bytes) -> None:
    body = _with_a_model(body)
    expected = {**json.loads(body), "model": "other"}

    assert json.loads(with_model(body, "other")) == expected


def test_a_body_that_is_nested_too_deeply_has_no_salt() -> None:
    deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    assert with_cache_salt(deep, lambda _: "salt") is None


@given(BODIES.filter(is_text), st.sampled_from(["null", '"own"', "1", "[]", ""]))
def test_a_salt_changes_nothing_else(body: bytes, own: str) -> None:
    if own:
        body = b'{"rest":%b, "cache_salt": %b}' % (body, own.encode())
    given_one = json.loads(body).get("cache_salt")

    after = with_cache_salt(body, lambda one: f"salted {one}")

    if given_one is not None and not isinstance(given_one, str):
        assert after is None
        return
    assert after is not None
    assert json.loads(after) == {**json.loads(body), "cache_salt": f"salted {given_one}"}


def _with_a_model(body: bytes) -> bytes:
    try:
        fields = json.loads(body)
    except ValueError:
        fields = {}
    return body if "model" in fields else b'{"model":"m","rest":%b}' % body


def test_every_other_byte_of_a_body_stays() -> None:
    body = b'{ "messages":[{"model":"a"}],\n"model" : "m" ,"n":1.50}'

    assert with_model(body, 'a"b') == body.replace(b'"m"', b'"a\\"b"')


@pytest.mark.parametrize(
    ("answer", "renamed"),
    [
        (b'{"id":"x","model":"m","choices":[]}', b'{"id":"x","model":"asked","choices":[]}'),
        (
            b'{"type":"response.created","response":{"metadata":{"model":"m"},"model":"m"}}',
            b'{"type":"response.created","response":{"metadata":{"model":"m"},"model":"asked"}}',
        ),
        (
            b'{"response":{"model":"m"},"model":"m"}',
            b'{"response":{"model":"asked"},"model":"asked"}',
        ),
        (b'{"model":null}', b'{"model":null}'),
        (b'{"choices":[{"model":"m"}]}', b'{"choices":[{"model":"m"}]}'),
        (b" [DONE]", b" [DONE]"),
        (b'{"model":"m"', b'{"model":"m"'),
    ],
)
def test_an_answer_is_renamed_where_the_engine_names_its_model(
    answer: bytes, renamed: bytes
) -> None:
    assert with_model_named(answer, "asked") == renamed


NAMES = [MediaName(0, 1, "new"), MediaName(2, 0, "other")]
PARTS = (
    '{"messages":[{"role":"user","content":["x",%s]},{"role":"assistant","content":"A"},'
    '{"content":[{"image_url":{"url":"data:"}}],"role":"user"}],"model":"m"}'
)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ('{"type":"image_url"}', '{"uuid":"new","type":"image_url"}'),
        ('{ "type":1}', '{"uuid":"new", "type":1}'),
        ('{"uuid":"old","type":1}', '{"uuid":"new","type":1}'),
        ('{"uuid": null ,"type":1}', '{"uuid": "new" ,"type":1}'),
        ('{"uuid":"a","uuid":"b"}', '{"uuid":"a","uuid":"new"}'),
        ('{"uu\\u0069d":7}', '{"uu\\u0069d":"new"}'),
    ],
)
def test_media_get_names_and_every_other_byte_stays(part: str, named: str) -> None:
    body = (PARTS % part).encode()

    edited = with_media_names(body, NAMES)

    second = '{"uuid":"other","image_url":{"url":"data:"}}'
    assert edited.decode() == (PARTS % named).replace('{"image_url":{"url":"data:"}}', second)
    assert with_media_names(edited, NAMES) is edited


def test_media_of_a_body_that_is_no_standard_json_get_names() -> None:
    body = (PARTS % '{"type":"image_url","x":NaN}').encode("utf-16")

    edited = json.loads(with_media_names(body, NAMES))

    assert [edited["messages"][i]["content"][j]["uuid"] for i, j, _ in NAMES] == ["new", "other"]


def test_media_of_a_large_body_that_is_no_standard_json_are_refused() -> None:
    body = (PARTS % ('{"x":NaN,"y":"%s"}' % ("y" * MAX_BYTES))).encode()

    with pytest.raises(InvalidRequestError, match=r"'uuid' must be set"):
        with_media_names(body, NAMES)


def test_names_of_media_among_token_ids_are_changed_in_their_place() -> None:
    features = b'{"mm_hashes":{"image":["a","b"],"audio":["c"]},"mm_placeholders":{}}'
    body = b'{"token_ids":[1,2],"mm_hashes":{"x":["y"]},"features":%b}' % features

    made = with_media_uuids(body, str.upper)

    changed = features.replace(b'["a","b"]', b'["A","B"]').replace(b'["c"]', b'["C"]')
    assert made == body.replace(features, changed)


@pytest.mark.parametrize("features", [b"5", b"null", b'{"mm_hashes":["a"]}'])
def test_features_that_engines_refuse_stay_as_they_are(features: bytes) -> None:
    body = b'{"token_ids":[1,2],"features":%b,"x":"mm_hashes"}' % features

    assert with_media_uuids(body, str.upper) == body
