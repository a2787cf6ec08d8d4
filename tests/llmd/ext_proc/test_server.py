"""The picker over gRPC, asked as Envoy and kubelet ask it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop
from hpack import Encoder
from tests.llmd.ext_proc.journeys import Untouched
from tests.llmd.ext_proc.pods import Stream, UndelayedTap, rqb, rqh, rsb, rsh

from inferway.errors import ConfigError
from inferway.extension import Extension
from inferway.model import Target
from inferway_llmd.ext_proc import tls
from inferway_llmd.ext_proc.health import (
    NOT_SERVING,
    SERVING,
    CheckRequest,
    CheckResponse,
    Health,
)
from inferway_llmd.ext_proc.messages import (
    METHOD,
    SERVICE,
    ProcessingRequest,
    ProcessingResponse,
)
from inferway_llmd.ext_proc.questions import Ask, Pick, Rules
from inferway_llmd.ext_proc.server import PickerServer
from inferway_llmd.ext_proc.wire.call import WINDOW_BYTES
from inferway_llmd.ext_proc.wire.frames import (
    DATA,
    END_HEADERS,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Fault,
    frame,
    message_head,
)
from inferway_llmd.ext_proc.wire.listening import GrpcServer

PODS = {"10.0.0.1:8000": {"q": 3}, "10.0.0.2:8000": {}}
BODY = b'{"model":"m","prompt":"p"}'


class Running:
    """A picker of two pods, and who asks it."""

    def __init__(
        self, ready: bool = True, extensions: Sequence[Extension] = (), **options: Any
    ) -> None:
        self.stream = Stream(PODS)
        self.ready = ready
        self.server = PickerServer(
            self.stream.picker,
            Rules(
                self.stream.fleet.find,
                max_body_bytes=5 << 20,
                tap=UndelayedTap([self.stream.picker.requests, *extensions]),
            ),
            Health(lambda: self.ready, look_seconds=0.01),
            **{"host": "127.0.0.1", "port": 0, "health_port": 0, "credentials": None, **options},
        )

    async def __aenter__(self) -> Running:
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.health = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.health_port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.health.close()
        await self.server.stop(0)

    def process(self, channel: grpc.aio.Channel | None = None) -> Any:
        return (channel or self.channel).stream_stream(
            f"/{SERVICE}/{METHOD}",
            ProcessingRequest.SerializeToString,
            ProcessingResponse.FromString,
        )()

    async def check(self, service: str, channel: grpc.aio.Channel | None = None) -> int:
        check = (channel or self.health).unary_unary(
            "/grpc.health.v1.Health/Check",
            CheckRequest.SerializeToString,
            CheckResponse.FromString,
        )
        status: int = (await check(CheckRequest(service=service))).status
        return status


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with Running() as picker:
        yield picker


async def test_a_request_and_its_answer_pass_through_one_stream(running: Running) -> None:
    call = running.process()

    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(BODY, eos=True))
    head, body = await call.read(), await call.read()
    assert head.request_headers.response.clear_route_cache
    assert body.request_body.response.body_mutation.streamed_response.body == BODY
    assert running.stream.fleet.booked == ["10.0.0.2:8000"]

    await call.write(rsh((":status", "200")))
    await call.write(rsb(b"{}", eos=True))
    assert (await call.read()).WhichOneof("kind") == "response_headers"
    assert (await call.read()).response_body.response.body_mutation.streamed_response.end_of_stream
    assert await call.read() is grpc.aio.EOF
    assert running.server.counts.closed == {"OK": 1}
    assert running.stream.fleet.booked == []
    assert running.stream.outcomes == {"ok": 1}


async def test_who_goes_away_frees_the_slot(running: Running) -> None:
    call = running.process()
    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(BODY, eos=True))
    await call.read()
    await call.read()
    assert running.stream.fleet.booked

    call.cancel()
    # another stream's answer comes after what the server does with the first one's end
    others = []
    while not running.stream.outcomes:
        others.append(running.process())
        await others[-1].write(rqh((":path", "/v1/models"), (":method", "GET"), eos=True))
        await others[-1].read()

    assert running.stream.outcomes == {"client_gone": 1}
    assert len(running.stream.fleet.booked) == len(others)


async def test_a_body_in_one_message_may_be_larger_than_grpc_takes_by_itself(
    running: Running,
) -> None:
    call = running.process()
    large = b'{"model":"m","prompt":"%b"}' % (b"x" * (4_500_000))

    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(large, eos=True))

    assert (await call.read()).WhichOneof("kind") == "request_headers"


async def test_a_body_over_the_limit_is_answered_with_413(running: Running) -> None:
    call = running.process()

    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(b"x" * (5 << 20)))
    await call.write(rqb(b"x"))

    reply = (await call.read()).immediate_response
    assert reply.status.code == 413
    assert b"over the limit of 5242880 bytes" in reply.body


@pytest.mark.parametrize("service", ["", "readiness", "inference-extension", SERVICE])
async def test_it_is_ready_under_every_name_that_is_asked_for(
    running: Running, service: str
) -> None:
    assert await running.check(service) == SERVING

    running.ready = False

    assert await running.check(service) == NOT_SERVING
    assert await running.check("liveness") == SERVING


async def test_an_unknown_name_is_told_with_the_known_ones(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="known are 'liveness'"):
        await running.check("nobody")


async def test_its_health_may_be_asked_beside_it() -> None:
    async with Running(health_beside=True) as running:
        assert await running.check("", running.channel) == SERVING


async def test_an_occupied_port_is_an_error_that_names_it(running: Running) -> None:
    other = Running(port=running.server.port, health_port=None)

    with pytest.raises(ConfigError, match=f"port {running.server.port} on 127.0.0.1 is in use"):
        await other.server.start()


def write_pair(directory: Path) -> bytes:
    key, certificate = tls.self_signed()
    (directory / "tls.key").write_bytes(key)
    (directory / "tls.crt").write_bytes(certificate)
    return certificate


async def trusted(running: Running, certificate: bytes) -> bool:
    """Whether a client that trusts this certificate alone is answered."""
    credentials = grpc.ssl_channel_credentials(certificate)
    async with grpc.aio.secure_channel(
        f"127.0.0.1:{running.server.port}",
        credentials,
        options=[("grpc.ssl_target_name_override", "localhost")],
    ) as channel:
        call = running.process(channel)
        try:
            await call.write(rqh((":path", "/v1/models"), eos=True))
            return (await call.read()) is not grpc.aio.EOF
        except (grpc.aio.AioRpcError, grpc.aio.UsageError):
            return False


async def test_a_changed_certificate_is_served_from_the_next_connection_on(tmp_path: Path) -> None:
    old = write_pair(tmp_path)
    async with Running(credentials=tls.PickerCertificate(tmp_path, reload=True)) as running:
        assert await trusted(running, old)

        new = write_pair(tmp_path)

        assert await trusted(running, new)
        assert not await trusted(running, old)


async def test_a_broken_certificate_leaves_the_old_one_in_place(tmp_path: Path) -> None:
    old = write_pair(tmp_path)
    async with Running(credentials=tls.PickerCertificate(tmp_path, reload=True)) as running:
        (tmp_path / "tls.crt").write_bytes(b"garbage")

        assert await trusted(running, old)


async def test_without_a_certificate_it_makes_one() -> None:
    async with Running(credentials=tls.PickerCertificate(None)) as running:
        assert not await trusted(running, tls.self_signed()[1])


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path)
    (tmp_path / "tls.key").write_bytes(tls.self_signed()[0])

    with pytest.raises(ConfigError, match=r"tls.key is not the key of tls.crt"):
        tls.PickerCertificate(tmp_path)


def test_a_missing_certificate_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls.key: No such file"):
        tls.PickerCertificate(tmp_path)


async def test_a_proxy_that_speaks_no_tls_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = GrpcServer(
        {},
        host="127.0.0.1",
        port=0,
        credentials=tls.PickerCertificate(None),
        handshake_seconds=0.01,
    )
    await server.start()
    for _ in range(2):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        writer.close()
    while "--secure-serving=false" not in caplog.text:
        await asyncio.sleep(0.01)
    await server.stop(0)

    assert caplog.text.count("no TLS handshake") == 1


async def test_a_watch_tells_each_change_of_health(running: Running) -> None:
    watch = running.health.unary_stream(
        "/grpc.health.v1.Health/Watch", CheckRequest.SerializeToString, CheckResponse.FromString
    )(CheckRequest(service="readiness"))

    assert (await watch.read()).status == SERVING
    running.ready = False
    assert (await watch.read()).status == NOT_SERVING
    watch.cancel()


async def test_a_stream_under_way_ends_before_the_server_does(running: Running) -> None:
    call = running.process()
    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(BODY, eos=True))
    await call.read()
    await call.read()

    stopped = asyncio.ensure_future(running.server.stop(10))
    await asyncio.sleep(0)
    await call.write(rsh((":status", "200"), eos=True))

    assert (await call.read()).WhichOneof("kind") == "response_headers"
    assert await call.read() is grpc.aio.EOF
    await running.channel.close()
    await stopped
    assert running.stream.outcomes == {"ok": 1}


async def test_a_stream_that_does_not_end_is_cut_off_at_last(running: Running) -> None:
    call = running.process()
    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(BODY, eos=True))
    await call.read()

    await running.server.stop(0)

    assert running.stream.fleet.booked == []
    assert running.stream.outcomes == {"client_gone": 1}


async def test_what_is_no_message_of_envoys_is_an_error(running: Running) -> None:
    call = running.channel.stream_stream(f"/{SERVICE}/{METHOD}")()

    await call.write(b"\xff\xff")

    with pytest.raises(grpc.aio.AioRpcError, match="this is no ProcessingRequest"):
        await call.read()
    assert running.server.counts.open == 0


class Crashing(Untouched):
    """A journey that a fault of ours ends."""

    def on_chunk(self, chunk: bytes) -> bytes:
        raise RuntimeError(chunk.decode())

    def close(self, outcome: str) -> None:
        raise RuntimeError(outcome)


async def test_a_crash_ends_its_stream_alone_and_the_log_has_no_prompt(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(running.stream.fleet.endpoints[0], 0.0, 0, 0)

    class Picking:
        async def pick(self, ask: Ask) -> Pick:
            return Pick(Crashing(ask.body or b""), [target])

    other = running.process()
    await other.write(rqh((":path", "/v1/completions")))
    running.server.picker = Picking()  # type: ignore[assignment]
    call = running.process()
    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(BODY, eos=True))
    await call.write(rsh((":status", "200")))
    await call.write(rsb(b"a word of the prompt"))
    for _ in range(3):
        await call.read()  # both of the request, and the answer's head

    with pytest.raises(grpc.aio.AioRpcError, match="the picker's log has the reason"):
        await call.read()
    assert "RuntimeError" in caplog.text
    assert "a word" not in caplog.text
    await other.write(rqb(BODY, eos=True))
    assert (await other.read()).WhichOneof("kind") == "request_headers"


async def later(parse: Callable[[bytes], Any], body: bytes) -> Any:
    """Parses, but not at once: what comes meanwhile is kept."""
    for _ in range(20):
        await asyncio.sleep(0)
    return parse(body)


@pytest.mark.parametrize("waits", [False, True])
async def test_who_says_no_more_behind_the_request_is_answered_and_frees_the_slot(
    running: Running, waits: bool
) -> None:
    """NGINX's shim has no response phase."""
    if waits:
        running.stream.director.off_loop, running.stream.director.off_loop_bytes = later, 0
    call = running.process()

    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(BODY, eos=True))
    await call.write(rqb(b"its end again", eos=True))
    await call.done_writing()

    kinds = [(await call.read()).WhichOneof("kind") for _ in range(2)]
    assert kinds == ["request_headers", "request_body"]
    assert await call.read() is grpc.aio.EOF
    assert running.stream.fleet.booked == []


