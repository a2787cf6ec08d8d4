"""An engine that comes back with blocks of another size and another way to hash them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import Request, assistant, chat, completion, user
from tests.engines.conftest import CACHE, Say, serve
from tests.engines.engine import RealEngine, wait_until_ready
from tests.engines.gateway import cached, scores, send
from tests.engines.waiting import wait_until

OTHER_BLOCK_SIZE = 32
OTHERWISE = ("--block-size", str(OTHER_BLOCK_SIZE), "--prefix-caching-hash-algo", "sha256_cbor")


@dataclass(frozen=True)
class Restarted:
    engine: RealEngine
    url: str  # of the gateway


@pytest.fixture(scope="module")
def restarted(
    vllm: Path, model_dir: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[Restarted]:
    engine = RealEngine(vllm, model_dir, new_log("restarted"), CACHE)
    engine.start()
    try:
        wait_until_ready([engine], say)
        with serve([engine], new_log("gateway-restarted")) as gateway:
            send(gateway.url, prompt("before"))
            engine.kill()
            engine.start(*OTHERWISE)
            wait_until_ready([engine], say)
            wait_until(lambda: knows_again(gateway.url), "the gateway knows the engine again")
            yield Restarted(engine, gateway.url)
    finally:
        engine.kill()


def knows_again(url: str) -> bool:
    (engine,) = client.get(f"{url}/ready").json["engines"]
    return bool(engine["healthy"] and engine["block_size"] == OTHER_BLOCK_SIZE)


def ids(name: str) -> list[int]:
    draw = Random(f"restarted {name}")
    return [draw.randrange(1000, 40_000) for _ in range(10 * OTHER_BLOCK_SIZE + 7)]


def prompt(name: str) -> Request:
    return completion(name, ids(name))


def talk(name: str) -> list[dict[str, Any]]:
    return [user(f"What is said of the {name}? " * 40), assistant(f"Of the {name}, little")]


VARIANTS: dict[str, tuple[Request, dict[str, Any]]] = {
    "plain": (prompt("plain"), {}),
    "what was asked before": (prompt("before"), {}),
    "several answers": (prompt("several answers"), {"n": 3}),
    "salted": (prompt("salted"), {"cache_salt": "of-a-tenant"}),
    "cut left": (prompt("cut left"), {"truncate_prompt_tokens": 200, "truncation_side": "left"}),
    "cut right": (prompt("cut"), {"truncate_prompt_tokens": 200, "truncation_side": "right"}),
    "text": (
        completion("text", "Of wells and walls, " * 40),
        {"add_special_tokens": False},
    ),
    "continued": (
        chat("continued", talk("wells")),
        {"continue_final_message": True, "add_generation_prompt": False},
    ),
    "special tokens": (chat("special", talk("walls")), {"add_special_tokens": True}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_believed_is_what_it_reuses(name: str, restarted: Restarted) -> None:
    request, more = VARIANTS[name]
    first = send(restarted.url, request, **more)
    same = Request(request.name, request.path, {**request.body, **more})
    held = cached(first).prompt_tokens // OTHER_BLOCK_SIZE
    wait_until(
        lambda: scores(restarted.url, same) == {restarted.engine.name: held},
        f"{held} blocks of {name!r}",
        lambda: scores(restarted.url, same),
    )

    again = send(restarted.url, request, **more)

    assert again.headers["x-inferway-matched-blocks"] == str(held)
    reusable = (cached(again).prompt_tokens - 1) // OTHER_BLOCK_SIZE
    assert cached(again).cached_tokens == reusable * OTHER_BLOCK_SIZE
