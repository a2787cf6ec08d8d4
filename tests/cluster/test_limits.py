"""Limits of requests under way hold for all workers together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.serving import CHAT, MODEL, Serving, serving
from tests.engines import client
from tests.engines.waiting import wait_until

LONG_ANSWER = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me everything."}],
    "max_tokens": 4000,
    "ignore_eos": True,
    "stream": True,
}


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Serving]:
    settings = tmp_path / "gateway.yaml"
    settings.write_text("flow: {in_flight: 1, queue: 1, queue_seconds: 0.2}\n")
    # the long answer takes 40 s, which none of the tests waits for
    slow = ["--inter-token-latency", "10ms"]
    with serving(tmp_path, "--config", str(settings), engines=1, engine_flags=slow) as found:
        yield found


def test_a_place_that_one_worker_has_taken_the_others_lack(limited: Serving) -> None:
    limited.all_answer()
    stream = client.open_stream(f"{limited.url}{CHAT}", LONG_ANSWER)
    try:
        assert stream.readline().startswith(b"data:")
        taken = str(stream.headers["x-request-id"]).partition("-")[0]
        seen: set[str] = set()

        def refused_by_all() -> bool:
            answer = limited.chat("And I?")
            assert answer.status == 429, answer.raw
            assert answer.json["error"]["code"] == "wait_too_long"
            seen.add(str(answer.headers["x-request-id"]).partition("-")[0])
            return len(seen | {taken}) == 2

        wait_until(refused_by_all, "all workers refuse")
    finally:
        stream.close()

    wait_until(lambda: limited.chat("And now?").status == 200, "the place is free again")
