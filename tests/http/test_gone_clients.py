"""Clients who had gone before their request was read: their end of stream waits behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from tests.http.clients import connected, echo, get, post, serving
from tests.http.test_tls import issue, trusting
from tests.upstream.engines import in_loop, wait_until

from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import HttpServer

Connect = Callable[[HttpServer], socket.socket]


class Costly:
    """A handler that looks for its client before it goes on, and then waits for a sign."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []

    async def __call__(self, request: Request, responder: Responder) -> None:
        if request.method == "GET":
            await echo(request, responder)
            return
        responder.check_client()
        self.begun.append(request.body)
        if request.body != b"wait":
            await echo(request, responder)
            return
        responder.attach(Waiting())


class Waiting:
    """A source from which nothing comes."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def client_gone(self) -> None: ...


def over_tcp(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port))


def over_unix(server: HttpServer) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(server.url.removeprefix("unix:"))
    return sock


def leave(server: HttpServer, *asked: bytes, connect: Connect = over_tcp) -> None:
    """Before the loop has had a turn: the kernel keeps the request, and what comes behind it."""
    with connect(server) as sock:
        sock.sendall(b"".join(asked))


async def warned(server: HttpServer, connect: Connect = over_tcp) -> None:
    """A first one has gone unanswered."""
    leave(server, post(b"wait"), connect=connect)
    await wait_until(lambda: server.statuses == {499: 1})


@pytest.mark.parametrize("connect", [over_tcp, over_unix])
@in_loop
async def test_after_one_who_left_the_next_who_have_left_cost_nothing(
    connect: Connect, tmp_path: Path
) -> None:
    costly = Costly()
    where = f"unix:{tmp_path / 'gw'}" if connect is over_unix else "127.0.0.1"
    server = HttpServer(costly, host=where)
    await server.start()
    try:
        await warned(server, connect)

        for _ in range(40):
            leave(server, post(b"wait"), connect=connect)
        await wait_until(lambda: server.statuses == {499: 41})

        assert costly.begun == [b"wait"]
        await wait_until(lambda: server.stats.open == 0)
        assert (server.stats.answering, server.stats.crashed) == (0, 0)
    finally:
        await server.stop(0)


@in_loop
async def test_who_has_reset_the_connection_has_gone() -> None:
    costly = Costly()
    async with serving(costly) as server:
        await warned(server)
        with over_tcp(server) as sock:
            sock.sendall(post(b"wait"))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await wait_until(lambda: server.stats.accepted == 2 and server.stats.open == 0)

        assert costly.begun == [b"wait"]


@in_loop
async def test_who_stays_is_answered_also_while_others_leave() -> None:
    costly = Costly()
    async with serving(costly) as server:
        await warned(server)
        async with connected(server) as client:
            for body in (b"1", b"2"):
                leave(server, post(b"wait"))
                assert (await client.ask(post(body))).body.endswith(body)
            assert server.disconnect_checks > 0

            for _ in range(20):
                await client.ask(post(b"3"))

        assert server.disconnect_checks == 0
        assert b"wait" not in costly.begun[1:]


@in_loop
async def test_what_was_pipelined_behind_goes_with_its_client() -> None:
    costly = Costly()
    async with serving(costly) as server:
        await warned(server)
        leave(server, post(b"1"), post(b"2"))
        await wait_until(lambda: server.stats.accepted == 2 and server.stats.open == 0)

        assert costly.begun == [b"wait"]
        assert server.stats.answering == 0


@in_loop
async def test_who_only_half_closes_gets_what_costs_nothing() -> None:
    costly = Costly()
    async with serving(costly) as server:
        await warned(server)
        async with connected(server) as client:
            await client.send(get(b"/health"))
            client.writer.write_eof()

            assert (await client.answer()).status == 200
        assert server.disconnect_checks > 0


class TlsClient:
    """Says nothing by itself: what it sends goes out in the very moment it is told to."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    async def connect(self, server: HttpServer) -> None:
        loop = asyncio.get_running_loop()
        self._sock = over_tcp(server)
        self._sock.setblocking(False)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(self._sock, self._outgoing.read())
                self._incoming.write(await loop.sock_recv(self._sock, 65536))
            else:
                await loop.sock_sendall(self._sock, self._outgoing.read())
                return

    def leave(self, asked: bytes) -> None:
        """With a closing alert, as TLS has it."""
        self._tls.write(asked)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._sock.send(self._outgoing.read())
        self._sock.close()


@in_loop
async def test_a_tls_client_is_seen_to_have_gone_behind_its_closing_alert(tmp_path: Path) -> None:
    authority, costly = trustme.CA(), Costly()
    server = HttpServer(costly, certificate=issue(authority, tmp_path))
    await server.start()
    try:
        for _ in range(3):
            client = TlsClient(trusting(authority))
            await client.connect(server)
            await wait_until(lambda: server.stats.open == 1)
            client.leave(post(b"wait"))
            await wait_until(lambda: server.stats.open == 0)

        assert server.statuses == {499: 3}
        assert costly.begun == [b"wait"]
    finally:
        await server.stop(0)
