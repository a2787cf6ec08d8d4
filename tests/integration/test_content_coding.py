"""Compressed bodies of clients, and compressed answers of engines."""

from __future__ import annotations

import gzip
import json
import resource
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli
import msgspec
import pytest
import zstandard
from tests.integration.recorders import Recorder, in_front_of

from inferway.config import LimitSettings, ModelRewrite, RewriteTarget
from inferway.routing.limits.callers import hash_of

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi " * 300}]}).encode()
JSON = "application/json"


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


CODED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
    " deflate": raw_deflate,
    "zstd": zstandard.compress,
    "br": brotli.compress,
    "identity": lambda data: data,
}


@pytest.mark.parametrize(("coding", "compress"), CODED.items(), ids=CODED)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_an_engine_gets_a_compressed_body_as_it_was_before(
    coding: str, compress: Callable[[bytes], bytes], path: str
) -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        status, _, _ = await front.ask(
            path, compress(BODY), content_type=JSON, content_encoding=coding
        )

    assert status == 200
    (seen,) = engine.seen
    assert seen.body == BODY
    assert "content-encoding" not in seen.headers
    assert seen.headers["content-length"] == str(len(BODY))


async def test_a_coding_that_is_not_known_is_named_with_those_that_are() -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        for coding in ("compress", "gzip, zstd"):
            status, headers, answer = await front.ask(
                CHAT, b"x", content_type=JSON, content_encoding=coding
            )
            assert status == 415
            assert headers["accept-encoding"] == "gzip, deflate, zstd, br"
            said = json.loads(answer)["error"]
            assert said["code"] == "unsupported_content_encoding"
            assert coding in said["message"]

    assert engine.seen == []


async def test_a_limit_of_bodies_that_is_reloaded_holds_for_decoded_ones() -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        less = msgspec.structs.replace(
            front.gateway.settings, limits=LimitSettings(body_bytes=len(BODY) - 1)
        )
        await front.gateway.reload(lambda: less)
        status, _, _ = await front.ask(
            "/tokenize", gzip.compress(BODY), content_type=JSON, content_encoding="gzip"
        )

    assert (status, engine.seen) == (413, [])


async def test_limits_that_are_reloaded_leave_engines_half_of_the_files() -> None:
    async with in_front_of(Recorder()) as front:
        gateway, (soft, hard) = front.gateway, resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
        try:
            await gateway.reload(lambda: gateway.settings)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        assert [server.limits.connections for server in gateway.reloading.servers] == [200]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
async def test_a_body_may_have_no_more_bytes_when_it_is_decoded(coding: str) -> None:
    engine = Recorder()
    limits = LimitSettings(body_bytes=100_000)
    async with in_front_of(engine, limits=limits) as front:
        for size, expected in ((100_000, 200), (100_001, 413), (50_000_000, 413)):
            body = b'{"model": "m", "messages": [], "x": "%b"}' % (b" " * (size - 39))
            assert len(body) == size
            status, _, answer = await front.ask(
                "/tokenize", CODED[coding](body), content_type=JSON, content_encoding=coding
            )
            assert status == expected, answer
            if status == 413:
                assert f"when it is decoded from {coding}" in json.loads(answer)["error"]["message"]

    assert len(engine.seen) == 1


BROKEN: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip without its end": ("gzip", lambda body: gzip.compress(body)[:-9]),
    "gzip with a byte behind it": ("gzip", lambda body: gzip.compress(body) + b"x"),
    "gzip of two members": ("gzip", lambda body: 2 * gzip.compress(body)),
    "no gzip": ("gzip", lambda body: body),
    "deflate without its end": ("deflate", lambda body: zlib.compress(body)[:-5]),
    "zstd without its end": ("zstd", lambda body: zstandard.compress(body)[:-5]),
    "no zstd": ("zstd", lambda body: body),
    "Brotli without its end": ("br", lambda body: brotli.compress(body)[:-5]),
    "no Brotli": ("br", lambda body: body),
}


@pytest.mark.parametrize(("coding", "compress"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_body_is_refused(coding: str, compress: Callable[[bytes], bytes]) -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        status, _, answer = await front.ask(
            "/tokenize", compress(BODY), content_type=JSON, content_encoding=coding
        )

    assert (status, engine.seen) == (400, [])
    assert f"body: not valid {coding}" in json.loads(answer)["error"]["message"]


async def test_whoever_has_no_key_has_nothing_decoded(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n- {{name: ann, hash: '{hash_of('k' * 40)}'}}\n")
    engine = Recorder()
    async with in_front_of(engine, api_keys=str(keys)) as front:
        status, _, _ = await front.ask(CHAT, b"x", content_encoding="compress")

    assert (status, engine.seen) == (401, [])


async def test_engines_are_asked_for_no_compression() -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        await front.ask(CHAT, BODY, content_type=JSON, accept_encoding="gzip, br")

    assert engine.seen[0].headers["accept-encoding"] == "identity"


async def test_an_answer_that_comes_compressed_all_the_same_passes_untouched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = b'{"model": "real", "usage": {"prompt_tokens": 5, "completion_tokens": 1}}'
    engine = Recorder(("real",), answer=gzip.compress(said), headers={"content-encoding": "gzip"})
    rewrites = [ModelRewrite(models=["asked"], targets=[RewriteTarget(model="real")])]
    async with in_front_of(engine, model_rewrites=rewrites) as front:
        for _ in range(2):
            body = BODY.replace(b'"m"', b'"asked"')
            status, headers, answer = await front.ask(CHAT, body, content_type=JSON)
            assert (status, answer) == (200, said)  # the client decodes it
            assert headers["content-encoding"] == "gzip"
            assert "x-inferway-edited" not in headers
        assert front.gateway.fleet.engines[0].healthy

    warnings = [r.getMessage() for r in caplog.records if "content-encoding" in r.getMessage()]
    assert len(warnings) == 1
    assert "'gzip'" in warnings[0]
