"""A turn of the event loop has an end: of any number of connections, and of one that floods with
the smallest that its protocol allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import count

import msgspec
from tests.http.clients import connected, echo, get, serving
from tests.llmd.ext_proc.wire.peer import Peer, Wire
from tests.upstream.engines import CHUNKED_HEAD, in_loop
from tests.upstream.sinks import Collected

from inferway.cluster.bus.link import Link
from inferway.cluster.bus.messages import AskWorker, Message, Wanted
from inferway.fleet import zmtp
from inferway.fleet.zmtp import GREETING, TURN_FRAMES, ZmtpConnection
from inferway.http.connection import MAX_QUEUED, ClientConnection
from inferway.http.server import HttpServer
from inferway.loop_turns import CALLS_A_TURN, READS_A_TURN, SLICE_BYTES, LoopTurns, SlicedProtocol
from inferway.upstream.connection import EngineConnection
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.pool import Origin, Pool
from inferway_llmd.ext_proc.wire.connection import Patience
from inferway_llmd.ext_proc.wire.frames import DATA, PING, SETTINGS, WINDOW_UPDATE, frame

READ = 250 * 1024  # bytes that uvloop reads at once
CHUNK = b"1\r\nx\r\n"


async def test_few_have_theirs_in_each_in_the_order_of_asking() -> None:
    turns, called = LoopTurns(), list[int]()
    for each in range(3 * CALLS_A_TURN):
        turns.ask(partial(called.append, each))
    assert turns.are_short

    for num_turns in (1, 2, 3):
        await asyncio.sleep(0)
        assert called == list(range(num_turns * CALLS_A_TURN))
    assert not turns.are_short


async def test_fewer_read_on_in_each_beside_all_others() -> None:
    turns, called = LoopTurns(), list[int]()
    for each in range(2 * READS_A_TURN):
        turns.ask_to_read(partial(called.append, each))
    for each in range(100, 102):
        turns.ask(partial(called.append, each))
    assert not turns.are_short

    await asyncio.sleep(0)
    assert called == [100, 101, *range(READS_A_TURN)]
    await asyncio.sleep(0)
    assert called[2:] == [*range(2 * READS_A_TURN)]


async def test_who_asks_in_its_turn_has_another_in_the_next() -> None:
    turns, called = LoopTurns(), list[int]()

    def again() -> None:
        called.append(len(called))
        turns.ask(again)

    turns.ask(again)
    for num_turns in (1, 2, 3):
        await asyncio.sleep(0)
        assert len(called) == num_turns


async def test_a_fault_of_one_is_no_other_s() -> None:
    turns, called = LoopTurns(), list[int]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: called.append(0))

    def fail() -> None:
        raise ValueError

    turns.ask(fail)
    turns.ask(lambda: called.append(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert called == [0, 1]


@in_loop
async def test_a_turn_of_the_loop_answers_few_requests_of_many_connections() -> None:
    num_connections, num_requests, each_turn = 100, 200, []
    async with serving(echo) as server, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connected(server)) for _ in range(num_connections)
        ]
        for client in clients:
            client.writer.write(get(b"/") * num_requests)
        before = 0
        while server.stats.requests < num_connections * num_requests:
            await asyncio.sleep(0)  # the next turn
            each_turn.append(server.stats.requests - before)
            before = server.stats.requests

    assert max(each_turn) <= 2 * CALLS_A_TURN * MAX_QUEUED + num_connections


async def each_turn(wire: Wire, flood: Callable[[], None], units: Callable[[], int]) -> list[int]:
    """How many units were handled in each turn of the loop until the connection is read from
    again. In the first one it must be paused: else uvloop would go on reading."""
    flood()
    assert wire.paused
    found, before = [units()], units()
    while wire.paused:
        await asyncio.sleep(0)
        found.append(units() - before)
        before = units()
    return found


class Heard(zmtp.Owner):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.messages = 0
        self.faults: list[str] = []

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        del connection
        self.messages += len(messages)

    def refused(self, fault: str) -> None:
        self.faults.append(fault)


def zmtp_connection() -> tuple[Wire, Heard, ZmtpConnection]:
    wire, heard = Wire(), Heard()
    connection = ZmtpConnection("SUB", heard, heartbeat_seconds=None)
    connection.connection_made(wire)
    connection.data_received(GREETING + zmtp.frame(zmtp.COMMAND, zmtp.ready("PUB")))
    wire.written.clear()
    return wire, heard, connection


async def test_empty_frames_of_an_engine_are_read_a_few_in_a_turn() -> None:
    wire, heard, connection = zmtp_connection()
    flood = zmtp.frame(0, b"") * (READ // 2)

    found = await each_turn(wire, partial(connection.data_received, flood), lambda: heard.messages)

    assert sum(found) == READ // 2
    assert max(found) <= TURN_FRAMES
    connection.close()


async def test_pings_of_an_engine_are_answered_a_few_in_a_turn() -> None:
    wire, _, connection = zmtp_connection()
    ping = zmtp.frame(zmtp.COMMAND, b"\x04PING\0\0")
    pong = zmtp.frame(zmtp.COMMAND, b"\x04PONG")
    number = READ // len(ping)

    found = await each_turn(
        wire,
        partial(connection.data_received, ping * number),
        lambda: len(wire.written) // len(pong),
    )

    assert sum(found) == number
    assert max(found) <= TURN_FRAMES
    connection.close()


async def test_connections_that_flood_together_are_read_in_turns() -> None:
    turns, heard = LoopTurns(), Heard()
    connections = []
    for _ in range(4 * CALLS_A_TURN):
        connection = ZmtpConnection("SUB", heard, heartbeat_seconds=None, turns=turns)
        connection.connection_made(Wire())
        connection.data_received(GREETING + zmtp.frame(zmtp.COMMAND, zmtp.ready("PUB")))
        connection.data_received(zmtp.frame(0, b"") * 4 * TURN_FRAMES)
        connections.append(connection)
    found, before = [], heard.messages
    while heard.messages < len(connections) * 4 * TURN_FRAMES:
        await asyncio.sleep(0)
        found.append(heard.messages - before)
        before = heard.messages

    assert max(found) <= CALLS_A_TURN * TURN_FRAMES
    for connection in connections:
        connection.close()


async def test_a_ready_of_many_properties_is_refused_before_it_has_come() -> None:
    wire, heard = Wire(), Heard()
    connection = ZmtpConnection("SUB", heard)
    connection.connection_made(wire)
    ready = b"\x05READY" + 3_000_000 * (b"\x01a" + bytes(4))
    connection.data_received(GREETING + zmtp.frame(zmtp.COMMAND, ready)[:100])

    assert heard.faults == ["a command of more than 8192 bytes"]
    assert wire.aborted


async def test_frames_of_a_proxy_that_ask_for_nothing_are_read_a_few_in_a_turn() -> None:
    for flood, answers in (
        (frame(PING, 0, 0, b"8 bytes!"), 1),
        (frame(SETTINGS, 0, 0), 1),
        (frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") + frame(PING, 0, 0, b"8 bytes!"), 1),
        (frame(DATA, 0, 1) + frame(PING, 0, 0, b"8 bytes!"), 1),
    ):
        peer = Peer(patience=Patience(frames=10**9))
        peer.open()
        heard = 0

        def units(peer: Peer = peer) -> int:
            nonlocal heard
            heard += len(peer.heard())
            return heard

        number = READ // len(flood)
        found = await each_turn(peer.wire, partial(peer.say, flood * number), units)

        assert sum(found) == number * answers
        assert max(found) <= 64


@in_loop
async def test_chunks_of_one_byte_from_a_client_are_read_a_slice_in_a_turn() -> None:
    server, wire = HttpServer(echo), Wire()
    await server.start()
    connection = ClientConnection(server)
    connection.connection_made(wire)
    connection.data_received(
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNK
    )
    number = READ // len(CHUNK)

    found = await each_turn(
        wire,
        partial(connection.data_received, CHUNK * number),
        lambda: server.bodies.held - 1,
    )

    assert sum(found) == number
    assert max(found) <= SLICE_BYTES // len(CHUNK) + 1
    connection.connection_lost(None)
    await server.stop(0)


@in_loop
async def test_chunks_of_one_byte_from_an_engine_are_read_a_slice_in_a_turn() -> None:
    pool, sink, wire = Pool(), Collected(), Wire()
    origin = Origin(pool, "http://engine:1")
    connection = EngineConnection(origin)
    connection.connection_made(wire)
    connection.send(UpstreamRequest(origin, (b"",), sink, is_head=False))
    connection.data_received(CHUNKED_HEAD)
    number = READ // len(CHUNK)

    found = await each_turn(
        wire, partial(connection.data_received, CHUNK * number), lambda: len(sink.body)
    )

    assert sum(found) == number
    assert max(found) <= SLICE_BYTES // len(CHUNK) + 1
    connection.drop()
    connection.connection_lost(None)
    await pool.close()


class LinkWire(Wire):
    """What a link writes to."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def test_small_records_of_another_process_are_read_for_a_millisecond_in_a_turn() -> None:
    wire, heard, ticks = LinkWire(), list[Message](), count()
    # a tenth of a millisecond passes between two looks at the clock
    link = Link(clock=lambda: next(ticks) / 10_000)
    link.listen(heard.append)
    link.connection_made(wire)
    record = msgspec.msgpack.encode([AskWorker(Wanted.ALIVE)])
    record = len(record).to_bytes(4, "little") + record
    empty = (1).to_bytes(4, "little") + b"\x90"

    found = await each_turn(
        wire,
        partial(link.data_received, (record + empty * 50) * 200),
        lambda: len(heard),
    )

    assert sum(found) == 200
    assert max(found) <= 5
    assert len(found) > 1000
    link.close()


def test_every_protocol_of_ours_is_a_sliced_one() -> None:
    ours = {
        each for each in subclasses(asyncio.Protocol) if each.__module__.startswith("inferway.")
    }
    # The first reads nothing; the second is aiohttp's, which has a sliced one beside it; the third
    # passes on what it reads, and no more than the other side takes.
    others = {each for each in ours if each.__name__ in ("_Door", "_Answers", "_End")}

    assert ours - others == ours & {SlicedProtocol, *subclasses(SlicedProtocol)}


def subclasses(of: type) -> set[type]:
    below: set[type] = set(of.__subclasses__())
    return below.union(*map(subclasses, below))
