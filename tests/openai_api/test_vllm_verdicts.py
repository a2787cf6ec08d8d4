"""What we take and refuse, held against what vLLM 0.32's request classes do (recorded by
tests/engines/record_verdicts.py; the fleet tests record it again and compare).

taken by both                 with the same values in the fields that both type
refused by both
refused by vLLM's class only  the engine says so: nothing of it is our business
refused by us only            ON_PURPOSE has the reason of each
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.stored import Row, rows

from inferway.errors import InvalidRequestError, RequestError
from inferway.openai_api.edits import MAX_BYTES, with_cache_salt, with_model
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest, parse_completion
from inferway.openai_api.shapes import shape_fields
from inferway.openai_api.unread import read_unread
from inferway.prompts.chat.conversation import NO_FLAGS, template_arguments
from inferway_structured.requests import parse_constraints

VERDICTS = Path(__file__).parents[1] / "golden" / "vllm_verdicts.jsonl.xz"

# What our error says -> why we refuse what vLLM's class takes. docs/api.md has the same table.
ON_PURPOSE = {
    r"expected `int \| null`, got `str`": "an accident of pydantic's parser: '0-1', '0__1'",
    r"^model: has a lone surrogate": "no model is called so: vLLM answers 404 or fails",
    r"^(suffix|instructions|prompt|input): has a lone surrogate": "no tokenizer takes it",
    r"^(stop|bad_words|vllm_xargs|\w+_id): has a lone surrogate": "vLLM answers 500",
    r"^prompt: must not be empty": "vLLM refuses it when it makes the prompt",
    r"input: expected `str \| array \| null`, got `object`": "the same",
    r"messages: must not be empty": "the same",
    r"^messages\[1\]\.content\[0\]: expected an object": "the same",
    r"json_object: true or absent": "vLLM refuses it when it looks for the shape",
    r"holds (a number out of range|\\ud800)": "in a schema, which is none then",
    r"^messages\[1\]\.content: expected text or a list of parts": "the same",
}


@cache
def verdicts() -> list[Row]:
    return rows(VERDICTS)


def ours(row: Row) -> Any:
    """Raises RequestError."""
    raw = base64.b64decode(row["body"])
    parse = PARSERS.get(row["path"])
    body: Any = read_unread(raw, b"application/json").members if parse is None else parse(raw)
    if isinstance(body, ChatRequest):
        template_arguments(body, NO_FLAGS)
    parse_constraints(row["path"], shape_fields(body))
    return body


def refusal(row: Row) -> str | None:
    try:
        ours(row)
    except RequestError as e:
        return str(e)
    return None


def values(body: Any, names: list[str]) -> dict[str, Any]:
    """Of those fields that we type."""
    found = {name: getattr(body, name) for name in names if name in body.__struct_fields__}
    if isinstance(body, ChatRequest) and "tools" in found:
        found["tools"] = template_arguments(body, NO_FLAGS)["tools"]
    return found


def test_what_vllm_takes_is_taken_but_for_what_is_refused_on_purpose() -> None:
    by_mistake, used = [], set()
    for row in verdicts():
        said = refusal(row) if row["taken"] else None
        if said is None:
            continue
        why = [pattern for pattern in ON_PURPOSE if re.search(pattern, said)]
        used.update(why)
        if not why:
            by_mistake.append((row["path"], row["name"], said))

    assert by_mistake == []
    assert used == set(ON_PURPOSE)


def test_what_both_take_is_read_as_the_same_values() -> None:
    num_values = 0
    for row in verdicts():
        if row["taken"] and refusal(row) is None:
            body = ours(row)
            got = values(body, list(row["values"]))
            expected = {name: value for name, value in row["values"].items() if name in got}
            num_values += len(got)
            assert json.dumps(got) == json.dumps(expected), (row["path"], row["name"])

    assert num_values > 1000


def test_the_verdicts_are_of_bodies_of_every_kind() -> None:
    count = Counter((row["taken"], refusal(row) is None) for row in verdicts())

    taken_by_both, refused_by_both = count[True, True], count[False, False]
    assert (taken_by_both > 700, refused_by_both > 400) == (True, True), count


@pytest.mark.parametrize(
    ("path", "name", "is_refused"),
    [
        ("/v1/chat/completions", "bad_words", True),
        ("/v1/responses", "bad_words", False),
        ("/v1/responses", "session_id", True),
        ("/v1/messages", "vllm_xargs", True),
        ("/v1/messages", "stop_sequences", True),
        ("/v1/messages", "session_id", False),
        ("/tokenize", "session_id", False),
    ],
)
def test_a_text_for_the_engine_core_is_unicode_where_vllm_has_the_field(
    path: str, name: str, is_refused: bool
) -> None:
    fields = {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", name: ["\ud800"]}
    raw = base64.b64encode(json.dumps(fields).encode())

    assert (refusal({"path": path, "body": raw}) is not None) == is_refused


def test_a_body_that_pydantic_converts_is_not_written_anew() -> None:
    raw = b'{"model": "m", "prompt": [1, "2"], "stream": "yes", "max_tokens": 1e1, "x": NaN}'

    body = parse_completion(raw)

    assert (body.prompt, body.stream, body.max_tokens) == ([1, 2], True, 10)
    fields = LLMRequest(request_id="r", target_model="m", body=body, raw=raw).fields
    assert fields["prompt"] == [1, "2"]
    assert math.isnan(fields["x"])


def test_no_body_that_is_taken_goes_on_without_its_tenants_salt() -> None:
    num_salted = 0
    for row in verdicts():
        if "cache_salt" not in fields_of(row["path"]) or not row["taken"]:
            continue
        raw = base64.b64decode(row["body"])
        salted = with_cache_salt(raw, "{}'s".format)
        if salted is None:
            assert refusal(row) is not None, row["name"]
        else:
            num_salted += 1
            before = json.loads(raw)
            expected = {**before, "cache_salt": f"{before.get('cache_salt')}'s"}
            assert sorted_json(salted) == sorted_json(json.dumps(expected)), row["name"]

    assert num_salted > 700


def test_every_body_that_is_taken_can_have_another_model() -> None:
    for row in verdicts():
        raw = base64.b64decode(row["body"])
        if row["taken"] and refusal(row) is None:
            expected = json.dumps({**json.loads(raw), "model": "other"})
            assert sorted_json(with_model(raw, "other")) == sorted_json(expected), row["name"]


def fields_of(path: str) -> tuple[str, ...]:
    parse = PARSERS.get(path)
    return () if parse is None else get_type_hints(parse)["return"].__struct_fields__


def sorted_json(raw: str | bytes) -> str:
    return json.dumps(json.loads(raw), sort_keys=True)


@pytest.mark.parametrize("change", [with_cache_salt, with_model])
def test_a_large_body_that_must_be_written_anew_is_refused_with_the_cure(change: Any) -> None:
    raw = b'{"model": "m", "x": NaN, "prompt": "%b"}' % (b"x" * MAX_BYTES)
    value = "n" if change is with_model else str

    with pytest.raises(InvalidRequestError, match="send JSON in UTF-8, without NaN"):
        change(raw, value)
