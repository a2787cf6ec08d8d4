"""What both legs of a request are sent, and what of a prefill engine's answer is believed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import BadReferenceError
from inferway.model import KvConnector
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.kv_transfer import (
    NIXL_PREFILL,
    check_given,
    decode_body,
    prefill_body,
    read_reference,
    why_one_leg,
)

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RESPONSE, MESSAGE = "/v1/responses", "/v1/messages"
TURNS = [{"role": "user", "content": "Größe? 😀"}]
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TURNS},
    COMPLETION: {"prompt": "hi"},
    RESPONSE: {"input": "hi"},
    MESSAGE: {"messages": TURNS, "max_tokens": 64},
    "/v1/embeddings": {"input": "hi"},
}
# As two real engines with vLLM 0.32 have been seen to return it.
REFERENCE: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "0f4c6a7e-engine",
    "remote_request_id": "chatcmpl-1-0a1b2c3d",
    "remote_host": "127.0.0.1",
    "remote_port": 4711,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 41,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
HOSTS = ("127.0.0.1",)
TOOL = {"type": "function", "function": {"name": "f"}}


def parsed(path: str, **fields: Any) -> tuple[bytes, Any]:
    raw = json.dumps({"model": "m", **PROMPTS[path], **fields}, ensure_ascii=False).encode()
    return raw, PARSERS[path](raw)


def answer(reference: object) -> bytes:
    return json.dumps({"id": "x", "choices": [], "kv_transfer_params": reference}).encode()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((path, {}) for path in (CHAT, COMPLETION, RESPONSE, MESSAGE)),
        (CHAT, {"tools": [TOOL], "max_tokens": 2, "n": 1, "stream": True, "logprobs": True}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        (COMPLETION, {"prompt": [1, 2, 3], "echo": False}),
        (RESPONSE, {"tools": [{"type": "function", "name": "f"}], "truncation": "disabled"}),
        (CHAT, {"kv_transfer_params": None, "vllm_xargs": {"a": 1}}),
    ],
)
def test_a_request_may_have_two_legs(path: str, fields: dict[str, Any]) -> None:
    assert why_one_leg(parsed(path, **fields)[1]) is None


@pytest.mark.parametrize(
    ("path", "fields", "why"),
    [
        ("/v1/embeddings", {}, "generates nothing"),
        (CHAT, {"kv_transfer_params": {}}, "says itself what is transferred"),
        (CHAT, {"vllm_xargs": {"kv_transfer_params": 1}}, "says itself what is transferred"),
        (CHAT, {"n": 2}, "wants several answers"),
        (COMPLETION, {"use_beam_search": True}, "is searched with beams"),
        (COMPLETION, {"prompt": ["a", "b"]}, "has several prompts"),
        (COMPLETION, {"prompt_embeds": "AAAA"}, "has a prompt that is no text"),
        (CHAT, {"echo": True}, "wants its prompt in the answer"),
        (CHAT, {"prompt_logprobs": 0}, "wants its prompt computed"),
        (CHAT, {"truncate_prompt_tokens": -1}, "may be cut"),
        (CHAT, {"max_tokens": 1}, "wants one token"),
        (CHAT, {"max_completion_tokens": 1}, "wants one token"),
        (RESPONSE, {"max_output_tokens": 1}, "wants one token"),
        (MESSAGE, {"max_tokens": 1}, "wants one token"),
        (RESPONSE, {"truncation": None}, "may be cut"),
        (RESPONSE, {"background": True}, "is answered later"),
        (RESPONSE, {"previous_response_id": "r"}, "goes on with what one engine has stored"),
        (RESPONSE, {"tools": [{"type": "mcp"}]}, "has tools that the engine uses itself"),
    ],
)
def test_one_engine_answers_alone(path: str, fields: dict[str, Any], why: str) -> None:
    assert why_one_leg(parsed(path, **fields)[1]) == why


ONE_TOKEN: dict[str, dict[str, Any]] = {
    CHAT: {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 0, "logprobs": False},
    COMPLETION: {"max_tokens": 1, "min_tokens": 0, "logprobs": None},
    RESPONSE: {"max_output_tokens": 1, "store": False},
    MESSAGE: {"max_tokens": 1},
}


@given(
    path=st.sampled_from(sorted(ONE_TOKEN)),
    fields=st.dictionaries(
        st.sampled_from(["user", "stream", "temperature", "cache_salt", "metadata", "é"]),
        st.sampled_from([None, True, "x", "}"]),
    ),
    has_ids=st.booleans(),
)
def test_the_legs_are_the_clients_body_with_what_they_need(
    path: str, fields: dict[str, Any], has_ids: bool
) -> None:
    fields = {name: value for name, value in fields.items() if not _is_refused(name, value)}
    raw, body = parsed(path, **fields)
    client = json.loads(raw)
    ids = b"[1, 2]" if has_ids else None
    one = json.loads(prefill_body(raw, body, NIXL_PREFILL, ids) or b"")
    two = json.loads(decode_body(raw, body, json.dumps(REFERENCE).encode(), ids) or b"")
    params, reference = json.loads(NIXL_PREFILL), dict(REFERENCE)
    if has_ids and path == COMPLETION:
        client["prompt"] = [1, 2]
    elif has_ids:
        params["prompt_token_ids"] = reference["prompt_token_ids"] = [1, 2]
    assert two == {**client, "kv_transfer_params": reference}
    assert one == {**one, **ONE_TOKEN[path], "stream": False, "kv_transfer_params": params}
    added = {name for name in one if name not in client and one[name] not in (None, False, 0, 1)}
    assert added <= {"kv_transfer_params"}
    changed = {name for name in client if one[name] != client[name]}
    assert changed <= {*ONE_TOKEN[path], "stream"}


def _is_refused(name: str, value: object) -> bool:
    return (name == "stream" and isinstance(value, str)) or (
        name in ("cache_salt", "metadata") and value is True
    )


def test_a_format_stays_where_it_may_be_in_the_prompt() -> None:
    shape = {"type": "json_object"}
    raw, body = parsed(CHAT, response_format=shape)
    assert json.loads(prefill_body(raw, body, NIXL_PREFILL) or b"")["response_format"] == shape
    with_ids = json.loads(prefill_body(raw, body, NIXL_PREFILL, b"[1]") or b"")
    assert with_ids["response_format"] is None
    raw, body = parsed(COMPLETION, structured_outputs={"regex": "a"})
    assert json.loads(prefill_body(raw, body, NIXL_PREFILL) or b"")["structured_outputs"] is None


def test_a_body_that_is_not_utf_8_has_one_leg() -> None:
    raw = json.dumps({"model": "m", "prompt": "hi"}).encode("utf-16")
    body = PARSERS[COMPLETION](raw)
    assert prefill_body(raw, body, NIXL_PREFILL) is None
    assert decode_body(raw, body, b"{}") is None


def test_a_reference_is_sent_on_as_it_was_read() -> None:
    more = {**REFERENCE, "new_number": 1.5, "new_flag": True, "nothing": None}
    assert json.loads(read_reference(answer(more), HOSTS) or b"") == more
    assert read_reference(answer(None), HOSTS) is None
    assert read_reference(b'{"id": "x"}', HOSTS) is None


def test_pushed_blocks_are_the_prefill_engines_matter() -> None:
    pushed = {**REFERENCE, "transfer_mode": "push"}
    read = read_reference(answer(pushed), HOSTS, KvConnector.NIXL_PUSH)
    del pushed["remote_block_ids"]
    assert json.loads(read or b"") == pushed


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("127.0.0.1", ("localhost",)),
        ("localhost", ("127.0.0.1",)),
        ("::1", ("localhost",)),
        ("10.0.0.7", ("engine-0", "10.0.0.7")),
    ],
)
def test_the_side_channel_is_at_the_engines_host(host: str, hosts: tuple[str, ...]) -> None:
    assert read_reference(answer({**REFERENCE, "remote_host": host}), hosts)


@pytest.mark.parametrize("host", ["10.0.0.8", "localhost.evil", "", "0.0.0.0"])
def test_another_host_is_refused(host: str) -> None:
    with pytest.raises(BadReferenceError, match="remote_host"):
        read_reference(answer({**REFERENCE, "remote_host": host}), HOSTS)


NEEDED = [name for name in REFERENCE if name.startswith("do_") or name.startswith("remote_")][:7]


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(BadReferenceError, match=name):
        read_reference(answer({**REFERENCE, name: None}), HOSTS)
    lacking = {key: value for key, value in REFERENCE.items() if key != name}
    with pytest.raises(BadReferenceError, match=name):
        read_reference(answer(lacking), HOSTS)
    if name != "do_remote_prefill":
        with pytest.raises(BadReferenceError, match=name):
            check_given(lacking)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(
    name=st.sampled_from([*REFERENCE, "another"]),
    value=JSON,
    connector=st.sampled_from([KvConnector.NIXL, KvConnector.NIXL_PUSH]),
)
def test_what_is_not_refused_is_whole(name: str, value: object, connector: KvConnector) -> None:
    mode = "pull" if connector is KvConnector.NIXL else "push"
    given = {**REFERENCE, "transfer_mode": mode, name: value}
    try:
        read = read_reference(answer(given), HOSTS, connector)
    except BadReferenceError:
        return
    told = json.loads(read or b"")
    if connector is KvConnector.NIXL_PUSH:
        given.pop("remote_block_ids")
    assert told == given
    assert told["do_remote_prefill"] is True
    assert told["remote_host"] == "127.0.0.1"


@given(junk=st.binary(max_size=40) | JSON.map(lambda each: json.dumps(each).encode()))
def test_an_answer_that_is_something_else_is_refused_or_has_none(junk: bytes) -> None:
    with contextlib.suppress(BadReferenceError):
        assert read_reference(junk, HOSTS) is None


@pytest.mark.parametrize(("num_tokens", "block_size"), [(41, 16), (None, None), (41, None)])
def test_a_reference_of_as_many_tokens_as_the_prompt_has_is_read(
    num_tokens: int | None, block_size: int | None
) -> None:
    assert read_reference(answer(REFERENCE), HOSTS, num_tokens=num_tokens, block_size=block_size)


@pytest.mark.parametrize(
    ("num_tokens", "block_size", "field"),
    [
        (40, 16, "remote_num_tokens"),
        (41, 32, "remote_block_ids"),  # one too many: vLLM would take the last two
        (41, 8, "remote_block_ids"),  # too few end its core
    ],
)
def test_one_of_another_extent_is_refused(num_tokens: int, block_size: int, field: str) -> None:
    with pytest.raises(BadReferenceError, match=field):
        read_reference(answer(REFERENCE), HOSTS, num_tokens=num_tokens, block_size=block_size)


def test_blocks_of_several_kinds_are_not_counted() -> None:
    mixed = answer({**REFERENCE, "remote_block_ids": [[1, 2, 3], [7]]})

    assert read_reference(mixed, HOSTS, num_tokens=41, block_size=8)
