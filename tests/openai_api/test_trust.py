"""What clients may not say to engines."""

from __future__ import annotations

import json

import pytest

from inferway.errors import InvalidRequestError
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.trust import Trust
from inferway.openai_api.unread import read_unread

REST = (
    '"model": "m", "prompt": "a", "input": "a", "items": [{}], "messages": [{"role": "user"}],'
    ' "token_ids": [1], "sampling_params": {}'
)
HAVE_THEM = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
GENERATE = "/inference/v1/generate"


@pytest.mark.parametrize("path", HAVE_THEM)
@pytest.mark.parametrize(
    ("member", "param"),
    [
        ('"kv_transfer_params": {"remote_host": "10.0.0.1"}', "kv_transfer_params"),
        ('"ec_transfer_params": {}', "ec_transfer_params"),
        ('"vllm_xargs": {"kv_transfer_params": "a"}', "vllm_xargs.kv_transfer_params"),
        ('"vllm_xargs": {"a": 1, "ec_transfer_params": null}', "vllm_xargs.ec_transfer_params"),
        ('"kv_transfer_params": null, "kv_transfer_params": {"a": 1}', "kv_transfer_params"),
    ],
)
def test_they_are_refused_by_name(path: str, member: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Trust().checked(PARSERS[path])(f"{{{REST}, {member}}}".encode())

    assert refused.value.param == param
    assert "10.0.0.1" not in str(refused.value)
    assert "trust_kv_transfer_params" in str(refused.value)


@pytest.mark.parametrize(
    ("member", "param"),
    [
        ('"kv_transfer_params": {"remote_host": "10.0.0.1"}', "kv_transfer_params"),
        (
            '"sampling_params": {"extra_args": {"kv_transfer_params": {"a": 1}}}',
            "sampling_params.extra_args.kv_transfer_params",
        ),
    ],
)
def test_tokens_in_are_refused_by_the_name_of_theirs(member: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Trust().checked(PARSERS[GENERATE])(f"{{{REST}, {member}}}".encode())

    assert refused.value.param == param
    assert "10.0.0.1" not in str(refused.value)


@pytest.mark.parametrize("path", PARSERS)
@pytest.mark.parametrize(
    "member",
    [
        '"kv_transfer_params": null',
        '"vllm_xargs": {"other": 1}',
        '"vllm_xargs": null',
        '"metadata": {"kv_transfer_params": "a word", "priority": -1}',
        '"priority": null',
        '"priority": 0',
        '"priority": "0"',
    ],
)
def test_all_else_is_read_as_it_was(path: str, member: str) -> None:
    raw = f"{{{REST}, {member}}}".encode()

    # arrays of token ids are not equal at once
    assert repr(Trust().checked(PARSERS[path])(raw)) == repr(PARSERS[path](raw))


PRIORITIES = ["-1", "1", '"-1"', "-1.0", "true", '"high"', '"0-1"', "[]"]


@pytest.mark.parametrize("path", [*HAVE_THEM, "/v1/embeddings", GENERATE])
@pytest.mark.parametrize("value", PRIORITIES)
def test_a_place_in_the_engines_queue_is_refused(path: str, value: str) -> None:
    raw = f'{{{REST}, "priority": 0, "priority": {value}}}'.encode()

    with pytest.raises(InvalidRequestError) as refused:
        Trust().checked(PARSERS[path])(raw)

    assert refused.value.param == "priority"
    assert "trust_priority" in str(refused.value)


@pytest.mark.parametrize("value", PRIORITIES)
def test_so_it_is_in_bodies_that_are_not_read_further(value: str) -> None:
    found = read_unread(f'{{"model": "m", "priority": {value}}}'.encode())

    with pytest.raises(InvalidRequestError, match="priority: expected 0"):
        Trust().check(found.members)


def test_an_operator_may_trust_clients_with_one_and_not_the_other() -> None:
    transfer = f'{{{REST}, "kv_transfer_params": {{"a": 1}}}}'.encode()
    priority = f'{{{REST}, "priority": -1}}'.encode()
    parse = PARSERS["/v1/chat/completions"]

    Trust(transfers=True).checked(parse)(transfer)
    Trust(priority=True).checked(parse)(priority)

    with pytest.raises(InvalidRequestError):
        Trust(transfers=True).checked(parse)(priority)
    with pytest.raises(InvalidRequestError):
        Trust(priority=True).checked(parse)(transfer)


@pytest.mark.parametrize(
    "at", ['"kv_transfer_params": {}', '"vllm_xargs": {{"kv_transfer_params": {}}}']
)
def test_what_ends_an_engine_s_core_is_taken_from_nobody(at: str) -> None:
    raw = f"{{{REST}, {at.format(json.dumps({'do_remote_prefill': True}))}}}".encode()

    with pytest.raises(InvalidRequestError, match="remote_") as refused:
        Trust(transfers=True).checked(PARSERS["/v1/chat/completions"])(raw)

    assert refused.value.param == "kv_transfer_params"
