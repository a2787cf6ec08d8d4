"""Engines behind a proxy that wants a path before theirs."""

from __future__ import annotations

import json

import pytest
from tests.integration.recorders import Recorder, in_front_of

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize("prefix", ["/llama", "/a/b-1"])
async def test_requests_and_questions_go_below_the_prefix(prefix: str) -> None:
    engine = Recorder(prefix=prefix)
    async with in_front_of(engine) as front:
        status, headers, _ = await front.ask(
            "/v1/chat/completions?x=1", BODY, content_type="application/json"
        )
        _, _, listed = await front.ask("/v1/models", method="GET")

    assert (status, headers["x-inferway-engine"]) == (200, "e0")
    assert [seen.path for seen in engine.seen] == [f"{prefix}/v1/chat/completions"]
    assert json.loads(listed)["data"][0]["id"] == "m"
