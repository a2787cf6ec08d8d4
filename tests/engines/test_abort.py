"""A client that goes away: its request ends at the real engine, which frees its KV blocks."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engines import client
from tests.engines.engine import MODEL, RealEngine
from tests.engines.waiting import wait_until

MAX_TOKENS = 1000
PATH = "/v1/chat/completions"


def chat(*, stream: bool) -> dict[str, object]:
    """An answer that ends in seconds, unless somebody ends it before."""
    said = [{"role": "user", "content": "Count to one thousand."}]
    return {
        "model": MODEL,
        "messages": said,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "stream": stream,
    }


def total(engines: Sequence[RealEngine], name: str) -> float:
    """A metric of both engines."""
    pages = [client.get(f"{engine.url}/metrics").raw.decode() for engine in engines]
    return sum(
        sample.value
        for page in pages
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    )


def while_streaming(gateway: str, is_running: Callable[[], bool]) -> None:
    """Leaves after the first event."""
    with client.open_stream(gateway + PATH, chat(stream=True)) as stream:
        assert stream.readline().startswith(b"data: ")
        wait_until(is_running, "the engine says that it works at it")


def while_it_waits(gateway: str, is_running: Callable[[], bool]) -> None:
    """Leaves before the answer has begun."""
    body = json.dumps(chat(stream=False)).encode()
    where = urlsplit(gateway)
    assert where.port is not None
    with socket.create_connection((where.hostname, where.port)) as connection:
        head = b"POST %b HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\n"
        length = b"content-length: %d\r\n\r\n" % len(body)
        connection.sendall(head % PATH.encode() + length + body)
        wait_until(is_running, "the engine says that it works at it")


@pytest.mark.parametrize("leave", [while_streaming, while_it_waits])
def test_an_engine_stops_and_frees_the_blocks_of_who_leaves(
    gateway: str,
    engines: Sequence[RealEngine],
    leave: Callable[[str, Callable[[], bool]], None],
) -> None:
    def is_running() -> bool:
        return total(engines, "vllm:num_requests_running") > 0

    def is_free() -> bool:
        names = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc")
        return not any(total(engines, name) for name in names)

    wait_until(is_free, "nothing runs")
    before = total(engines, "vllm:generation_tokens_total")
    leave(gateway, is_running)
    wait_until(is_free, "its blocks are free")

    assert total(engines, "vllm:generation_tokens_total") - before < MAX_TOKENS
