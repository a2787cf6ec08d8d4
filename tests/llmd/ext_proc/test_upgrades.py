"""Requests whose end does not come before they are decided: upgrades, CONNECT, Content-Length."""

from __future__ import annotations

import gzip

import pytest
from tests.llmd.ext_proc.pods import rqb, rqh, rqt
from tests.llmd.ext_proc.test_cases import destination, kind, piece
from tests.llmd.ext_proc.test_picker import stream

CHAT = b'{"model":"large","messages":[{"role":"user","content":"x"}]}'
UPGRADE = (("connection", "Upgrade"), ("upgrade", "websocket"))


@pytest.mark.parametrize(
    "headers",
    [
        ((":method", "GET"), (":path", "/v1/realtime?model=large"), *UPGRADE),
        ((":method", "CONNECT"), (":path", "/v1/realtime?model=large"), (":protocol", "websocket")),
    ],
    ids=["HTTP/1.1", "HTTP/2"],
)
async def test_an_upgrade_is_decided_by_its_head_and_all_that_follows_passes(
    headers: tuple[tuple[str, str], ...],
) -> None:
    made = stream()

    (answered,) = await made.send(rqh(*headers))
    assert destination(answered) == "10.0.0.3:8000"  # the least loaded of that model

    for body, ended in ((b"frame", False), (b"", False), (b"last", True)):
        (answered,) = await made.send(rqb(body, eos=ended))
        assert (kind(answered), piece(answered).body) == ("RQB", body)
        assert piece(answered).end_of_stream is ended
    assert await made.send(rqb(b"", eos=True)) == []


async def test_an_upgrade_for_a_model_that_nobody_serves_goes_to_the_least_loaded_of_all() -> None:
    (answered,) = await stream().send(
        rqh((":method", "GET"), (":path", "/v1/realtime?model=nobody"), *UPGRADE)
    )

    assert destination(answered) == "10.0.0.1:8000"


async def test_a_body_is_decided_when_as_many_bytes_have_come_as_its_head_says() -> None:
    made = stream()
    head = rqh(
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        ("content-length", str(len(CHAT))),
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "h2c"),
    )

    assert await made.send(head, rqb(CHAT[:9])) == []
    answered = await made.send(rqb(CHAT[9:]))
    assert destination(answered[0]) in ("10.0.0.2:8000", "10.0.0.3:8000")
    assert (piece(answered[1]).body, piece(answered[1]).end_of_stream) == (CHAT, False)

    (end,) = await made.send(rqb(b"", eos=True))
    assert (piece(end).body, piece(end).end_of_stream) == (b"", True)


async def test_trailers_behind_a_body_with_a_length_are_answered() -> None:
    made = stream()
    head = rqh((":path", "/v1/chat/completions"), ("content-length", str(len(CHAT))))

    await made.send(head, rqb(CHAT))

    assert [kind(each) for each in await made.send(rqt())] == ["RQT"]


async def test_a_compressed_body_is_forwarded_as_it_was_before() -> None:
    made = stream()
    head = rqh(
        (":path", "/v1/chat/completions"),
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    )

    answered = await made.send(head, rqb(gzip.compress(CHAT), eos=True))

    assert piece(answered[1]).body == CHAT
    mutation = answered[0].request_headers.response.header_mutation
    assert "content-encoding" in mutation.remove_headers
    (length,) = [h.header for h in mutation.set_headers if h.header.key == "content-length"]
    assert length.raw_value == str(len(CHAT)).encode()


async def test_a_body_in_an_unknown_coding_is_refused() -> None:
    made = stream()
    head = rqh((":path", "/v1/chat/completions"), ("content-encoding", "compress"))

    (answered,) = await made.send(head, rqb(b"x", eos=True))

    assert answered.immediate_response.status.code == 415
    assert b"content-encoding 'compress': expected one of" in answered.immediate_response.body
