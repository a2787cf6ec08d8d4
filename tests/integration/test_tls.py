"""TLS on both sides of a whole gateway, as its settings say."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
from tests.http.clients import Client, get, post
from tests.integration.conftest import until

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings
from inferway.doctor.engines import ask_engines
from inferway.errors import ConfigError
from inferway.http.listening import Certificate
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.http.server import HttpServer

CHAT = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
MODELS = b'{"data":[{"id":"m","root":"m","max_model_len":100}]}'


async def engine(request: Request, responder: Responder) -> None:
    known = request.path in ("/health", "/v1/models", "/v1/chat/completions")
    responder.send(200 if known else 404, JSON, MODELS if request.path == "/v1/models" else b"{}")


def issue(authority: trustme.CA, place: Path, name: str) -> tuple[Path, Path]:
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    chain, key = place / f"{name}.pem", place / f"{name}.key"
    chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return chain, key


async def test_clients_and_engines_are_spoken_to_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    chain, key = issue(authority, tmp_path, "gateway")
    behind = HttpServer(engine, certificate=Certificate(*issue(authority, tmp_path, "engine")))
    await behind.start()
    settings = ServeSettings(
        engines=[EngineSettings(url=behind.url)],
        port=0,
        scoring=False,
        tls_cert=str(chain),
        tls_key=str(key),
        engine_ca=str(tmp_path / "ca.pem"),
        access_log=None,
    )
    gateway = Gateway(settings)
    await gateway.start()
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        client = Client(
            *await asyncio.open_connection(
                "127.0.0.1", gateway.port, ssl=context, server_hostname="localhost"
            )
        )
        ready = await client.ask(get(b"/ready"))
        answer = await client.ask(post(CHAT))
        client.close()
        await client.writer.wait_closed()
    finally:
        await gateway.close()
        await behind.stop(1)

    assert ready.status == 200
    assert (answer.status, answer.body) == (200, b"{}")


async def test_an_engine_sees_the_certificate_of_the_gateway_also_after_a_reload(
    tmp_path: Path,
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    certificate = Certificate(*issue(authority, tmp_path, "engine"))
    certificate.context.load_verify_locations(tmp_path / "ca.pem")
    certificate.context.verify_mode = ssl.CERT_REQUIRED
    chain, key = issue(stranger, tmp_path, "gateway")
    behind = HttpServer(engine, certificate=certificate)
    await behind.start()
    settings = ServeSettings(
        engines=[EngineSettings(url=behind.url)],
        port=0,
        scoring=False,
        engine_ca=str(tmp_path / "ca.pem"),
        engine_cert=str(chain),
        engine_key=str(key),
        access_log=None,
    )
    gateway = Gateway(settings)
    await gateway.start()
    try:
        url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
        async with aiohttp.ClientSession() as http:
            async with http.post(url, data=CHAT) as answer:
                assert answer.status == 503
            issue(authority, tmp_path, "gateway")
            await gateway.reload(lambda: settings)

            async def answers() -> bool:
                async with http.post(url, data=CHAT) as answer:
                    return answer.status == 200

            await until(answers)
    finally:
        await gateway.close()
        await behind.stop(1)


def test_an_engine_cert_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").write_text("none")
    settings = ServeSettings(
        engines=[EngineSettings(url="https://h:1")],
        engine_cert=str(tmp_path / "chain.pem"),
        engine_key=str(tmp_path / "key.pem"),
    )
    with pytest.raises(
        ConfigError, match=r"engine_cert '.*chain.pem', engine_key .*expected a PEM"
    ):
        settings.engine_tls()


async def test_the_doctor_trusts_whom_the_gateway_would(tmp_path: Path) -> None:
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    behind = HttpServer(engine, certificate=Certificate(*issue(authority, tmp_path, "engine")))
    await behind.start()
    engines = [EngineSettings(url=behind.url)]
    settings = ServeSettings(engines=engines, engine_ca=str(tmp_path / "ca.pem"))
    try:
        [trusted] = await ask_engines(engines, settings.engine_tls())
        [unknown] = await ask_engines(engines)
    finally:
        await behind.stop(1)

    assert (trusted.error, trusted.health) == (None, 200)
    assert unknown.error is not None
    assert "certificate verify failed" in unknown.error


async def test_an_engine_whose_signer_is_added_to_the_file_is_trusted_after_a_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = trustme.CA(), trustme.CA()
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(first.cert_pem.bytes())
    behind = HttpServer(engine, certificate=Certificate(*issue(second, tmp_path, "engine")))
    await behind.start()
    settings = ServeSettings(
        engines=[EngineSettings(url=behind.url)],
        port=0,
        scoring=False,
        engine_ca=str(trusted),
        access_log=None,
    )
    gateway = Gateway(settings)
    await gateway.start()
    try:
        assert "certificate verify failed" in caplog.text
        trusted.write_text("none")
        await gateway.reload(lambda: settings)
        assert f"all stays as it was: engine_ca '{trusted}'" in caplog.text

        trusted.write_bytes(first.cert_pem.bytes() + second.cert_pem.bytes())
        await gateway.reload(lambda: settings)

        url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
        async with aiohttp.ClientSession() as http:
            async with asyncio.timeout(20):
                while (answer := await http.post(url, data=CHAT)).status != 200:
                    await asyncio.sleep(0.01)
            assert await answer.read() == b"{}"
    finally:
        await gateway.close()
        await behind.stop(1)
