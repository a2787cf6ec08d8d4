"""The access log's lines."""

from __future__ import annotations

import json
import logging
import time

import pytest
from tests.frontends.http.clients import connected, echo, get, post, serving
from tests.upstream.engines import in_loop

from inferway.frontends.http.access_log import LINES, AccessLog

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@in_loop
async def test_a_line_as_json_says_what_a_line_as_text_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "inferway.access")
    began = time.time()
    logs = [AccessLog(LINES[name]) for name in ("text", "json")]
    async with serving(echo, logs=logs) as server, connected(server) as client:
        parent = f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01".encode()
        await client.ask(post(b"{}", b"x-request-id: mine", parent, target=b"/a?secret=1"))
        await client.ask(get(b"/%22b"))
    text, lines = [message.splitlines() for message in caplog.messages]

    words = text[0].split()
    first, second = [json.loads(line) for line in lines]
    assert words[:4] == ["POST", "/a", "200", "19"]
    assert words[5:] == ["-", "mine"]
    assert began - 1 < first.pop("time") < time.time() + 1
    assert first.pop("milliseconds") >= 0
    assert first == {
        "method": "POST",
        "path": "/a",
        "status": 200,
        "bytes": 19,
        "engine": "-",
        "request_id": "mine",
        "trace_id": TRACE,
    }
    assert second["path"] == "/%22b"
    assert "trace_id" not in second
    assert "secret" not in "".join(caplog.messages)
