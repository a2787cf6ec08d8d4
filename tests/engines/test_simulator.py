"""The simulated engine publishes what the real one publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.engines import client
from tests.engines.chats import Request, chat, completion, completions, conversations, up_to_user
from tests.engines.engine import BLOCK_SIZE, MAX_MODEL_LEN, MODEL, RealEngine
from tests.engines.gateway import send
from tests.engines.kv_events import EventListener, Frames, events_in
from tests.engines.program import Program

NUM_BLOCKS = 160  # as conftest.CACHE: both have to drive blocks out

# Fills a block that no other prompt has; its event is the last one.
LAST = completion("the last", list(range(12_000, 12_000 + BLOCK_SIZE)))


def prompts() -> list[Request]:
    """50 recorded prompts, some of which begin alike, are asked twice, or carry a salt. Each
    is answered with one token, which never fills a block: what a model says does not matter."""
    made: list[Request] = []
    sources = {"oasst1": 8, "MT-Bench-101": 5, "KdConv": 5}
    for each in [each for name, n in sources.items() for each in conversations(name)[:n]]:
        messages = up_to_user(each["messages"])
        made.append(chat(f"{each['id']}, begun", messages[:1]))
        made.append(chat(f"{each['id']}", messages))
    made += [chat(f"{r.name} again", r.body["messages"]) for r in made[:3]]
    made += [chat("salted", made[0].body["messages"], cache_salt="tenant-a")]
    return [*made, *completions()]


@pytest.fixture(scope="module")
def simulated(model_dir: Path, new_log: Callable[[str], Path]) -> Iterator[str]:
    flags = {
        "--model": model_dir,
        "--served-model-name": MODEL,
        "--block-size": BLOCK_SIZE,
        "--kv-cache-size": NUM_BLOCKS,
        "--max-model-len": MAX_MODEL_LEN,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    with Program(["simulate", *words], new_log("simulator")) as program:
        yield program.url


@pytest.fixture(scope="module")
def streams(
    engines: Sequence[RealEngine], simulated: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the real and the simulated engine published for the same prompts."""
    real = engines[0].url
    assert client.post(f"{real}/reset_prefix_cache", {}).json == {"success": True}
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(published, [real, simulated])
    return first, second


def published(url: str) -> list[dict[str, Any]]:
    """The events of an engine with an empty cache, in order, while it answers the prompts."""
    send(url, completion("lets go of old news", "a"))
    source = client.get(f"{url}/kv_event_sources").json["0"]
    ports = [urlsplit(source[key]).port for key in ("endpoint", "replay_endpoint")]
    with EventListener(*ports) as listener:
        for request in [*prompts(), LAST]:
            send(url, request)
        return events_in(listener.messages(_has_the_last))


def _has_the_last(messages: list[Frames]) -> bool:
    events = events_in(messages[-1:])
    return any(event.get("token_ids") == LAST.body["prompt"] for event in events)


def test_there_are_fifty_prompts() -> None:
    assert len(prompts()) == 50


def test_both_store_and_remove_blocks(
    streams: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    real, _ = streams

    assert {event["type"] for event in real} == {"BlockStored", "BlockRemoved"}


def test_the_events_are_the_same_in_every_field_and_in_order(
    streams: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    real, simulated = streams

    assert simulated == real
