"""The access log's lines."""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.http.clients import connected, echo, get, post, serving
from tests.upstream.engines import in_loop

from inferway.errors import UnknownModelError
from inferway.extension import PROBES
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.model import Endpoint, Target
from inferway.openai_api.usage import Usage
from inferway.routing.record import Record
from inferway.telemetry.access_log import AccessLog, Line

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def record(model: str = "m") -> Record:
    return Record(
        opened_at=10.0,
        model=model,
        target_model=model,
        reason="kv-aware",
        target=Target(Endpoint("h:1", "http://h:1", 0), 1.0, 12, 14),
        attempts=2,
        begun_at=10.25,
        usage=Usage(prompt=230, completion=128, cached=192),
        outcome="ok",
    )


def told_of(one: Record | None) -> Any:
    async def answer(_: Request, responder: Responder) -> None:
        responder.record = one
        responder.send(200, JSON, b"{}")

    return answer


async def lines(handler: Any, *requests: bytes) -> None:
    """Through the logger, first as text and then as JSON."""
    logs = [AccessLog("text"), AccessLog("json")]
    async with serving(handler, extensions=logs) as server, connected(server) as client:
        for request in requests:
            await client.ask(request)


def words(line: str) -> dict[str, str]:
    """A text line's fields by their names, as a reader of logfmt has them."""
    return {
        key: json.loads(value) if value.startswith('"') else value
        for key, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)
    }


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inferway.access")