async def test_who_goes_while_it_is_decided_leaves_nothing(running: Running) -> None:
    begun, given_up = asyncio.Event(), asyncio.Event()

    async def never(_: Callable[[bytes], Any], __: bytes) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    running.stream.director.off_loop, running.stream.director.off_loop_bytes = never, 0
    call = running.process()
    await call.write(rqh((":path", "/v1/completions")))
    await call.write(rqb(BODY, eos=True))
    await begun.wait()

    call.cancel()

    await given_up.wait()
    assert running.server.counts.open == 0
    assert running.stream.outcomes == {"client_gone": 1}


async def test_who_says_more_while_it_is_decided_than_we_keep_loses_its_stream(
    running: Running,
) -> None:
    async def never(_: Callable[[bytes], Any], __: bytes) -> Any:
        await asyncio.Event().wait()

    running.stream.director.off_loop, running.stream.director.off_loop_bytes = never, 0
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    block = Encoder().encode(
        [
            *[(":method", "POST"), (":scheme", "http"), (":path", f"/{SERVICE}/{METHOD}")],
            ("content-type", "application/grpc"),
        ]
    )

    def data(message: Any) -> bytes:
        said = message.SerializeToString()
        return frame(DATA, 0, 1, message_head(len(said)) + said)

    writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, block))
    writer.write(data(rqh((":path", "/v1/completions"))) + data(rqb(BODY, eos=True)))
    writer.write(data(rqb(b"x" * 16_000)) * (WINDOW_BYTES // 16_000 + 1))

    heard = []
    while (RST_STREAM, 1) not in heard:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3]))
        heard.append((head[3], int.from_bytes(head[5:])))
    assert int.from_bytes(payload) == Fault.FLOW_CONTROL_ERROR
    assert (WINDOW_UPDATE, 1) not in heard
    assert running.server.counts.closed == {"Canceled": 1}
    writer.close()


