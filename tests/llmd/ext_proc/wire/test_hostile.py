"""Clients that mean harm: what is bounded, and that other calls and connections go on.

The attacks have names: CVE-2019-9511 to 9518 (floods), CVE-2023-44487 (rapid reset),
CVE-2024-27316 (CONTINUATION), CVE-2016-6581 (HPACK's table).
"""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st
from tests.llmd.ext_proc.wire.peer import FIELDS, Peer, Wire, said

from inferway_llmd.ext_proc.wire.call import WINDOW_BYTES
from inferway_llmd.ext_proc.wire.connection import Connection, Patience
from inferway_llmd.ext_proc.wire.fields import FieldReader
from inferway_llmd.ext_proc.wire.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    Fault,
    frame,
    window_update,
)
from inferway_llmd.ext_proc.wire.listening import GrpcServer

RESET = (8).to_bytes(4)


@pytest.fixture
async def peer() -> Peer:
    return Peer()


def window(size: int) -> bytes:
    return frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2) + size.to_bytes(4))


def fault_of(peer: Peer) -> int | None:
    """Why the connection was closed, if it was."""
    closing = [each for each in peer.heard() if each.kind == GOAWAY]
    return int.from_bytes(closing[0].payload[4:8]) if closing else None


FLOODS = {
    "pings": frame(PING, 0, 0, b"8 bytes!"),
    "settings": frame(SETTINGS, 0, 0),
    "priorities": frame(PRIORITY, 0, 1, bytes(5)),
    "frames that nobody knows": frame(99, 0, 0),
    "empty data": frame(DATA, 0, 1),
    "nothing but padding": frame(DATA, PADDED, 1, b"\1\0"),
    "goodbyes": frame(GOAWAY, 0, 0, bytes(8)),
}


@pytest.fixture
async def strict() -> Peer:
    """Whose connection takes a thousand frames for nothing, and no more for long."""
    return Peer(patience=Patience(frames=1000, seconds=3600.0))


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_of_frames_that_ask_for_nothing_is_ended(strict: Peer, flood: str) -> None:
    called = strict.open()

    await strict.shout(FLOODS[flood] * 990)
    assert not strict.wire.closed
    strict.heard()
    strict.say(FLOODS[flood] * 20)

    assert strict.wire.closed
    assert fault_of(strict) == Fault.ENHANCE_YOUR_CALM
    strict.connection.connection_lost(None)
    assert called.told == ["gone"]


async def test_a_turn_of_the_loop_opens_few_of_the_calls_that_came_at_once() -> None:
    peer = Peer()
    first = frame(HEADERS, END_HEADERS, 1, peer.block())
    block = peer.block()
    opened = [frame(HEADERS, END_HEADERS, each, block) for each in range(3, 5001, 2)]
    peer.say(first + b"".join(opened))

    each_turn = [len(peer.calls)]
    while peer.wire.paused:  # or libuv would go on reading in the same turn
        before = len(peer.calls)
        await asyncio.sleep(0)
        each_turn.append(len(peer.calls) - before)

    assert sum(each_turn) == 2500
    assert max(each_turn) <= 64


async def test_a_turn_of_the_loop_reads_few_of_the_messages_that_came_at_once() -> None:
    peer = Peer()
    called = peer.open()
    peer.say(frame(DATA, 0, 1, said(b"") * 3000) * 16)

    assert len(called.messages) <= 5 * 3000
    peer.say(frame(DATA, END_STREAM, 1, said(b"last")))  # TLS may still have some
    assert called.told == []
    await peer.shout(b"")

    assert len(called.messages) == 16 * 3000 + 1
    assert called.told == ["end"]


async def test_what_waits_for_its_turn_goes_with_its_connection(peer: Peer) -> None:
    first = frame(HEADERS, END_HEADERS, 1, peer.block())
    peer.say(first + frame(DATA, 0, 1, said(b"m")) * 100)
    [called] = peer.calls
    before = len(called.messages)

    peer.connection.connection_lost(None)
    await asyncio.sleep(0)

    assert called.told == ["gone"]
    assert len(called.messages) == before < 100


