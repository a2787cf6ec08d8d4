"""The render endpoints give the ids of what would be generated from, as vLLM's do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.test_server import CHAT, COMPLETIONS, chat, posting

TEXT = {"model": "m", "prompt": "Hi"}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat("Hi")), (COMPLETIONS, TEXT)])
def test_without_the_flag_they_answer_as_vllm_does(path: str, body: dict[str, object]) -> None:
    [(status, answer)] = posting((f"{path}/render", body))

    assert status == 403
    assert answer["error"]["type"] == "PermissionDeniedError"
    assert "--enable-scale-out" in answer["error"]["message"]


def test_a_chats_rendering_has_the_ids_of_its_prompt() -> None:
    (_, told), (status, answer) = posting(
        (CHAT, chat("Hi", return_token_ids=True, max_tokens=1)),
        (f"{CHAT}/render", chat("Hi", cache_salt="s", max_tokens=5)),
        enable_scale_out=True,
    )

    assert status == 200
    assert answer["token_ids"] == told["prompt_token_ids"]
    assert answer["request_id"].startswith("chatcmpl-")
    assert answer["sampling_params"]["max_tokens"] == 5
    assert answer["cache_salt"] == "s"


def test_each_prompt_of_a_completion_is_rendered() -> None:
    answer: Any
    [(_, answer)] = posting(
        (f"{COMPLETIONS}/render", {"model": "m", "prompt": ["Hi", "Ho"]}), enable_scale_out=True
    )

    assert [bytes(each["token_ids"]) for each in answer] == [b"Hi", b"Ho"]
    assert [each["request_id"][-2:] for each in answer] == ["-0", "-1"]


@pytest.mark.parametrize(
    ("body", "status"), [({"model": "x", "messages": [{"role": "user"}]}, 404), ({}, 400)]
)
def test_bad_requests_are_refused_as_elsewhere(body: dict[str, object], status: int) -> None:
    [(answered, _)] = posting((f"{CHAT}/render", body), enable_scale_out=True)

    assert answered == status