@in_loop
async def test_a_line_names_client_path_status_bytes_and_ids_in_both_forms(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parent = f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01".encode()

    await lines(echo, post(b"{}", b"x-request-id: mine", parent, target=b"/a?secret=1"))

    text, encoded = caplog.messages
    whole = json.loads(encoded)
    assert {key: whole[key] for key in ("level", "logger", "client", "method", "path")} == {
        "level": "info",
        "logger": "inferway.access",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/a",
    }
    assert (whole["status"], whole["outcome"], whole["bytes"]) == (200, "ok", 19)
    assert (whole["request_id"], whole["trace_id"]) == ("mine", TRACE)
    assert whole["total_ms"] >= 0
    assert words(text).keys() == whole.keys() - {"time", "level", "logger"}
    assert "secret" not in caplog.text


@in_loop
async def test_a_line_begins_with_the_date_the_time_and_the_zone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = time.time()

    await lines(echo, get(b"/a"))

    text, encoded = caplog.messages
    for stamp in (text.split()[0], json.loads(encoded)["time"]):
        moment = datetime.fromisoformat(stamp)
        assert moment.utcoffset() is not None
        assert began - 1 < moment.timestamp() < time.time() + 1
    assert text.split()[1:3] == ["INFO", "inferway.access:"]


@in_loop
async def test_a_routed_request_s_line_says_how_it_was_decided_and_what_it_took(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await lines(told_of(record()), post())

    text, encoded = caplog.messages
    expected = {
        "model": "m",
        "reason": "kv-aware",
        "engine": "h:1",
        "attempts": 2,
        "matched_blocks": 12,
        "prompt_blocks": 14,
        "ttft_ms": 250.0,
        "prompt_tokens": 230,
        "cached_tokens": 192,
        "output_tokens": 128,
    }
    assert json.loads(encoded).items() >= expected.items()
    assert words(text).items() >= {key: str(value) for key, value in expected.items()}.items()


RECORDS: dict[str, Record | None] = {
    "none": None,
    "undecided": Record(1.0, model="m"),
    "sent as another model": msgspec.structs.replace(record("a b"), target_model='c"d'),
    "a model of an adapter, and no usage": msgspec.structs.replace(
        record(), usage=None, begun_at=0.0
    ),
    "an engine that tells no cached tokens": msgspec.structs.replace(record(), usage=Usage(1, 2)),
    "gone on elsewhere, with the blocks of another": msgspec.structs.replace(
        record(), continued=2, prefill_seconds=0.25, prefill_target=record().target
    ),
    "a prefill that nobody has answered": msgspec.structs.replace(record(), prefill_seconds=0.125),
}


@pytest.mark.parametrize("one", RECORDS.values(), ids=RECORDS)
@in_loop
async def test_both_forms_have_the_same_fields_in_the_same_order(
    one: Record | None, caplog: pytest.LogCaptureFixture
) -> None:
    await lines(told_of(one), post())

    text, encoded = caplog.messages
    told = json.loads(encoded)
    names = [name for name in told if name not in ("time", "level", "logger")]
    assert [*words(text)] == names
    assert words(text) == {name: str(told[name]) for name in names}


@in_loop
async def test_a_line_names_the_engine_whose_blocks_were_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    moved, computed = record(), record()
    moved.prefill_target = Target(Endpoint("h:2", "http://h:2", 1), 1.0, 0, 14)
    moved.prefill_seconds = computed.prefill_seconds = 0.25

    for one in (moved, computed):
        await lines(told_of(one), post())

    text, encoded, other, _ = caplog.messages
    assert json.loads(encoded).items() >= {"prefill_engine": "h:2", "prefill_ms": 250.0}.items()
    assert words(text).items() >= {"prefill_engine": "h:2", "prefill_ms": "250.0"}.items()
    assert "prefill_engine" not in words(other)
    assert words(other)["prefill_ms"] == "250.0"


@in_loop
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a\nstatus=500", id="a line break"),
        pytest.param('m" outcome="lost', id="quotes"),
        pytest.param("m outcome=lost", id="another key"),
        pytest.param("\x1b[2J\x00\x7f\u2028\u0085", id="control characters"),
        pytest.param("modèle 🤖", id="other alphabets"),
        pytest.param("\ud800", id="half a surrogate pair"),
    ],
)
async def test_no_model_name_can_end_a_line_or_add_a_field(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = record()
    one.model = one.target_model = name

    await lines(told_of(one), post())

    text, encoded = [record.getMessage() for record in caplog.records]
    assert text.isascii()
    assert text.isprintable()
    assert encoded.count("\n") == 0
    told = name.encode(errors="backslashreplace").decode()
    assert json.loads(encoded)["model"] == words(text)["model"] == told
    assert words(text)["outcome"] == json.loads(encoded)["outcome"] == "ok"


@in_loop
async def test_a_model_name_of_a_megabyte_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    await lines(told_of(record("é" * 1_000_000)), post())

    for message in caplog.messages:
        assert len(message) < 2_000
    assert json.loads(caplog.messages[1])["model"] == "é" * 128


@in_loop
async def test_a_refused_request_is_no_whole_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(_: Request, __: Responder) -> None:
        raise UnknownModelError("no engine serves it")

    await lines(refuse, post())

    line = json.loads(caplog.messages[1])
    assert (line["status"], line["outcome"]) == (404, "refused")


@in_loop
async def test_what_is_written_for_a_stream_that_is_cut_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hang(_: Request, responder: Responder) -> None:
        responder.start(200, JSON)
        responder.write(b"a piece")

        class Engine:
            def pause(self) -> None: ...
            def resume(self) -> None: ...
            def client_gone(self) -> None: ...

        responder.attach(Engine())

    log = AccessLog("json")
    async with serving(hang, extensions=[log]) as server, connected(server) as client:
        await client.send(post())
        await client.answer(to_head=True)
        server.cut()
        await server.stop(0)

    line = json.loads(caplog.messages[-1])
    assert (line["status"], line["outcome"], line["bytes"]) == (200, "shutdown", 7)


@in_loop
async def test_probes_have_no_lines_unless_they_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = [AccessLog("json"), AccessLog("json", probes=True)]
    async with serving(echo, extensions=logs) as server, connected(server) as client:
        for path in sorted(PROBES):
            await client.ask(get(path.encode()))

    (all_of_them,) = caplog.messages
    assert [json.loads(line)["path"] for line in all_of_them.splitlines()] == sorted(PROBES)


def test_the_page_on_logs_lists_every_field_in_order() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observe.md").read_text()
    table = page.partition("| field | meaning |")[2].partition("\n\n")[0]

    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)

    assert told == list(Line.__struct_fields__)