async def test_what_comes_slowly_is_no_flood() -> None:
    peer = Peer(patience=Patience(frames=10, seconds=0.0))

    await peer.shout(frame(PING, 0, 0, b"8 bytes!") * 1000)

    assert len(peer.heard()) == 1000
    assert not peer.wire.closed


async def test_empty_continuations_are_ended(strict: Peer) -> None:
    strict.say(frame(HEADERS, 0, 1))

    await strict.shout(frame(CONTINUATION, 0, 1) * 1010)

    assert fault_of(strict) == Fault.ENHANCE_YOUR_CALM
    assert strict.calls == []


async def test_calls_that_are_reset_before_an_answer_leave_nothing_and_are_not_endless(
    strict: Peer,
) -> None:
    block = strict.block()
    strict.block()

    def attack(streams: range) -> None:
        for each in streams:
            strict.say(frame(HEADERS, END_HEADERS, each, block))
            strict.say(frame(RST_STREAM, 0, each, RESET))

    attack(range(1, 381, 2))
    assert not strict.wire.closed
    assert all(each.told == ["gone"] for each in strict.calls)
    assert strict.connection.calls == {}
    attack(range(381, 501, 2))

    assert fault_of(strict) == Fault.ENHANCE_YOUR_CALM
    assert len(strict.calls) <= 201


async def test_resets_of_calls_that_were_answered_are_never_too_many(strict: Peer) -> None:
    block = strict.block()

    for stream in range(1, 3001, 2):
        strict.say(frame(HEADERS, END_HEADERS, stream, block))
        strict.calls.pop().call.finish()
        strict.say(frame(RST_STREAM, 0, stream, RESET))

    assert not strict.wire.closed


async def test_calls_beyond_what_may_be_open_are_refused_and_the_others_go_on(peer: Peer) -> None:
    first = frame(HEADERS, END_HEADERS, 1, peer.block())
    block = peer.block()
    streams = range(3, 20_001, 2)
    opened = [frame(HEADERS, END_HEADERS, each, block) for each in streams]
    await peer.shout(first + b"".join(opened))
    peer.heard()

    peer.say(frame(HEADERS, END_HEADERS, 20_001, block))
    await asyncio.sleep(0)

    [refused] = peer.heard()
    assert (refused.kind, refused.stream) == (RST_STREAM, 20_001)
    assert int.from_bytes(refused.payload) == Fault.REFUSED_STREAM
    peer.say(frame(DATA, 0, 1, said(b"m")))
    assert peer.calls[0].messages == [b"m"]


