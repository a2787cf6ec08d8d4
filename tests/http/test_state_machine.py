"""Any order of what clients, engines and the network do. Without sockets, on a clock of its own.

Each request carries a nonce as its body, and an engine that answers well sends it back. A model
keeps what each client has asked; in the end, and after each step, what clients have been told must
fit: every request is answered exactly once, in order, with its own nonce or with an error, or its
connection is closed; and nothing is left of what is over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)
from tests.fuzz.second_opinion import read_answer
from tests.fuzz.unwired import Line, Unwired
from tests.http.clients import post
from tests.upstream.engines import LAST_CHUNK, SSE_HEAD, chunk

from inferway.config import TimeoutSettings
from inferway.http.connection import ClientConnection

TIMEOUTS = TimeoutSettings(
    keep_alive=10, request_body=20, first_byte=30, idle_stream=15, connect=2, drain=5
)
STATES = st.sampled_from(["idle", "asked", "streaming"])
SURPLUS = [b"", b"x", SSE_HEAD + chunk(b"data: no\n\n") + LAST_CHUNK]
GARBAGE = [b"SSH-2.0\r\n", b"HTTP/1.1 999999\r\n", b"\x00", b"HTTP/1.1 101 x\r\n\r\n"]


@dataclass
class Asking:
    """A client: what it has asked, and the part of its next request that it has not sent."""

    line: Line
    nonces: list[bytes] = field(default_factory=list)  # of requests sent whole
    rest: bytes = b""
    rest_nonce: bytes = b""
    bad: bool = False  # it has sent what is no request


@dataclass
class Answering:
    """A line to an engine: the request it has got, and how much of an answer it has sent."""

    line: Line
    heads: int = 0  # requests it has begun to answer
    nonce: bytes = b""
    state: str = "idle"  # idle, asked, streaming


def nonce_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


class Machine(RuleBasedStateMachine):
    """See the module. Rules that need a line that is gone do nothing."""

    clients: Bundle[Asking] = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.loop = uvloop.new_event_loop()
        asyncio._set_running_loop(self.loop)
        self.world = Unwired(timeouts=TIMEOUTS)
        self.world.client.hang_up()
        self.asking: list[Asking] = []
        self.answering: list[Answering] = []
        self.count = 0

    # ---------------------------------------------------------------------------- the clients

    @rule(target=clients)
    def a_client_connects(self) -> Asking:
        asking = Asking(Line(ClientConnection(self.world.server), self.world.turns))
        self.asking.append(asking)
        return asking

    @rule(client=clients, number=st.integers(1, 5))
    def it_pipelines(self, client: Asking, number: int) -> None:
        data = self.rest_of(client)
        for _ in range(number):
            data += self.ask(client)
        client.line.feed(data)

    @rule(client=clients, cut=st.integers(0, 90))
    def it_sends_a_part(self, client: Asking, cut: int) -> None:
        data = self.rest_of(client)
        self.count += 1
        client.rest_nonce = b"n%06d" % self.count
        request = post(client.rest_nonce)
        cut = min(1 + cut, len(request) - 1)
        client.rest = request[cut:]
        client.line.feed(data + request[:cut])

    @rule(client=clients)
    def it_sends_the_rest(self, client: Asking) -> None:
        data = self.rest_of(client)
        if data:
            client.line.feed(data)

    @rule(client=clients, junk=st.sampled_from(GARBAGE))
    def it_sends_garbage(self, client: Asking, junk: bytes) -> None:
        data = self.rest_of(client)
        client.bad = True
        client.line.feed(data + junk + b"\r\n\r\n")

    @rule(client=clients)
    def it_stops_reading(self, client: Asking) -> None:
        client.line.protocol.pause_writing()

    @rule(client=clients)
    def it_reads_again(self, client: Asking) -> None:
        client.line.protocol.resume_writing()
        self.world.turns.take()

    @rule(client=consumes(clients), reset=st.booleans())
    def it_leaves(self, client: Asking, reset: bool) -> None:
        client.line.hang_up(ConnectionResetError() if reset else None)

    # ---------------------------------------------------------------------------- the engines

    @rule(which=st.integers(0, 50), connection=st.sampled_from([b"", b"connection: close\r\n"]))
    def an_engine_answers(self, which: int, connection: bytes) -> None:
        engine = self.asked(which)
        if engine is not None:
            engine.state = "idle"
            body = b"data: %b\n\n" % engine.nonce
            engine.line.feed(
                b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (connection, len(body), body)
            )

    @rule(which=st.integers(0, 50))
    def an_engine_begins_a_stream(self, which: int) -> None:
        engine = self.asked(which)
        if engine is not None:
            engine.state = "streaming"
            engine.line.feed(SSE_HEAD)

    @rule(which=st.integers(0, 50), whole=st.booleans())
    def an_engine_streams_on(self, which: int, whole: bool) -> None:
        engine = self.engine("streaming", which)
        if engine is not None:
            engine.line.feed(chunk(b"data: %b\n\n" % engine.nonce if whole else b": ping\n\n"))

    @rule(which=st.integers(0, 50), surplus=st.sampled_from(SURPLUS))
    def an_engine_ends_its_stream(self, which: int, surplus: bytes) -> None:
        engine = self.engine("streaming", which)
        if engine is not None:
            engine.state = "idle"
            last = chunk(b"data: %b\n\n" % engine.nonce)
            engine.line.feed(last + LAST_CHUNK + surplus)

    @rule(which=st.integers(0, 50), junk=st.sampled_from(GARBAGE), state=STATES)
    def an_engine_sends_garbage(self, which: int, junk: bytes, state: str) -> None:
        engine = self.engine(state, which)
        if engine is not None:
            engine.line.feed(junk)

    @rule(which=st.integers(0, 50), reset=st.booleans(), state=STATES)
    def an_engine_leaves(self, which: int, reset: bool, state: str) -> None:
        engine = self.engine(state, which)
        if engine is not None:
            engine.line.hang_up(ConnectionResetError() if reset else None)

    # ---------------------------------------------------------------------------- the network

    @rule(seconds=st.sampled_from([1, 8, 16, 31]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds
        self.world.pool._sweep()
        self.world.pool._timer.cancel()
        for connection in list(self.world.server._connections):
            if connection.deadline <= self.world.now:
                connection.timed_out()

    @rule()
    def closes_take_effect(self) -> None:
        for line in self.lines():
            line.settle()

    # ------------------------------------------------------------------------------- what holds

    @invariant()
    def clients_get_their_own_answers_in_order(self) -> None:
        for client in self.asking:
            self.fits(client)

    @invariant()
    def no_more_is_under_way_than_somebody_waits_for(self) -> None:
        stats = self.world.server.stats
        open_trips = [trip for trip in self.world.trips if not trip.outcomes]

        assert len(open_trips) == stats.answering
        assert stats.crashed == 0
        assert all(len(trip.outcomes) < 2 for trip in self.world.trips)

    def teardown(self) -> None:
        try:
            self.over()
        finally:
            asyncio._set_running_loop(None)
            self.loop.close()

    def over(self) -> None:
        """Every engine answers what it was asked, everybody leaves, and nothing is left."""
        for client in self.asking:
            client.line.protocol.resume_writing()
        self.world.turns.take()  # what engines have said meanwhile
        while (engine := self.asked(0)) is not None or (engine := self.engine("streaming", 0)):
            if engine.state == "streaming":
                engine.line.hang_up()
            else:
                engine.state = "idle"
                engine.line.feed(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\ndata: %b\n" % engine.nonce
                )
        for client in self.asking:
            self.fits(client, in_the_end=True)
        for line in self.lines():
            line.hang_up()
        self.world.stop()
        server, pool = self.world.server.stats, self.world.pool.stats
        assert (server.open, server.answering, pool.open) == (0, 0, 0)
        assert all(len(trip.outcomes) == 1 for trip in self.world.trips)

    # ---------------------------------------------------------------------------------- steps

    def lines(self) -> list[Line]:
        return [client.line for client in self.asking] + self.world.origin.lines

    def ask(self, client: Asking) -> bytes:
        self.count += 1
        client.nonces.append(b"n%06d" % self.count)
        return post(client.nonces[-1])

    def rest_of(self, client: Asking) -> bytes:
        rest, client.rest = client.rest, b""
        if rest:
            client.nonces.append(client.rest_nonce)
        return rest

    def engine(self, state: str, which: int) -> Answering | None:
        """One that is in this state."""
        known = {id(engine.line) for engine in self.answering}
        self.answering += [
            Answering(line) for line in self.world.origin.lines if id(line) not in known
        ]
        for engine in self.answering:
            if engine.line.written:
                engine.nonce = nonce_of(engine.line.said)
                engine.state = "asked"
                engine.line.written.clear()
        found = [e for e in self.answering if e.state == state and not e.line.closing]
        return found[which % len(found)] if found else None

    def asked(self, which: int) -> Answering | None:
        return self.engine("asked", which)

    def fits(self, client: Asking, *, in_the_end: bool = False) -> None:
        """What `client` was told so far is answers to what it asked."""
        said, gone = client.line.said, client.line.closing or client.line.ended
        answered = 0
        for nonce in client.nonces:
            if not said:
                break
            message, wrong, rest = read_answer(said, b"POST", closed=False)
            if message is None:
                assert wrong == "part", wrong  # under way, or broken off
                break
            answered += 1
            said = rest
            if message.start == b"200":
                assert set(message.body.split()) <= {b"data:", nonce, b":", b"ping"} or (
                    b'"error"' in message.body
                )
            else:
                assert message.start in (b"502", b"504", b"400", b"408")
        else:
            if said:  # for what is no request, or not whole in time
                message, wrong, rest = read_answer(said, b"POST", closed=False)
                assert message is not None, wrong
                assert message.start in (b"400", b"408")
                assert gone
                assert rest == b""
        if in_the_end:
            assert gone or answered == len(client.nonces)


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
