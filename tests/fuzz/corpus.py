"""What the fuzzer starts from: the cases of our tests, and the words of HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz.checks import CUT
from tests.http.test_malformed import REFUSED
from tests.http.test_normalised import PASSED
from tests.upstream.engines import SSE_HEAD, chunk
from tests.upstream.test_bad_answers import BROKEN, GARBAGE, WHOLE

WORDS = [
    *[b"GET / HTTP/1.1\r\n", b"POST", b"HEAD", b"OPTIONS *", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n"],
    *[b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 \r\n", b"204", b"304", b"101", b"http://"],
    *[b"host: a\r\n", b"content-length: ", b"transfer-encoding: chunked\r\n", b"gzip, ", b"\r\n"],
    *[b"connection: close\r\n", b"connection: upgrade\r\n", b"upgrade: h2c\r\n", b"keep-alive"],
    *[b"expect: 100-continue\r\n", b"0\r\n\r\n", b"1\r\na\r\n", b";a=b", b"\r\n ", b"\n", b"\r"],
    *[b"content-type: text/event-stream\r\n", b"data: x\n\n", b": x\n\n", b"trailer: x\r\n", CUT],
]  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Inputs of `checks.check`."""
    for sent in [*(s for _, s in REFUSED.values()), *(s for s, _ in PASSED.values())]:
        if len(sent) < 1500:
            yield b"\x00" + sent + b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n"
    for number, sent in enumerate([*(case[0] for case in WHOLE.values()), *GARBAGE.values()]):
        if len(sent) < 1500:
            yield bytes([1 + 2 * (number & 7)]) + sent
    for sent in BROKEN.values():
        yield b"\x09" + SSE_HEAD + chunk(b"data: x\n\n") + CUT + sent


def dictionary() -> str:
    """In libFuzzer's form."""
    return "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in WORDS)