async def test_who_sends_more_than_it_was_given_room_for_loses_the_call_alone() -> None:
    peer = Peer(max_message=4 << 20)
    held, other = peer.open(1), peer.open(3)
    held.call.hold()
    piece = b"\0\0\0\x3f\xfb".ljust(16_384, b"x")
    peer.heard()

    for _ in range(WINDOW_BYTES // len(piece)):
        peer.say(frame(DATA, 0, 1, piece))
    assert [each for each in peer.heard() if each.stream] == []  # it hears of no room
    assert held.told == []
    peer.say(frame(DATA, 0, 1, b"x"))

    assert held.told == ["gone"]
    [reset] = peer.heard()
    assert (reset.stream, int.from_bytes(reset.payload)) == (1, Fault.FLOW_CONTROL_ERROR)
    peer.say(frame(DATA, 0, 3, said(b"m")))
    assert other.messages == [b"m"]


async def test_who_is_held_hears_of_room_when_it_is_released() -> None:
    peer = Peer(max_message=4 << 20)
    call = peer.open().call
    call.hold()
    for _ in range(WINDOW_BYTES // 16_384):
        peer.say(frame(DATA, 0, 1, said(b"x" * 16_379)))
    peer.heard()

    call.release()
    await asyncio.sleep(0)

    [room] = peer.heard()
    assert (room.kind, room.stream) == (WINDOW_UPDATE, 1)
    assert int.from_bytes(room.payload) == WINDOW_BYTES


async def test_a_message_in_tiny_pieces_takes_no_more_than_its_bytes() -> None:
    peer = Peer(max_message=1 << 20)
    called = peer.open()
    peer.say(frame(DATA, 0, 1, (1 << 20).to_bytes(5)))
    pieces = frame(DATA, 0, 1, b"xy") * 1000

    tracemalloc.start()
    for _ in range(20):
        await peer.shout(pieces)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert called.messages == []
    assert held < 200_000


async def test_headers_of_many_forms_are_not_all_remembered() -> None:
    reader = FieldReader()

    encoder = Encoder()
    tracemalloc.start()
    for i in range(200):
        named = (b"x", b"%d".ljust(16_000, b"v") % i, True)  # in no table
        reader.read(encoder.encode([named], huffman=False))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 200_000


def test_a_small_block_that_would_be_large_headers_is_refused() -> None:
    reader = FieldReader()
    value = b"v" * 4000
    reader.read(b"\x40\1x\x7f\xa1\x1e" + value)  # into the table

    with pytest.raises(ConnectionFault) as refused:
        reader.read(b"\xbe" * 60)  # and again, a byte each

    assert refused.value.fault == Fault.COMPRESSION_ERROR


def test_the_table_grows_no_larger_than_we_have_said() -> None:
    with pytest.raises(ConnectionFault):
        FieldReader().read(b"\x3f\xe2\x1f")  # 4097

    reader = FieldReader()
    reader.read(b"\x20\x3f\xe1\x1f\x40\1x\1y")  # 0, then 4096
    assert reader.read(b"\xbe") == {b"x": b"y"}


def test_what_was_read_is_read_anew_when_the_table_was_emptied_and_filled() -> None:
    """The new entry may lie where the old one lay."""
    reader = FieldReader()
    for i in range(100):
        reader.read(b"\x20\x3f\xe1\x1f\x40\1x\1%c" % (i % 10 + 48))
        assert reader.read(b"\xbe") == {b"x": b"%c" % (i % 10 + 48)}


@given(block=st.binary(max_size=200))
def test_no_block_of_headers_is_more_than_a_fault(block: bytes) -> None:
    reader = FieldReader()
    for _ in range(2):
        try:
            reader.read(block)
        except ConnectionFault:
            return


@pytest.mark.parametrize(
    "fields",
    [
        [*FIELDS, (":path", "/Other/Method")],
        [*FIELDS, (":status", "200")],
        [("x", "1"), *FIELDS],
        [*FIELDS, ("X-Large", "1")],
        [*FIELDS, ("connection", "close")],
        [*FIELDS, ("transfer-encoding", "chunked")],
        [*FIELDS[:-1], ("te", "gzip")],
    ],
)
async def test_headers_that_no_request_may_have_are_an_error_of_their_stream(
    peer: Peer, fields: list[tuple[str, str]]
) -> None:
    for stream in (1, 3):  # also when they are known
        peer.say(frame(HEADERS, END_HEADERS, stream, peer.encoder.encode(fields)))

    await asyncio.sleep(0)
    heard = peer.heard()
    assert [each.kind for each in heard] == [RST_STREAM] * 2
    assert all(int.from_bytes(each.payload) == Fault.PROTOCOL_ERROR for each in heard)
    assert peer.calls == []
    peer.open(5)
    assert len(peer.calls) == 1


CONNECTION_FAULTS = {
    "a priority of no stream": (frame(PRIORITY, 0, 0, bytes(5)), Fault.PROTOCOL_ERROR),
    "a priority of a wrong size": (frame(PRIORITY, 0, 1, bytes(4)), Fault.FRAME_SIZE_ERROR),
    "a priority cut off": (
        frame(HEADERS, END_HEADERS | HAS_PRIORITY, 3, b"\0"),
        Fault.FRAME_SIZE_ERROR,
    ),
    "a goodbye of a stream": (frame(GOAWAY, 0, 1, bytes(8)), Fault.PROTOCOL_ERROR),
    "settings of a stream": (frame(SETTINGS, 0, 1), Fault.PROTOCOL_ERROR),
    "no room": (window_update(0, 0), Fault.PROTOCOL_ERROR),
    "too much room": (window_update(0, MAX_WINDOW), Fault.FLOW_CONTROL_ERROR),
    "room by settings, on top of what a call has": (
        window_update(1, MAX_WINDOW - 65_535) + window(65_536),
        Fault.FLOW_CONTROL_ERROR,
    ),
    "headers between headers": (
        frame(HEADERS, 0, 3) + frame(HEADERS, END_HEADERS, 5),
        Fault.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
async def test_the_fault_is_the_one_that_the_rfc_names(peer: Peer, name: str) -> None:
    peer.open()
    words, fault = CONNECTION_FAULTS[name]

    peer.say(words)

    assert fault_of(peer) == fault


async def test_frames_of_streams_that_are_over_hurt_nobody(peer: Peer) -> None:
    peer.open(1).call.finish()
    other = peer.open(3)
    await asyncio.sleep(0)
    peer.heard()

    peer.say(frame(DATA, 0, 1, said(b"m")) + window_update(1, 10) + frame(RST_STREAM, 0, 1, RESET))
    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, peer.block()))
    peer.say(frame(DATA, END_STREAM, 3, said(b"m")))

    assert peer.heard() == []
    assert (other.messages, other.told) == ([b"m"], ["end"])


async def test_a_call_that_has_said_its_end_and_says_more_is_closed_alone(peer: Peer) -> None:
    peer.open(1, flags=END_STREAM)
    other = peer.open(3)

    peer.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, peer.block()))

    [reset] = peer.heard()
    assert (reset.stream, int.from_bytes(reset.payload)) == (1, Fault.STREAM_CLOSED)
    assert other.told == []


