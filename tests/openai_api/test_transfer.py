"""What clients may not say of engines' caches."""

from __future__ import annotations

import pytest

from inferway.errors import InvalidRequestError
from inferway.openai_api.paths import PARSERS
from inferway.openai_api.transfer import untrusting

REST = '"model": "m", "prompt": "a", "input": "a", "items": [{}], "messages": [{"role": "user"}]'
HAVE_THEM = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]


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
        untrusting(PARSERS[path])(f"{{{REST}, {member}}}".encode())

    assert refused.value.param == param
    assert "10.0.0.1" not in str(refused.value)
    assert "trust_kv_transfer_params" in str(refused.value)


@pytest.mark.parametrize("path", PARSERS)
@pytest.mark.parametrize(
    "member",
    [
        '"kv_transfer_params": null',
        '"vllm_xargs": {"other": 1}',
        '"vllm_xargs": null',
        '"metadata": {"kv_transfer_params": "a word"}',
    ],
)
def test_all_else_is_read_as_it_was(path: str, member: str) -> None:
    raw = f"{{{REST}, {member}}}".encode()

    assert untrusting(PARSERS[path])(raw) == PARSERS[path](raw)