async def test_a_watch_that_asks_again_and_again_is_one_watch(running: Running) -> None:
    watch = running.health.stream_stream("/grpc.health.v1.Health/Watch")()
    asked = CheckRequest(service="readiness").SerializeToString()
    for _ in range(3):
        await watch.write(asked)

    assert CheckResponse.FromString(await watch.read()).status == SERVING
    running.ready = False
    assert CheckResponse.FromString(await watch.read()).status == NOT_SERVING
    watch.cancel()


@pytest.mark.parametrize("secure", [False, True])
def test_large_bodies_pass_both_ways_on_the_loop_that_we_run_on(secure: bool) -> None:
    """A client that takes answers late fills nobody's memory, and loses none of them."""
    sizes = uvloop.run(large_bodies(tls.PickerCertificate(None) if secure else None))

    assert sizes == [(4 << 20, 24 << 20)] * 3


async def large_bodies(credentials: tls.PickerCertificate | None) -> list[tuple[int, int]]:
    """Of three streams at a time: bytes of the request, and of the answer, as they came back."""
    async with Running(credentials=credentials) as running:
        address = ("127.0.0.1", running.server.port)
        channel = running.channel
        if credentials is not None:
            pem = await asyncio.to_thread(ssl.get_server_certificate, address)
            channel = grpc.aio.secure_channel(
                "{}:{}".format(*address),
                grpc.ssl_channel_credentials(pem.encode()),
                options=[("grpc.ssl_target_name_override", "localhost")],
            )
        sizes = await asyncio.gather(*[large_body(running.process(channel)) for _ in range(3)])
        await channel.close()
    return sizes


async def large_body(call: Any) -> tuple[int, int]:
    await call.write(rqh((":path", "/v1/audio/transcriptions")))
    for _ in range(4):
        await call.write(rqb(b"x" * (1 << 20)))
    await call.write(rqb(b"", eos=True))
    asked, ended = 0, False
    while not ended:
        piece = (await call.read()).request_body.response.body_mutation.streamed_response
        asked, ended = asked + len(piece.body), piece.end_of_stream

    async def answer() -> None:
        await call.write(rsh((":status", "200")))
        for _ in range(24):
            await call.write(rsb(b"y" * (1 << 20)))
        await call.write(rsb(b"", eos=True))

    answering = asyncio.ensure_future(answer())
    answered = 0
    while (read := await call.read()) is not grpc.aio.EOF:
        answered += len(read.response_body.response.body_mutation.streamed_response.body)
    await answering
    return asked, answered