async def test_room_a_byte_at_a_time_goes_to_each_in_turn(peer: Peer) -> None:
    """And so no frame makes us look at all that wait."""
    peer.say(window(100_000))
    calls = [peer.open(stream).call for stream in range(1, 41, 2)]
    for call in calls:
        call.send(b"x" * 20_000)
    for _ in range(9):
        await asyncio.sleep(0)
    peer.heard()
    served: list[int] = []

    for _ in range(17):
        peer.say(window_update(0, 1))
        [piece] = peer.heard()
        assert len(piece.payload) == 1
        served.append(piece.stream)

    assert len(set(served)) == 17


async def test_who_broke_the_rules_and_reads_nothing_is_forgotten(peer: Peer) -> None:
    peer.open()

    peer.say(frame(PING, 0, 0, b"short"))
    assert peer.wire.closed
    peer.say(peer.encoder.encode(FIELDS))  # what TLS had still to give

    assert len(peer.calls) == 1
    assert fault_of(peer) == Fault.FRAME_SIZE_ERROR


@pytest.mark.parametrize("first", [frame(PING, 0, 0, b"8 bytes!"), frame(HEADERS, 4, 1)])
async def test_settings_come_first(first: bytes) -> None:
    wire = Wire()
    connection = Connection({}, 1000, lambda _: None, lambda _: None)
    connection.connection_made(wire)

    for i in range(len(PREFACE + first)):
        connection.data_received((PREFACE + first)[i : i + 1])

    assert wire.closed


async def test_who_says_nothing_or_only_half_a_greeting_is_let_go() -> None:
    server = GrpcServer({}, host="127.0.0.1", port=0, handshake_seconds=0.05)
    await server.start()

    for said_first in (b"", PREFACE[:5], PREFACE + b"\0"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(said_first)
        with suppress(ConnectionResetError):
            await reader.read()  # our greeting, to the end of the connection
        writer.close()

    await server.stop(0)


async def test_who_has_greeted_may_say_nothing_for_long() -> None:
    peer = Peer()

    peer.connection.greeted_or_closed()

    assert not peer.wire.closed


async def test_many_settings_in_one_frame_are_answered_once(peer: Peer) -> None:
    peer.say(frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff" * 2730))

    [ack] = peer.heard()
    assert ack.kind == SETTINGS
