"""What a client of HTTP/2 may say, and what it is answered (RFC 9113). That calls of gRPC's own
client, and of Envoy's, are answered is told by test_server.py and tests/envoy."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.llmd.ext_proc.wire.peer import Peer, Wire, said

from inferway_llmd.ext_proc.wire.connection import Connection
from inferway_llmd.ext_proc.wire.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Fault,
    Status,
    frame,
    message_head,
    window_update,
)


@pytest.fixture
async def peer() -> Peer:
    return Peer()


async def test_messages_may_be_cut_anywhere_and_stand_together(peer: Peer) -> None:
    called = peer.open()
    stream = said(b"one") + said(b"") + said(b"three" * 9)

    for i in range(len(stream)):
        peer.say(frame(DATA, 0, 1, stream[i : i + 1]))
    peer.say(frame(DATA, END_STREAM, 1, stream))

    assert called.messages == [b"one", b"", b"three" * 9] * 2
    assert called.told == ["end"]


async def test_frames_may_be_cut_anywhere(peer: Peer) -> None:
    data = frame(HEADERS, END_HEADERS, 1, peer.block()) + frame(DATA, END_STREAM, 1, said(b"m"))

    for i in range(len(data)):
        peer.say(data[i : i + 1])

    assert peer.calls[0].messages == [b"m"]
    assert peer.calls[0].told == ["end"]


async def test_an_answer_has_a_head_messages_and_trailers(peer: Peer) -> None:
    call = peer.open(flags=END_STREAM).call

    call.send(b"answer")
    call.finish()
    await asyncio.sleep(0)

    head, message, end = peer.heard()
    assert peer.fields(head) == {":status": "200", "content-type": "application/grpc"}
    assert (message.kind, message.payload) == (DATA, said(b"answer"))
    assert (end.flags & END_STREAM, peer.fields(end)) == (END_STREAM, {"grpc-status": "0"})


async def test_who_has_not_said_its_end_is_told_that_it_need_not(peer: Peer) -> None:
    peer.open().call.finish()
    await asyncio.sleep(0)

    end, rest = peer.heard()
    assert end.flags & END_STREAM
    assert (rest.kind, int.from_bytes(rest.payload)) == (RST_STREAM, Fault.NO_ERROR)
    peer.say(frame(DATA, END_STREAM, 1, said(b"under way")))
    assert not peer.wire.closed


async def test_an_error_is_told_with_its_words(peer: Peer) -> None:
    peer.open(flags=END_STREAM).call.finish(Status.NOT_FOUND, "no 100 % of 'ä'")
    await asyncio.sleep(0)

    [end] = peer.heard()
    assert peer.fields(end) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": "no 100 %25 of '%C3%A4'",
    }


async def test_headers_may_be_continued_padded_and_have_a_priority(peer: Peer) -> None:
    block = peer.block()
    head = b"\x03" + b"\0\0\0\0\x10" + block[:7] + b"\0\0\0"

    peer.say(frame(HEADERS, PADDED | HAS_PRIORITY, 1, head))
    peer.say(frame(CONTINUATION, 0, 1, block[7:9]) + frame(CONTINUATION, END_HEADERS, 1, block[9:]))
    peer.say(frame(DATA, PADDED | END_STREAM, 1, b"\x02" + said(b"m") + b"\0\0"))

    assert peer.calls[0].messages == [b"m"]


async def test_an_empty_frame_may_be_the_end(peer: Peer) -> None:
    called = peer.open()

    peer.say(frame(DATA, 0, 1, said(b"m")) + frame(DATA, END_STREAM, 1))

    assert (called.messages, called.told) == ([b"m"], ["end"])


async def test_trailers_end_a_call(peer: Peer) -> None:
    called = peer.open()

    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, peer.encoder.encode([("x-t", "1")])))

    assert called.told == ["end"]


async def test_headers_of_every_form_are_read_again_when_the_table_has_changed(peer: Peer) -> None:
    for stream in range(1, 21, 2):
        peer.open(stream, _authority=f"host-{stream // 6}")  # again and again a new entry

    assert len(peer.calls) == 10


async def test_an_unknown_method_is_unimplemented(peer: Peer) -> None:
    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, peer.block(_path="/Nobody")))
    await asyncio.sleep(0)

    [end] = peer.heard()
    assert peer.fields(end)["grpc-status"] == "12"
    assert peer.calls == []


async def test_what_is_no_grpc_is_told_so_by_its_status(peer: Peer) -> None:
    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, peer.block(_method="GET")))
    await asyncio.sleep(0)

    [end] = peer.heard()
    assert peer.fields(end) == {":status": "415"}


async def test_a_message_over_the_limit_ends_the_call_and_not_the_others(peer: Peer) -> None:
    first, second = peer.open(1), peer.open(3)

    peer.say(frame(DATA, 0, 1, message_head(1001) + b"x" * 20))
    peer.say(frame(DATA, 0, 3, said(b"x" * 1000)))
    await asyncio.sleep(0)

    end = peer.heard()[0]
    assert peer.fields(end)["grpc-status"] == str(int(Status.RESOURCE_EXHAUSTED))
    assert first.told == ["gone"]
    assert second.messages == [b"x" * 1000]


async def test_compressed_messages_are_refused(peer: Peer) -> None:
    called = peer.open()

    peer.say(frame(DATA, 0, 1, b"\1\0\0\0\1x"))
    await asyncio.sleep(0)

    assert peer.fields(peer.heard()[0])["grpc-status"] == str(int(Status.UNIMPLEMENTED))
    assert (called.messages, called.told) == ([], ["gone"])


async def test_a_message_that_is_cut_off_is_an_error(peer: Peer) -> None:
    called = peer.open()

    peer.say(frame(DATA, END_STREAM, 1, said(b"whole")[:-1]))

    assert called.told == ["gone"]


async def test_who_resets_a_call_is_gone(peer: Peer) -> None:
    called = peer.open()

    peer.say(frame(RST_STREAM, 0, 1, (8).to_bytes(4)))

    assert called.told == ["gone"]
    called.call.send(b"late")
    await asyncio.sleep(0)
    assert [each.kind for each in peer.heard()] == []


async def test_a_lost_connection_ends_all_its_calls(peer: Peer) -> None:
    calls = [peer.open(1), peer.open(3)]

    peer.connection.connection_lost(None)

    assert [each.told for each in calls] == [["gone"], ["gone"]]
    assert peer.closed == 1


async def test_no_more_is_sent_than_a_call_has_room_for(peer: Peer) -> None:
    peer.say(frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2) + (10).to_bytes(4)))
    call = peer.open().call
    peer.heard()

    call.send(b"0123456789")
    call.finish()
    await asyncio.sleep(0)
    head, first = peer.heard()
    peer.say(window_update(1, 3))
    [second] = peer.heard()
    peer.say(window_update(1, 100))
    third, end, _ = peer.heard()

    assert first.payload + second.payload + third.payload == said(b"0123456789")
    assert [len(each.payload) for each in (first, second)] == [10, 3]
    assert (head.kind, end.flags & END_STREAM) == (HEADERS, END_STREAM)


async def test_no_more_is_sent_than_the_connection_has_room_for(peer: Peer) -> None:
    peer.say(frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2) + (1 << 20).to_bytes(4)))
    calls = [peer.open(1).call, peer.open(3).call]
    peer.heard()

    for call in calls:
        call.send(b"x" * 50_000)
    await asyncio.sleep(0)
    sent = sum(len(each.payload) for each in peer.heard() if each.kind == DATA)
    assert sent == FIRST_WINDOW
    peer.say(window_update(0, 1 << 20))

    sent += sum(len(each.payload) for each in peer.heard() if each.kind == DATA)
    assert sent == 2 * 50_005


async def test_a_window_that_shrinks_below_what_was_sent_is_waited_for(peer: Peer) -> None:
    call = peer.open().call
    call.send(b"x" * 1000)
    peer.say(frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2) + (100).to_bytes(4)))
    peer.heard()

    call.send(b"more")
    await asyncio.sleep(0)
    assert peer.heard() == []
    peer.say(window_update(1, 2000))

    assert [each.payload for each in peer.heard()] == [said(b"more")]


async def test_pieces_are_no_larger_than_the_client_takes(peer: Peer) -> None:
    call = peer.open().call
    peer.heard()

    call.send(b"x" * 40_000)
    await asyncio.sleep(0)
    assert [len(each.payload) for each in peer.heard()[1:]] == [16_384, 16_384, 7_237]
    peer.say(frame(SETTINGS, 0, 0, MAX_FRAME_SIZE.to_bytes(2) + (30_000).to_bytes(4)))
    peer.say(window_update(0, 1 << 20) + window_update(1, 1 << 20))
    peer.heard()
    call.send(b"x" * 40_000)
    await asyncio.sleep(0)

    assert [len(each.payload) for each in peer.heard()] == [30_000, 10_005]


async def test_a_full_socket_is_waited_for(peer: Peer) -> None:
    call = peer.open().call
    peer.connection.pause_writing()
    call.send(b"later")
    await asyncio.sleep(0)
    assert DATA not in [each.kind for each in peer.heard()]

    peer.connection.resume_writing()
    await asyncio.sleep(0)

    assert [each.payload for each in peer.heard()] == [said(b"later")]


async def test_a_transport_that_says_too_late_that_it_is_full_is_not_filled(peer: Peer) -> None:
    """uvloop's says so with its next turn."""
    peer.say(frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2) + (1 << 24).to_bytes(4)))
    peer.say(window_update(0, 1 << 24))
    call = peer.open().call
    peer.heard()

    call.send(b"x" * 1_000_000)
    sent = sum(len(each.payload) for each in peer.heard() if each.kind == DATA)
    assert sent <= 9 * 16_384
    await asyncio.sleep(0)
    peer.connection.pause_writing()  # what is under way now is the last of it
    await asyncio.sleep(0)
    sent += sum(len(each.payload) for each in peer.heard() if each.kind == DATA)
    assert sent <= 18 * 16_384
    peer.connection.resume_writing()
    for _ in range(9):
        await asyncio.sleep(0)

    assert sent + sum(len(each.payload) for each in peer.heard() if each.kind == DATA) == 1_000_005


