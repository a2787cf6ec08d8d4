"""What the client of a stream is sent while its request waits. Without sockets, on a clock of the
test's."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.fuzz.unwired import Line, Trip, Unwired
from tests.http.clients import post
from tests.upstream.engines import LAST_CHUNK, SSE_HEAD, chunk

from inferway.config import TimeoutSettings
from inferway.errors import QueueFullError
from inferway.http.forward import forward
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.model import Decision, Endpoint, Reason, Target
from inferway.routing.answer_plan import AnswerPlan
from inferway.routing.limits.failover import FailoverPolicy
from inferway.routing.record import Record

CHAT, MESSAGES = b"/v1/chat/completions", b"/v1/messages"
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
TWO = Decision(
    tuple(Target(Endpoint(f"e{i}", "http://engine:1", i), 1.0, 0, 0) for i in range(2)),
    Reason.KV_AWARE,
)
REFUSED = b'{"error": {"message": "too\\nlong",\n "code": 400}}'


class World(Unwired):
    """A request that is streamed or not, and goes on to an engine at once or waits."""

    def __init__(self, *, streamed: bool = True, waits: bool = False, seconds: float = 15) -> None:
        timeouts = TimeoutSettings(stream_keep_alive=seconds, first_byte=600, idle_stream=300)
        super().__init__(timeouts=timeouts)
        self.streamed, self.waits = streamed, waits
        self.responder: Responder | None = None

    async def handle(self, request: Request, responder: Responder) -> None:
        self.responder = responder
        responder.record = Record(0.0, is_streamed=self.streamed)
        if self.waits:
            responder.attach(Waiting())
        else:
            self.trips.append(Trip(request))
            plan = AnswerPlan(self.trips[-1], TWO, FailoverPolicy(self.pool.time))
            forward(request, responder, plan, self.pool)

    @property
    def engine(self) -> Line:
        """The connection to the engine that was asked last."""
        return self.origin.lines[-1]

    def wait(self, seconds: float) -> None:
        """Let time pass, as the server's sweep sees it."""
        connection = self.client.protocol
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            if connection.deadline <= self.now:  # type: ignore[attr-defined]
                connection.timed_out()  # type: ignore[attr-defined]

    @property
    def body(self) -> bytes:
        """What the client has been sent behind the head."""
        head, _, rest = self.client.said.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        found = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            found.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        return b"".join(found)


class Waiting:
    """The source of an answer whose request waits in the queue."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def client_gone(self) -> None: ...


@contextmanager
def world(**how: bool | float) -> Iterator[World]:
    made = World(**how)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.leave()
        made.stop()


async def test_a_request_that_waits_in_the_queue_gets_a_head_and_comments() -> None:
    with world(waits=True) as w:
        w.client.feed(post(target=CHAT))
        w.wait(14.5)
        assert w.client.said == b""

        w.wait(1)
        assert w.client.said.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream")
        assert w.body == COMMENT

        w.wait(30)
        assert w.body == 3 * COMMENT


async def test_the_client_of_messages_gets_pings() -> None:
    with world(waits=True) as w:
        w.client.feed(post(target=MESSAGES))
        w.wait(16)

        assert w.body == PING


@pytest.mark.parametrize(
    ("target", "how"),
    [
        (CHAT, {"streamed": False}),
        (CHAT, {"seconds": 0}),
        (b"/v1/embeddings", {}),
    ],
    ids=["not streamed", "turned off", "generates nothing"],
)
async def test_others_get_nothing_before_their_answer(
    target: bytes, how: dict[str, bool | float]
) -> None:
    with world(waits=True, **how) as w:
        w.client.feed(post(target=target))
        w.wait(120)

        assert w.client.said == b""


async def test_an_engine_s_answer_follows_in_the_same_stream() -> None:
    with world() as w:
        w.client.feed(post(target=CHAT))
        w.wait(16)
        w.engine.feed(SSE_HEAD + chunk(b": the engine's\n\n"))
        w.wait(15)
        w.engine.feed(chunk(EVENT) + chunk(DONE) + LAST_CHUNK)

        assert w.body == 2 * COMMENT + b": the engine's\n\n" + EVENT + DONE
        assert w.client.said.count(b"HTTP/1.1") == 1
        assert w.trips[0].outcomes == ["ok"]
        w.client.feed(post(target=CHAT))  # the connection serves the next request
        assert len(w.trips) == 2


async def test_another_engine_answers_for_one_that_was_lost_behind_comments() -> None:
    with world() as w:
        w.client.feed(post(target=CHAT))
        w.engine.feed(SSE_HEAD)
        w.wait(40)
        w.engine.hang_up(ConnectionResetError())
        w.engine.feed(SSE_HEAD + chunk(EVENT) + chunk(DONE) + LAST_CHUNK)

        assert len(w.origin.lines) == 2
        assert w.body == 2 * COMMENT + EVENT + DONE


async def test_a_stream_that_falls_silent_in_the_middle_gets_comments() -> None:
    with world() as w:
        w.client.feed(post(target=CHAT))
        w.engine.feed(SSE_HEAD + chunk(EVENT))
        w.wait(16)

        assert w.body == EVENT + COMMENT


async def test_no_comment_comes_in_the_middle_of_an_event() -> None:
    beginning = b"data: " + b"x" * 70_000
    with world() as w:
        w.client.feed(post(target=CHAT))
        w.engine.feed(SSE_HEAD + chunk(beginning))
        w.wait(100)

        assert w.body == beginning


async def test_no_comment_comes_into_a_compressed_stream() -> None:
    packed = zlib.compress(EVENT) + b"\n\n"
    with world() as w:
        w.client.feed(post(target=CHAT))
        head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: deflate\r\n\r\n")
        w.engine.feed(head + chunk(packed))
        w.wait(100)

        assert w.body == packed


@pytest.mark.parametrize(
    ("target", "event"),
    [
        (CHAT, b'data: {"error": {"message": "too\\nlong",  "code": 400}}\n\n'),
        (
            MESSAGES,
            b'event: error\ndata: {"error": {"message": "too\\nlong",  "code": 400}}\n\n',
        ),
    ],
)
async def test_an_engine_s_refusal_behind_comments_is_an_event(target: bytes, event: bytes) -> None:
    with world() as w:
        w.client.feed(post(target=target))
        w.wait(16)
        w.engine.feed(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(REFUSED), REFUSED)
        )

        assert w.body in (COMMENT + event, PING + event)
        assert w.client.said.endswith(b"0\r\n\r\n")
        assert w.responder is not None
        assert w.responder.status == 400  # in the access log and the metrics


async def test_a_refusal_of_ours_behind_comments_is_an_event() -> None:
    with world(waits=True) as w:
        w.client.feed(post(target=CHAT))
        w.wait(16)
        assert w.responder is not None
        w.responder.send_error(QueueFullError("the queue is full"))

        assert w.body.startswith(COMMENT + b'data: {"error":{"message":"the queue is full"')
        assert w.responder.status == 429


async def test_an_answer_that_is_no_stream_and_no_json_ends_in_an_error_event() -> None:
    with world() as w:
        w.client.feed(post(target=CHAT))
        w.wait(16)
        w.engine.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n" + 70_000 * b"x")

        assert w.body.startswith(COMMENT + b'data: {"error":{"message":"the engine')
        assert len(w.body) < 300


async def test_a_client_that_leaves_while_it_gets_comments_ends_its_request() -> None:
    with world() as w:
        w.client.feed(post(target=CHAT))
        w.wait(16)
        w.client.hang_up()

        assert w.trips[0].outcomes == ["client_gone"]
        assert w.engine.reset
