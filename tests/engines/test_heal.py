"""What engines report that know the report mode: to a gateway that has missed something and asks,
and to one whose clients ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from tests.engines import client
from tests.engines.chats import completion
from tests.engines.conftest import ServingProgram, serve, without_replay
from tests.engines.engine import BLOCK_SIZE, RealEngine
from tests.engines.gateway import cached, scores, send, wait_until_believed
from tests.engines.waiting import wait_until

NUM_BLOCKS = 6


def numbers(first: int, num: int) -> list[int]:
    """A prompt of token ids that no other prompt begins with."""
    return [500 + (first * 797 + i * 11) % 40_000 for i in range(num)]


def test_a_report_tells_what_was_cached_before_the_gateway_came(
    engines: Sequence[RealEngine], new_log: Callable[[str], Path]
) -> None:
    engine = engines[1]
    earlier = completion("earlier", numbers(1, NUM_BLOCKS * BLOCK_SIZE + 1))
    send(engine.url, earlier)
    words = count(2)
    flags = ["serve", "--engine", without_replay(engine), "--heal", "1.0"]
    with ServingProgram(flags, new_log("healing-gateway"), "kv-aware") as late:

        def is_partial() -> bool:
            send(late.url, completion("something else", numbers(next(words), BLOCK_SIZE + 1)))
            [report] = client.get(f"{late.url}/admin/engines").json["engines"]
            return bool(report["endpoints"][0]["state"] == "partial")

        wait_until(is_partial, "the gateway has heard of something")
        assert scores(late.url, earlier) == {engine.name: 0}

        healing = send(late.url, earlier)

        assert healing.headers["x-inferway-edited"] == "vllm_xargs"
        assert cached(healing).cached_tokens == NUM_BLOCKS * BLOCK_SIZE
        wait_until_believed(late.url, earlier, engine.name, NUM_BLOCKS)
        again = send(late.url, earlier)
        assert again.headers["x-inferway-matched-blocks"] == str(NUM_BLOCKS)
        assert "x-inferway-edited" not in again.headers


def test_what_a_client_has_reported_is_no_second_copy(
    engines: Sequence[RealEngine], new_log: Callable[[str], Path]
) -> None:
    engine = engines[1]
    xargs = {"kv_cache_report_mode": "full"}
    asked = completion("asked", numbers(2000, NUM_BLOCKS * BLOCK_SIZE + 1), vllm_xargs=xargs)
    with serve([engine], new_log("gateway-of-asking-clients")) as gateway:
        for _ in range(3):  # the first finds nothing in the cache that could be reported
            send(gateway.url, asked)
        wait_until_believed(gateway.url, asked, engine.name, NUM_BLOCKS)
        for i in range(10):
            send(gateway.url, completion(f"other {i}", numbers(3000 + i, 20 * BLOCK_SIZE)))

        wait_until_believed(gateway.url, asked, engine.name, 0)
        assert cached(send(gateway.url, asked)).cached_tokens == 0