async def test_the_client_hears_of_room_again_but_not_while_it_takes_no_answers() -> None:
    peer = Peer(max_message=2 << 20)
    call = peer.open().call
    large = message_head(1 << 20) + b"x" * (1 << 20)

    def upload() -> list[int]:
        for at in range(0, 600_000, 16_000):
            peer.say(frame(DATA, 0, 1, large[at : at + 16_000]))
        return [
            int.from_bytes(each.payload)
            for each in peer.heard()
            if each.kind == WINDOW_UPDATE and each.stream
        ]

    assert sum(upload()) >= 1 << 19
    peer.connection.pause_writing()
    call.send(b"y" * (1 << 20))
    peer.heard()
    assert upload() == []
    peer.connection.resume_writing()
    for _ in range(20):
        peer.say(window_update(1, 65_000) + window_update(0, 65_000))
    assert sum(len(f.payload) for f in peer.heard() if f.kind == DATA) == (1 << 20) + 5


async def test_a_ping_is_answered_and_settings_too(peer: Peer) -> None:
    peer.say(frame(PING, 0, 0, b"8 bytes!") + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
    peer.say(frame(PRIORITY, 0, 9, b"\0\0\0\0\0") + frame(99, 0, 0, b"unknown"))

    ping, settings = peer.heard()
    assert (ping.kind, ping.flags, ping.payload) == (PING, ACK, b"8 bytes!")
    assert (settings.kind, settings.flags) == (SETTINGS, ACK)


async def test_at_a_drain_calls_under_way_go_on_and_the_connection_closes_behind_them(
    peer: Peer,
) -> None:
    first = peer.open(1, flags=END_STREAM).call
    peer.connection.drain()
    await asyncio.sleep(0)
    goaway, ping = peer.heard()
    assert goaway.kind == GOAWAY
    under_way = peer.open(3, flags=END_STREAM).call  # the client did not know yet
    peer.say(frame(PING, ACK, 0, ping.payload))
    [last] = peer.heard()
    assert int.from_bytes(last.payload[:4]) == 3

    peer.say(frame(HEADERS, END_HEADERS, 5, peer.block()))
    [refused] = peer.heard()
    assert int.from_bytes(refused.payload) == Fault.REFUSED_STREAM
    first.finish()
    assert not peer.wire.closed
    under_way.finish()

    assert peer.wire.closed
    assert not peer.wire.aborted


BROKEN = {
    "an even stream": frame(HEADERS, END_HEADERS, 2),
    "headers on no stream": frame(HEADERS, END_HEADERS, 0),
    "headers that are none": frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
    "headers that are not continued": frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, b"8" * 8),
    "continued by another stream": frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 3),
    "nothing to continue": frame(CONTINUATION, 0, 1),
    "endless headers": frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, b"x" * 16_000) * 5,
    "too much padding": frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05abc"),
    "a frame that is too large": frame(DATA, 0, 1, b"x" * 16_385),
    "data of a stream that was not opened": frame(DATA, 0, 1, b"x"),
    "data on no stream": frame(DATA, 0, 0, b"x"),
    "the end of a stream that was not opened": frame(RST_STREAM, 0, 7, b"\0\0\0\0"),
    "a reset of a wrong size": frame(RST_STREAM, 0, 1, b"\0"),
    "settings of a wrong size": frame(SETTINGS, 0, 0, b"\0" * 5),
    "settings of a stream": frame(SETTINGS, 0, 1),
    "an answer to settings that says more": frame(SETTINGS, ACK, 0, b"\0" * 6),
    "a window too large": frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
    "frames too small": frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1"),
    "a ping of a wrong size": frame(PING, 0, 0, b"7 bytes"),
    "a ping of a stream": frame(PING, 0, 1, b"8 bytes!"),
    "no more room": window_update(0, 0),
    "room that overflows": window_update(0, (1 << 31) - 1),
    "a push": frame(PUSH_PROMISE, 0, 1),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_what_is_no_http2_closes_the_connection_and_says_why(
    peer: Peer, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer.say(BROKEN[broken])

    [goaway] = peer.heard()
    assert goaway.kind == GOAWAY
    assert int.from_bytes(goaway.payload[4:8]) != Fault.NO_ERROR
    assert peer.wire.closed
    assert "a proxy's connection is closed" in caplog.text
    peer.say(frame(PING, 0, 0, b"8 bytes!"))
    assert peer.heard() == []


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (window_update(1, 0), Fault.PROTOCOL_ERROR),
        (window_update(1, (1 << 31) - 1), Fault.FLOW_CONTROL_ERROR),
        (frame(DATA, END_STREAM, 1) + frame(DATA, 0, 1, b"x"), Fault.STREAM_CLOSED),
        (frame(HEADERS, END_HEADERS, 1, b"\x82"), Fault.PROTOCOL_ERROR),
    ],
)
async def test_what_breaks_one_call_leaves_the_others(
    peer: Peer, said: bytes, fault: Fault
) -> None:
    broken, other = peer.open(1), peer.open(3)

    peer.say(said)

    [reset] = peer.heard()
    assert (reset.kind, reset.stream, int.from_bytes(reset.payload)) == (RST_STREAM, 1, fault)
    assert broken.told[-1] == "gone"
    assert other.told == []
    assert not peer.wire.closed


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "no HTTP/2"),
    ],
)
async def test_who_speaks_something_else_is_named_in_the_log(
    first: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire()
    connection = Connection({}, 1000, lambda _: None, lambda _: None)
    connection.connection_made(wire)

    connection.data_received(first)

    assert wire.closed
    assert words in caplog.text


FRAMES = st.builds(
    frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5]),
    st.binary(max_size=40) | st.sampled_from([said(b"m"), b"\0" * 4, b"\0\0\0\x09", b"8 bytes!"]),
)


