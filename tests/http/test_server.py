"""Requests in, answers out, on real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from contextlib import suppress

import pytest
from tests.http.clients import Gate, connected, echo, get, post, serving
from tests.upstream.engines import chunk, in_loop, wait_until

from inferway.config import LimitSettings
from inferway.errors import MethodNotAllowedError, UnknownModelError, UnknownPathError
from inferway.http.connection import MAX_QUEUED, ClientConnection
from inferway.http.listening import within_file_limit
from inferway.http.message import Request
from inferway.http.responder import Responder

# ------------------------------------------------------------------------------ framing: in


@in_loop
async def test_a_request_is_answered() -> None:
    async with serving(echo) as server, connected(server) as client:
        answer = await client.ask(post(b"hello", target=b"/a?b=c"))

    assert (answer.status, answer.body) == (200, b"POST /a?b=c hello")
    assert answer.values(b"content-type") == [b"text/plain"]
    assert len(answer.values(b"date")) == 1


@in_loop
async def test_one_connection_serves_many_requests() -> None:
    async with serving(echo) as server, connected(server) as client:
        for i in range(5):
            assert (await client.ask(get(b"/%d" % i))).body == b"GET /%d " % i

        assert (server.stats.accepted, server.stats.requests) == (1, 5)


@in_loop
async def test_a_request_may_come_byte_by_byte() -> None:
    async with serving(echo) as server, connected(server) as client:
        for byte in post(b"hello"):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)

        assert (await client.answer()).body == b"POST /v1/chat/completions hello"


@in_loop
async def test_a_chunked_body_is_put_together_without_its_trailers() -> None:
    request = b"POST / HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n"
    body = chunk(b"ab") + chunk(b"c") + b"0\r\nhost: evil\r\nx-trailer: 1\r\n\r\n"
    async with serving(echo) as server, connected(server) as client:
        first = await client.ask(request + body)
        second = await client.ask(get(b"/next"))

    assert (first.body, second.body) == (b"POST / abc", b"GET /next ")


@in_loop
async def test_a_large_body_arrives_whole() -> None:
    sizes: list[int] = []

    async def measure(request: Request, responder: Responder) -> None:
        sizes.append(len(request.body))
        responder.send(200, (), b"")

    async with serving(measure) as server, connected(server) as client:
        await client.ask(post(b"x" * 5_000_000))

    assert sizes == [5_000_000]


@in_loop
async def test_pipelined_requests_are_answered_in_order() -> None:
    async def slower_first(request: Request, responder: Responder) -> None:
        if request.path == "/slow":
            await asyncio.sleep(0.01)
        await echo(request, responder)

    async with serving(slower_first) as server, connected(server) as client:
        await client.send(get(b"/slow") + get(b"/a") + post(b"x", target=b"/b") + get(b"/slow"))
        bodies = [(await client.answer()).body for _ in range(4)]

    assert bodies == [b"GET /slow ", b"GET /a ", b"POST /b x", b"GET /slow "]


@in_loop
async def test_hundreds_of_pipelined_requests_are_all_answered() -> None:
    gate = Gate()
    async with serving(gate) as server, connected(server) as client:
        await client.send(b"".join(get(b"/%d" % i) for i in range(500)))
        await wait_until(lambda: gate.waiting == 1)
        gate.open.set()
        for i in range(500):
            assert (await client.answer()).body == b"GET /%d " % i


@in_loop
async def test_a_turn_of_the_loop_answers_few_of_the_requests_that_came_at_once() -> None:
    num_requests = 20_000
    each_turn = []
    async with serving(echo) as server, connected(server) as client:
        client.writer.write(get(b"/") * num_requests)
        answers = asyncio.create_task(client.closed())
        before = 0
        while server.stats.requests < num_requests:
            await asyncio.sleep(0)  # the next turn
            each_turn.append(server.stats.requests - before)
            before = server.stats.requests
        client.writer.write_eof()
        assert (await answers).count(b"HTTP/1.1 200 OK") == num_requests

    assert max(each_turn) <= MAX_QUEUED


@in_loop
async def test_a_turn_of_the_loop_reads_little_of_a_body_that_came_at_once() -> None:
    each_turn = []
    async with serving(echo) as server, connected(server) as client:
        await client.send(post(b"x" * 30_000_000)[:200])
        await wait_until(lambda: server.bodies.held > 0)
        before, sent = server.bodies.held, server.bodies.held
        with suppress(BlockingIOError):
            while True:
                sent += os.write(client.writer.get_extra_info("socket").fileno(), bytes(2**20))
        while server.bodies.held < sent:
            await asyncio.sleep(0)  # the next turn
            each_turn.append(server.bodies.held - before)
            before = server.bodies.held

    assert sum(each_turn) > 2**20
    assert max(each_turn) <= 2**18


@in_loop
async def test_a_body_in_chunks_of_one_byte_arrives_whole() -> None:
    head = b"POST / HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(echo) as server, connected(server) as client:
        answer = await client.ask(head + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")

    assert answer.body == b"POST / " + b"x" * 100_000


@in_loop
async def test_a_connection_that_ends_inside_a_body_keeps_nothing() -> None:
    def kept() -> int:
        return sum([isinstance(thing, ClientConnection) for thing in gc.get_objects()])

    async with serving(echo) as server:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                async with connected(server) as client:
                    await client.send(post(b"x" * 500_000)[:-1])
                    await wait_until(lambda: server.stats.open == 1)
            await wait_until(lambda: server.stats.open == 0)
            assert kept() == 0
        finally:
            gc.enable()


async def unknown_path(request: Request, _: Responder) -> None:
    raise UnknownPathError(f"{request.path}: {len(request.body)} bytes")


@pytest.mark.parametrize(
    "framing", [b"content-length: 5000000", b"transfer-encoding: chunked", b"content-length: 5"]
)
@in_loop
async def test_what_is_refused_for_its_head_is_answered_before_its_body(framing: bytes) -> None:
    head = b"POST /a HTTP/1.1\r\nhost: gw\r\nexpect: 100-continue\r\n%b\r\n\r\n" % framing

    async with (
        serving(unknown_path, awaits_body=lambda request: request.path != "/a") as server,
        connected(server) as client,
    ):
        answer = await client.ask(head)
        await client.send(b"x" * 100_000)
        rest = await client.closed()

        assert (answer.status, answer.values(b"connection")) == (404, [b"close"])
        assert b"/a: 0 bytes" in answer.body
        assert (rest, server.bodies.held, server.stats.requests) == (b"", 0, 1)


@in_loop
async def test_bodies_are_refused_above_what_all_may_take() -> None:
    gate = Gate()
    limits = LimitSettings(bodies_bytes=300_000)
    body = post(b"x" * 200_000)
    async with (
        serving(gate, limits=limits) as server,
        connected(server) as first,
        connected(server) as second,
        connected(server) as third,
    ):
        await first.send(body)
        await wait_until(lambda: gate.waiting == 1)
        refused = await second.ask(body)
        await third.send(post(b"x" * 60_000))  # a small one goes on
        await wait_until(lambda: gate.waiting == 2)
        held = server.bodies.held
        gate.open.set()
        for client in (first, third):
            assert (await client.answer()).status == 200

        assert (refused.status, held) == (429, 260_000)
        assert json.loads(refused.body)["error"]["code"] == "bodies_full"
        assert refused.values(b"retry-after") == [b"1"]
        await wait_until(lambda: server.bodies.held == 0)


@in_loop
async def test_what_all_bodies_may_take_is_as_the_settings_say_now() -> None:
    gate = Gate()
    async with serving(gate) as server, connected(server) as client:
        server.hold_to(LimitSettings(bodies_bytes=100_000), server.timeouts)

        assert (await client.ask(post(b"x" * 200_000))).status == 429


@pytest.mark.parametrize(("num_files", "most"), [(100, 50), (1, 1), (40, 20), (50, 20), (-1, 20)])
def test_clients_take_half_of_the_files_that_may_be_open(num_files: int, most: int) -> None:
    limits = LimitSettings(connections=20)

    assert within_file_limit(limits, num_files).connections == min(most, 20)


def test_all_ports_together_leave_half_of_the_files_to_engines() -> None:
    assert within_file_limit(LimitSettings(), 100, num_ports=2).connections == 25


@pytest.mark.parametrize("sent", [100_000, 500_000])
@in_loop
async def test_the_body_of_a_client_that_leaves_is_held_no_longer(sent: int) -> None:
    async with serving(echo) as server, connected(server) as client:
        await client.send(post(b"x" * 500_001)[: -500_001 + sent])
        await wait_until(lambda: server.bodies.held == sent)
        client.reset()
        await wait_until(lambda: server.stats.open == 0)

        assert server.bodies.held == 0


@in_loop
async def test_an_absolute_target_becomes_a_path() -> None:
    async with serving(echo) as server, connected(server) as client:
        assert (await client.ask(get(b"HTTP://gw:80/a?b"))).body == b"GET /a?b "
        assert (await client.ask(get(b"http://gw"))).body == b"GET / "


@in_loop
async def test_an_offered_upgrade_is_ignored() -> None:
    async with serving(echo) as server, connected(server) as client:
        offer = (b"connection: upgrade, http2-settings", b"upgrade: h2c")
        await client.send(get(b"/a", *offer) + post(b"b", *offer, target=b"/b") + get(b"/c"))
        bodies = [(await client.answer()).body for _ in range(3)]

        assert bodies == [b"GET /a ", b"POST /b b", b"GET /c "]


@pytest.mark.parametrize("behind", [get().replace(b"gw", b"g w"), b"GARBAGE\r\n\r\n"])
@in_loop
async def test_what_is_refused_behind_an_offered_upgrade_is_told(behind: bytes) -> None:
    async with serving(echo) as server, connected(server) as client:
        await client.send(get(b"/a", b"connection: upgrade", b"upgrade: h2c") + behind)

        assert (await client.answer()).body == b"GET /a "
        assert (await client.answer()).status == 400


# ----------------------------------------------------------------------------- 100-continue


@in_loop
async def test_100_continue_is_sent_when_the_body_is_awaited() -> None:
    head, body = post(b"hello", b"expect: 100-continue").split(b"\r\n\r\n")
    async with serving(echo) as server, connected(server) as client:
        await client.send(head + b"\r\n\r\n")
        assert (await client.head()).status == 100

        assert (await client.ask(body)).body == b"POST /v1/chat/completions hello"


@in_loop
async def test_100_continue_is_not_sent_when_the_body_is_there() -> None:
    async with serving(echo) as server, connected(server) as client:
        assert (await client.ask(post(b"hello", b"expect: 100-continue"))).status == 200


@in_loop
async def test_100_continue_waits_for_the_answer_before_it() -> None:
    gate = Gate()
    head, body = post(b"hello", b"expect: 100-continue").split(b"\r\n\r\n")
    async with serving(gate) as server, connected(server) as client:
        await client.send(get(b"/first") + head + b"\r\n\r\n")
        await wait_until(lambda: gate.waiting == 1)
        gate.open.set()

        assert (await client.answer()).body == b"GET /first "
        assert (await client.head()).status == 100
        assert (await client.ask(body)).status == 200


@in_loop
async def test_a_body_that_is_too_large_is_refused_instead_of_continued() -> None:
    head, _ = post(b"x" * 101, b"expect: 100-continue").split(b"\r\n\r\n")
    limits = LimitSettings(body_bytes=100)
    async with serving(echo, limits=limits) as server, connected(server) as client:
        assert (await client.ask(head + b"\r\n\r\n")).status == 413


# ----------------------------------------------------------------------------- framing: out


async def stream(request: Request, responder: Responder) -> None:
    """Three pieces; `?length` announces it."""
    responder.start(200, (), 6 if request.query == "length" else None)
    for piece in (b"ab", b"", b"cd"):
        responder.write(piece)
        await asyncio.sleep(0)
    responder.end(b"ef")


@in_loop
async def test_without_a_length_the_answer_is_chunked() -> None:
    async with serving(stream) as server, connected(server) as client:
        answer = await client.ask(get())
        again = await client.ask(get())

    assert answer.chunks == [b"ab", b"cd", b"ef"]
    assert answer.values(b"content-length") == []
    assert again.body == b"abcdef"


@in_loop
async def test_with_a_length_the_bytes_pass_as_they_are() -> None:
    async with serving(stream) as server, connected(server) as client:
        answer = await client.ask(get(b"/?length"))

    assert (answer.body, answer.values(b"transfer-encoding")) == (b"abcdef", [])


@in_loop
async def test_for_http_1_0_the_connection_s_end_is_the_body_s_end() -> None:
    async with serving(stream) as server, connected(server) as client:
        answer = await client.ask(b"GET / HTTP/1.0\r\n\r\n")

    assert (answer.body, answer.values(b"transfer-encoding")) == (b"abcdef", [])
    assert answer.values(b"connection") == [b"close"]


@in_loop
async def test_http_1_0_keeps_the_connection_when_asked_to_and_possible() -> None:
    request = b"GET /?length HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"
    async with serving(stream) as server, connected(server) as client:
        answer = await client.ask(request)

        assert answer.values(b"connection") == [b"keep-alive"]
        assert (await client.ask(request)).body == b"abcdef"


@pytest.mark.parametrize("target", [b"/", b"/?length"])
@in_loop
async def test_head_has_the_headers_of_get_and_no_body(target: bytes) -> None:
    async with serving(stream) as server, connected(server) as client:
        head = await client.ask(get(target).replace(b"GET", b"HEAD"))
        answer = await client.ask(get(target))

    assert head.values(b"content-length") == answer.values(b"content-length")
    assert answer.body == b"abcdef"


@in_loop
async def test_204_has_neither_body_nor_length() -> None:
    async def nothing(_: Request, responder: Responder) -> None:
        responder.send(204, (), b"")

    async with serving(nothing) as server, connected(server) as client:
        answer = await client.ask(get())
        again = await client.ask(get())

    assert (answer.values(b"content-length"), again.status) == ([], 204)


@in_loop
async def test_the_connection_closes_when_the_client_asks_for_it() -> None:
    async with serving(echo) as server, connected(server) as client:
        answer = await client.ask(get(b"/", b"connection: close"))

        assert answer.values(b"connection") == [b"close"]
        assert await client.closed() == b""


@in_loop
async def test_an_answer_that_breaks_off_cannot_be_taken_for_whole() -> None:
    async def half(_: Request, responder: Responder) -> None:
        responder.start(200, ())
        responder.write(b"half")
        await asyncio.sleep(0)
        responder.abort()

    async with serving(half) as server, connected(server) as client:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask(get())


@pytest.mark.parametrize("body", [b"short", b"longer than announced"])
@in_loop
async def test_a_body_that_is_not_its_length_is_broken_off(body: bytes) -> None:
    async def wrong(_: Request, responder: Responder) -> None:
        responder.start(200, (), 10)
        responder.flush()
        await asyncio.sleep(0)
        responder.end(body)

    async with serving(wrong) as server, connected(server) as client:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask(get())


# --------------------------------------------------------------------------------- request id


@in_loop
async def test_a_client_s_request_id_is_kept() -> None:
    async with serving(echo) as server, connected(server) as client:
        assert (await client.ask(get(b"/", b"X-Request-Id: mine"))).values(b"x-request-id") == [
            b"mine"
        ]


@pytest.mark.parametrize("given", [b"", b"a b", b"\xff", b"x" * 129])
@in_loop
async def test_without_a_usable_request_id_each_request_gets_its_own(given: bytes) -> None:
    async with serving(echo) as server, connected(server) as client:
        ids = {
            (await client.ask(get(b"/", b"x-request-id: " + given))).values(b"x-request-id")[0]
            for _ in range(3)
        }

    assert len(ids) == 3
    assert given not in ids


@in_loop
async def test_requests_that_wait_for_an_answer_before_theirs_have_ids_of_their_own() -> None:
    gate = Gate()
    async with serving(gate) as server, connected(server) as one, connected(server) as other:
        await one.send(get() + get() + get() + b"no request\r\n\r\n")
        await wait_until(lambda: gate.waiting == 1)
        await other.send(get())
        await wait_until(lambda: gate.waiting == 2)
        gate.open.set()
        answers = [await one.answer() for _ in range(4)] + [await other.answer()]

    assert [answer.status for answer in answers] == [200, 200, 200, 400, 200]
    assert len({answer.values(b"x-request-id")[0] for answer in answers}) == 5


# ------------------------------------------------------------------------------------- errors


@in_loop
async def test_an_error_of_ours_is_answered_as_openai_would() -> None:
    async def unknown(_: Request, __: Responder) -> None:
        raise UnknownModelError("no model 'x'", param="model")

    async with serving(unknown) as server, connected(server) as client:
        answer = await client.ask(post())

        assert answer.status == 404
        assert b'"message":"no model \'x\'"' in answer.body
        assert (await client.ask(post())).status == 404
        assert server.stats.crashed == 0


@in_loop
async def test_a_method_that_is_not_allowed_names_those_that_are() -> None:
    async def no(_: Request, __: Responder) -> None:
        raise MethodNotAllowedError("no", allowed="POST")

    async with serving(no) as server, connected(server) as client:
        assert (await client.ask(get())).values(b"allow") == [b"POST"]


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "after a wait"])
@in_loop
async def test_a_handler_that_crashes_is_500_logged_and_counted(
    wait: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(_: Request, __: Responder) -> None:
        if wait:
            await asyncio.sleep(0)
        raise ValueError("secret")

    async with serving(crash) as server, connected(server) as client:
        answer = await client.ask(post())

        assert (answer.status, server.stats.crashed) == (500, 1)
        assert b"secret" not in answer.body
        assert (
            "POST /v1/chat/completions failed by a fault of the gateway: ValueError" in caplog.text
        )
        assert "in crash" in caplog.text


class PanicException(BaseException):
    """As pyo3 has it, anew in every library written in Rust."""


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "after a wait"])
@in_loop
async def test_a_librarys_panic_is_500_too(wait: bool, caplog: pytest.LogCaptureFixture) -> None:
    words = "secret"

    async def panic(_: Request, __: Responder) -> None:
        if wait:
            await asyncio.sleep(0)
        raise PanicException(words)

    async with serving(panic) as server, connected(server) as client:
        answer = await client.ask(post())

        assert (answer.status, server.stats.crashed) == (500, 1)
        assert "PanicError" in caplog.text
        assert "secret" not in caplog.text + str(answer.body)


@in_loop
async def test_a_crash_in_the_middle_of_an_answer_breaks_it_off() -> None:
    async def crash(_: Request, responder: Responder) -> None:
        responder.start(200, ())
        responder.write(b"half")
        await asyncio.sleep(0)
        raise ValueError

    async with serving(crash) as server, connected(server) as client:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.ask(get())


@in_loop
async def test_a_handler_that_returns_without_an_answer_is_500() -> None:
    async def forgetful(_: Request, __: Responder) -> None:
        return

    async with serving(forgetful) as server, connected(server) as client:
        assert (await client.ask(get())).status == 500


@in_loop
async def test_a_handler_may_cancel_what_it_waits_for() -> None:
    async def impatient(_: Request, responder: Responder) -> None:
        await asyncio.sleep(0)  # from here on it has a task of its own
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            responder.send(200, (), b"enough")

    async with serving(impatient) as server, connected(server) as client:
        assert (await client.ask(get())).body == b"enough"
