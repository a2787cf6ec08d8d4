"""The picker's lines in the access log."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.llmd.ext_proc.pods import rqb, rqh, rsb, rsh
from tests.llmd.ext_proc.test_server import BODY, Running

from inferway.telemetry.access_log import AccessLog
from inferway_llmd.ext_proc.messages import NONE

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
COMPLETION = (":path", "/v1/completions?secret=1")
ANSWER = (
    b'{"usage":{"prompt_tokens":81,"completion_tokens":4,"total_tokens":85,'
    b'"prompt_tokens_details":{"cached_tokens":64}}}'
)


class Logged:
    """A picker with an access log."""

    def __init__(self, running: Running, log: AccessLog, caplog: pytest.LogCaptureFixture) -> None:
        self.running = running
        self._log = log
        self._caplog = caplog

    async def send(self, *messages: Any) -> None:
        """One stream, which ends with them; until the picker has ended it, too."""
        call = self.running.process()
        for message in messages:
            await call.write(message)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass

    def lines(self) -> list[str]:
        self._log.flush()
        return [line for message in self._caplog.messages for line in message.splitlines()]

    def line(self) -> dict[str, Any]:
        (line,) = self.lines()
        told: dict[str, Any] = json.loads(line)
        return told


@pytest.fixture(params=["json"])
async def logged(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Logged]:
    caplog.set_level(logging.INFO, "inferway.access")
    log = AccessLog(request.param)
    async with Running(extensions=[log]) as running:
        ticks = itertools.count(start=10)
        running.stream.director.clock = lambda: float(next(ticks))
        yield Logged(running, log, caplog)


async def test_a_pick_s_line_says_what_it_was_asked_where_it_went_and_how_it_ended(
    logged: Logged,
) -> None:
    parent = ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")

    await logged.send(
        rqh((":method", "POST"), COMPLETION, ("x-request-id", "mine"), parent),
        rqb(BODY, eos=True),
        rsh((":status", "200"), ("content-type", "application/json")),
        rsb(ANSWER, eos=True),
    )

    line = logged.line()
    assert line.pop("time")
    assert line.pop("total_ms") >= 0
    assert line.pop("ttft_ms") >= 1000  # of a clock that goes on by a second each time
    assert line == {
        "level": "info",
        "logger": "inferway.access",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "outcome": "ok",
        "model": "m",
        "reason": "no-block-size",
        "engine": "10.0.0.2:8000",
        "attempts": 1,
        "matched_blocks": 0,
        "prompt_blocks": 0,
        "prompt_tokens": 81,
        "cached_tokens": 64,
        "output_tokens": 4,
        "bytes": len(ANSWER),
        "request_id": "mine",
        "trace_id": TRACE,
    }


@pytest.mark.parametrize("logged", ["text"], indirect=True)
async def test_as_text_it_has_the_same_fields(logged: Logged) -> None:
    await logged.send(rqh(COMPLETION), rqb(BODY, eos=True), rsh((":status", "200"), eos=True))

    (line,) = logged.lines()
    assert " INFO    inferway.access: method=POST path=/v1/completions status=200" in line
    assert "outcome=ok model=m reason=no-block-size engine=10.0.0.2:8000 attempts=1" in line
    assert "secret" not in line


async def test_a_request_without_a_prompt_has_a_line_too(logged: Logged) -> None:
    head = rqh((":method", "GET"), (":path", "/v1/models"), eos=True)

    await logged.send(head, rsh((":status", "200")), rsb(b"{}", eos=True))

    line = logged.line()
    assert (line["method"], line["path"], line["reason"]) == ("GET", "/v1/models", "unread")
    assert (line["status"], line["outcome"], line["bytes"]) == (200, "ok", 2)
    assert line["engine"] in ("10.0.0.1:8000", "10.0.0.2:8000")
    assert "ttft_ms" in line


async def test_a_refused_request_s_line_names_its_model(logged: Logged) -> None:
    logged.running.stream.fleet.endpoints.clear()

    await logged.send(rqh(COMPLETION), rqb(BODY, eos=True))

    line = logged.line()
    assert (line["status"], line["outcome"], line["model"]) == (503, "error", "m")
    assert not line.keys() & {"engine", "bytes", "ttft_ms"}


async def test_a_body_over_the_limit_has_a_line(logged: Logged) -> None:
    await logged.send(rqh(COMPLETION), rqb(b"x" * (5 << 20)), rqb(b"x"))

    line = logged.line()
    assert (line["status"], line["outcome"]) == (413, "refused")


async def test_a_stream_that_ends_before_the_answer_begins_is_a_client_that_has_gone(
    logged: Logged,
) -> None:
    await logged.send(rqh(COMPLETION), rqb(BODY, eos=True))

    line = logged.line()
    assert (line["status"], line["outcome"]) == (499, "client_gone")
    assert (line["engine"], line["bytes"]) == ("10.0.0.2:8000", 0)


async def test_a_stream_that_ends_before_the_request_is_complete_has_no_line(
    logged: Logged,
) -> None:
    await logged.send(rqh(COMPLETION), rqb(b"{"))

    assert logged.lines() == []


async def test_what_does_not_pass_the_picker_is_not_told(logged: Logged) -> None:
    head = rqh(COMPLETION)
    head.protocol_config.request_body_mode = 4
    head.protocol_config.response_body_mode = NONE

    await logged.send(head, rqb(BODY, eos=True), rsh((":status", "200")))

    line = logged.line()
    assert (line["status"], line["outcome"]) == (200, "ok")
    assert not line.keys() & {"bytes", "ttft_ms", "output_tokens"}


async def test_probes_that_pass_have_no_lines(logged: Logged) -> None:
    await logged.send(rqh((":path", "/health"), eos=True), rsh((":status", "200"), eos=True))

    assert logged.lines() == []


@pytest.mark.parametrize(
    ("said", "client"),
    [
        ("10.0.0.9:51234", "10.0.0.9"),
        ("[fd00::9]:51234", "fd00::9"),
        ("@/a/socket", None),
        ("10.0.0.9:1 outcome=ok", None),
    ],
)
async def test_the_client_is_told_if_the_proxy_tells_it(
    said: str, client: str | None, logged: Logged
) -> None:
    head = rqh((":path", "/v1/models"), eos=True)
    entry = head.attributes.add(key="envoy.filters.http.ext_proc")
    entry.value.update({"source.address": said})

    await logged.send(head, rsh((":status", "200"), eos=True))

    assert logged.line().get("client") == client