@given(frames=st.lists(FRAMES, max_size=12), cut=st.integers(1, 60), opens=st.booleans())
def test_no_bytes_at_all_are_more_than_a_fault_of_the_clients(
    frames: list[bytes], cut: int, opens: bool
) -> None:
    async def speak() -> None:
        peer = Peer()
        if opens:
            peer.open(1)
        data = b"".join(frames)
        for at in range(0, len(data), cut):
            peer.say(data[at : at + cut])
        for called in peer.calls:
            called.call.send(b"answer")
            called.call.finish()
        peer.connection.connection_lost(None)
        assert peer.connection.calls == {}
        assert all(called.told.count("gone") <= 1 for called in peer.calls)

    asyncio.run(speak())


async def test_who_reads_nothing_of_what_it_asks_for_is_cut_off(peer: Peer) -> None:
    peer.connection.pause_writing()
    peer.wire.buffered = 9 << 20

    peer.say(frame(PING, 0, 0, b"8 bytes!"))

    assert peer.wire.aborted


@pytest.mark.parametrize("end", ["finished", "reset", "cut off", "lost"])
async def test_a_call_that_is_over_waits_for_no_garbage_collector(peer: Peer, end: str) -> None:
    called = peer.open(1)
    left = weakref.ref(called)
    gc.disable()
    try:
        match end:
            case "finished":
                called.call.finish()
            case "reset":
                peer.say(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
            case "cut off":
                peer.say(frame(DATA, END_STREAM, 1, said(b"m")[:-1]))
            case "lost":
                peer.connection.connection_lost(None)
        peer.calls.clear()
        del called

        assert left() is None
    finally:
        gc.enable()


async def test_a_connection_that_is_lost_waits_for_no_garbage_collector(peer: Peer) -> None:
    left = weakref.ref(peer.connection)
    gc.disable()
    try:
        peer.connection.connection_lost(None)
        del peer.connection

        assert left() is None
    finally:
        gc.enable()
