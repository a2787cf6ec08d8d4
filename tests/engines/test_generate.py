"""Tokens in, tokens out: what the gateway matches is what the engine reuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import Request, completion
from tests.engines.conftest import serve
from tests.engines.engine import MODEL, RealEngine
from tests.engines.gateway import cached, engine_of, send, wait_until_believed

GENERATE = "/inference/v1/generate"
IDS = [*range(2000, 2200)]  # 6 blocks, and a part


@pytest.fixture(scope="module")
def front(engines: Sequence[RealEngine], new_log: Callable[[str], Path]) -> Iterator[str]:
    """The URL of a gateway in front of the engine that has --enable-scale-out."""
    with serve(engines[:1], new_log("gateway-generate")) as program:
        yield program.url


def generate(ids: Sequence[int], params: dict[str, Any], **fields: Any) -> Request:
    body = {"model": MODEL, "token_ids": ids, "sampling_params": params, **fields}
    return Request("generate", GENERATE, body)


@pytest.mark.parametrize("params", [{"max_tokens": 4}, {"n": 2, "temperature": 1, "max_tokens": 4}])
def test_an_equal_prompt_is_matched_as_the_engine_reuses_it(
    params: dict[str, Any], front: str
) -> None:
    ids = [each + 500 * len(params) for each in IDS]
    request = generate(ids, params)
    first = send(front, request)
    # what is held of a prompt is asked for the completion of the same ids
    wait_until_believed(front, completion("same", ids), engine_of(first), 6)

    second = send(front, request)

    assert first.headers["x-inferway-matched-blocks"] == "0"
    assert (second.headers["x-inferway-matched-blocks"], cached(second).blocks) == ("6", 6)
    assert len(second.json["choices"]) == params.get("n", 1)


def test_a_stream_ends_with_its_usage(front: str) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    request = generate([each + 5000 for each in IDS], {"max_tokens": 3}, **options)

    with client.open_stream(front + GENERATE, request.body) as stream:
        events = [event for event in stream.read().split(b"\n\n") if event]

    assert events[-1] == b"data: [DONE]"
    assert b'"usage":{"prompt_tokens":200' in events[-2]


@pytest.mark.parametrize("ids", [[], [-1], [2**40], ["x"], [5] * 5000])
def test_ids_that_the_engine_refuses_the_gateway_refuses_too(
    ids: list[Any], front: str, engines: Sequence[RealEngine]
) -> None:
    body = generate(ids, {"max_tokens": 1}).body

    answers = [client.post(url + GENERATE, body) for url in (engines[0].url, front)]

    assert [answer.status for answer in answers] == [400, 400]
