"""TLS with clients and with engines, and Unix sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.http.clients import Client, Gate, echo, get, post
from tests.upstream.engines import in_loop, wait_until
from tests.upstream.sinks import ask

from inferway.config import (
    EngineSettings,
    LimitSettings,
    ServeSettings,
    TimeoutSettings,
    load_settings,
)
from inferway.errors import ConfigError
from inferway.http.listening import Certificate
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import Handler, HttpServer
from inferway.upstream.pool import Pool


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def issue(authority: trustme.CA, place: Path, name: str = "localhost") -> Certificate:
    """Written over what is there."""
    leaf = authority.issue_cert(name)
    chain, key = place / "cert.pem", place / "key.pem"
    chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return Certificate(chain, key)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@asynccontextmanager
async def serving(
    handler: Handler, certificate: Certificate, **more: object
) -> AsyncIterator[HttpServer]:
    server = HttpServer(handler, certificate=certificate, **more)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(server: HttpServer, context: ssl.SSLContext) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=context, server_hostname="localhost", limit=2**20
    )
    client = Client(reader, writer)
    try:
        yield client
    finally:
        client.reset()


# -------------------------------------------------------------------------------- with clients


@in_loop
async def test_requests_are_answered_over_tls(authority: trustme.CA, tmp_path: Path) -> None:
    certificate = issue(authority, tmp_path)
    async with (
        serving(echo, certificate) as server,
        connected(server, trusting(authority)) as client,
    ):
        await client.send(get(b"/a") + post(b"x" * 1_000_000, target=b"/b"))
        first, second = await client.answer(), await client.answer()

        assert server.url == f"https://127.0.0.1:{server.port}"
        assert (first.body, len(second.body)) == (b"GET /a ", 1_000_000 + len(b"POST /b "))


@in_loop
async def test_a_client_gone_over_tls_is_known_at_once(
    authority: trustme.CA, tmp_path: Path
) -> None:
    gate = Gate()
    async with (
        serving(gate, issue(authority, tmp_path)) as server,
        connected(server, trusting(authority)) as client,
    ):
        await client.send(get())
        await wait_until(lambda: gate.waiting == 1)
        client.close()
        await wait_until(lambda: server.stats.open == 0)

        assert server.statuses == {499: 1}


@in_loop
async def test_a_client_who_does_not_read_is_held_back_over_tls(
    authority: trustme.CA, tmp_path: Path
) -> None:
    paused: list[Responder] = []

    class Source:
        def pause(self) -> None:
            paused.append(responders[0])

        def resume(self) -> None: ...
        def client_gone(self) -> None: ...

    responders: list[Responder] = []

    async def endless(_: Request, responder: Responder) -> None:
        responder.attach(Source())
        responder.start(200, ())
        responders.append(responder)

    async with (
        serving(endless, issue(authority, tmp_path)) as server,
        connected(server, trusting(authority)) as client,
    ):
        await client.send(get())
        await wait_until(lambda: bool(responders))
        pieces = 0
        while not paused:
            responders[0].write(b"x" * 65536)
            pieces += 1
            await asyncio.sleep(0)
        responders[0].end()

        assert len((await client.answer()).body) == pieces * 65536


@in_loop
async def test_a_refusal_reaches_a_client_who_is_still_sending_over_tls(
    authority: trustme.CA, tmp_path: Path
) -> None:
    limits = LimitSettings(body_bytes=1000)
    async with (
        serving(echo, issue(authority, tmp_path), limits=limits) as server,
        connected(server, trusting(authority)) as client,
    ):
        client.writer.write(post(b"x" * 100_000))

        assert (await client.answer()).status == 413


@in_loop
async def test_a_reloaded_certificate_is_for_new_connections(
    authority: trustme.CA, tmp_path: Path
) -> None:
    context, other = trusting(authority), trustme.CA()
    async with serving(echo, issue(authority, tmp_path)) as server:
        async with connected(server, context) as old:
            issue(other, tmp_path)
            server.reload_tls()

            assert (await old.ask(get(b"/old"))).status == 200
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(
                    "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
                )
        async with connected(server, trusting(other)) as new:
            assert (await new.ask(get(b"/new"))).status == 200


@pytest.mark.parametrize("bad", [b"", b"no pem", "key of another"])
@in_loop
async def test_a_bad_certificate_is_refused_and_the_old_one_stays(
    bad: bytes | str, authority: trustme.CA, tmp_path: Path
) -> None:
    async with serving(echo, issue(authority, tmp_path)) as server:
        if isinstance(bad, bytes):
            (tmp_path / "cert.pem").write_bytes(bad)
        else:
            (tmp_path / "key.pem").write_bytes(authority.issue_cert("x").private_key_pem.bytes())

        with pytest.raises(ConfigError, match=r"tls_cert '.*cert.pem', tls_key '.*key.pem': "):
            server.reload_tls()
        async with connected(server, trusting(authority)) as client:
            assert (await client.ask(get())).status == 200


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Certificate(tmp_path / "a.pem", tmp_path / "b.pem")


@in_loop
async def test_who_speaks_no_tls_is_cut_off(authority: trustme.CA, tmp_path: Path) -> None:
    async with serving(echo, issue(authority, tmp_path)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get())

        assert not (await reader.read()).startswith(b"HTTP")
        assert server.stats.requests == 0
        writer.close()


def test_one_of_certificate_and_key_is_not_enough(tmp_path: Path) -> None:
    engines = [EngineSettings(url="http://a:1")]
    with pytest.raises(ConfigError, match="give both, or neither"):
        load_settings(None, {"engines": engines, "tls_cert": str(tmp_path)})


# -------------------------------------------------------------------------------- with engines


def engine_tls(authority: trustme.CA, place: Path) -> ssl.SSLContext | None:
    place.joinpath("ca.pem").write_bytes(authority.cert_pem.bytes())
    settings = ServeSettings(
        engines=[EngineSettings(url="https://a:1")], engine_ca=str(place / "ca.pem")
    )
    return settings.engine_tls()


@in_loop
async def test_an_engine_whose_certificate_is_trusted_is_asked_over_tls(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async with serving(echo, issue(authority, tmp_path, "127.0.0.1")) as engine:
        pool = Pool(tls=engine_tls(authority, tmp_path))
        sinks = [await ask(pool, engine.url, body=b"x" * 200_000) for _ in range(2)]
        await pool.close()

        assert [len(sink.body) for sink in sinks] == [200_000 + len(b"POST /v1/x?a=b ")] * 2
        assert pool.stats.connected == 1


@pytest.mark.parametrize("wrong", ["name", "signer"])
@in_loop
async def test_an_engine_whose_certificate_is_not_trusted_gets_nothing(
    wrong: str, authority: trustme.CA, tmp_path: Path
) -> None:
    signer = trustme.CA() if wrong == "signer" else authority
    name = "elsewhere.example" if wrong == "name" else "127.0.0.1"
    async with serving(echo, issue(signer, tmp_path, name)) as engine:
        pool = Pool(tls=engine_tls(authority, tmp_path))
        sink = await ask(pool, engine.url)
        await pool.close()

        assert "certificate verify failed" in str(sink.error)
        assert engine.stats.requests == 0


@in_loop
async def test_without_engine_ca_the_system_is_asked(authority: trustme.CA, tmp_path: Path) -> None:
    async with serving(echo, issue(authority, tmp_path, "127.0.0.1")) as engine:
        pool = Pool()
        sink = await ask(pool, engine.url)
        await pool.close()

        assert "certificate verify failed" in str(sink.error)


def test_an_engine_ca_that_is_none_is_named(tmp_path: Path) -> None:
    tmp_path.joinpath("ca.pem").write_bytes(b"no pem")
    for name in ("ca.pem", "nobody.pem"):
        settings = ServeSettings(engines=[], engine_ca=str(tmp_path / name))
        with pytest.raises(ConfigError, match=f"engine_ca '.*{name}': .*PEM"):
            settings.engine_tls()


# -------------------------------------------------------------------------------- Unix sockets


@in_loop
async def test_a_unix_socket_is_listened_on_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "gw.sock"
    server = HttpServer(echo, host=f"unix:{path}")
    await server.start()
    reader, writer = await asyncio.open_unix_connection(str(path))
    client = Client(reader, writer)

    assert (await client.ask(get(b"/a"))).body == b"GET /a "
    assert (server.url, server.port) == (f"unix:{path}", 0)
    client.reset()
    await server.stop(1)
    assert not path.exists()


@in_loop
async def test_a_unix_socket_of_the_next_gateway_stays(tmp_path: Path) -> None:
    path, kept = tmp_path / "gw.sock", tmp_path / "kept"
    server = HttpServer(echo, host=f"unix:{path}")
    await server.start()
    kept.hardlink_to(path)
    server.stop_accepting()
    assert not path.exists()
    path.hardlink_to(kept)  # another file system gives a new socket the same number
    await server.stop(0)

    assert path.exists()


@in_loop
async def test_a_unix_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "gw.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = HttpServer(echo, host=f"unix:{path}")
    await server.start()
    await server.stop(0)


@in_loop
async def test_a_unix_socket_in_use_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "gw.sock"
    first = HttpServer(echo, host=f"unix:{path}")
    await first.start()
    with pytest.raises(ConfigError, match=r"unix:.*gw.sock is in use"):
        await HttpServer(echo, host=f"unix:{path}").start()

    assert path.exists()
    await first.stop(0)


@in_loop
async def test_a_file_in_the_place_of_a_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "gw.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        await HttpServer(echo, host=f"unix:{path}").start()

    assert path.read_text() == "precious"


@in_loop
async def test_tls_speaks_on_a_unix_socket_too(authority: trustme.CA, tmp_path: Path) -> None:
    path = tmp_path / "gw.sock"
    timeouts = TimeoutSettings(keep_alive=5)
    server = HttpServer(
        echo, host=f"unix:{path}", certificate=issue(authority, tmp_path), timeouts=timeouts
    )
    await server.start()
    reader, writer = await asyncio.open_unix_connection(
        str(path), ssl=trusting(authority), server_hostname="localhost"
    )
    client = Client(reader, writer)

    assert (await client.ask(get(b"/a"))).body == b"GET /a "
    client.reset()
    await server.stop(0)
