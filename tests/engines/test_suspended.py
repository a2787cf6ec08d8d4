"""A real engine whose operator pauses it or puts it to sleep, and a gateway that was not told.

vLLM on the CPU frees no memory when it sleeps ("sleep mode is not supported on CPU"); what its
scheduler, its metrics and its events do is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engines import client
from tests.engines.chats import completion
from tests.engines.engine import BLOCK_SIZE, RealEngine
from tests.engines.gateway import cached, engine_of, scores, send
from tests.engines.waiting import wait_until

WAITING = b'\ninferway_flow_waiting{priority="0"} 1.0\n'


def tell(engine: RealEngine, path: str) -> None:
    assert client.post(engine.url + path, b"").status == 200


def state(gateway: str, engine: RealEngine) -> str:
    told = client.get(f"{gateway}/admin/engines").json["engines"]
    return next(str(each["state"]) for each in told if each["name"] == engine.name)


def wait_until_state(gateway: str, engine: RealEngine, wanted: str) -> None:
    wait_until(lambda: state(gateway, engine) == wanted, f"the gateway sees that it is {wanted}")


@pytest.fixture
def awake(gateway: str, engines: Sequence[RealEngine]) -> Iterator[None]:
    """Whatever becomes of the test, the engines go on."""
    yield
    for engine in engines:
        tell(engine, "/wake_up")
        wait_until_state(gateway, engine, "ready")


@pytest.mark.usefixtures("awake")
@pytest.mark.parametrize(
    ("halt", "name", "go_on"),
    [
        ("/pause", "paused", "/resume"),
        ("/pause?mode=keep&clear_cache=false", "paused", "/resume"),
        ("/sleep?level=1", "asleep", "/wake_up"),
        ("/sleep?level=0", "asleep", "/resume"),  # its metrics go on saying that it sleeps
    ],
)
def test_requests_go_to_the_other_engine_or_wait_until_one_goes_on(
    gateway: str, engines: Sequence[RealEngine], halt: str, name: str, go_on: str
) -> None:
    first, second = engines
    request = completion("while one is suspended", [*range(40, 90)])
    tell(first, halt)
    wait_until_state(gateway, first, name)

    assert {engine_of(send(gateway, request)) for _ in range(4)} == {second.name}

    tell(second, halt)
    wait_until_state(gateway, second, name)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(send, gateway, request)
        page = f"{gateway}/metrics"
        wait_until(lambda: WAITING in client.get(page).raw, "the request is held")
        tell(first, go_on)
        assert engine_of(held.result()) == first.name
    wait_until_state(gateway, first, "ready")


@pytest.mark.usefixtures("awake")
def test_what_is_believed_of_a_cache_goes_when_its_engine_sleeps(
    gateway: str, engines: Sequence[RealEngine]
) -> None:
    engine = engines[0]
    request = completion("before the sleep", [*range(100, 100 + 5 * BLOCK_SIZE + 1)])
    send(engine.url, request)
    wait_until(lambda: scores(gateway, request)[engine.name] == 5, "the gateway knows its blocks")

    tell(engine, "/sleep?level=1")  # AllBlocksCleared comes with the next step alone

    wait_until(lambda: scores(gateway, request)[engine.name] == 0, "they are believed no more")
    tell(engine, "/wake_up")
    assert cached(send(engine.url, request)).cached_tokens == 0
    wait_until(lambda: scores(gateway, request)[engine.name] == 5, "the gateway knows them again")


@pytest.mark.usefixtures("awake")
def test_a_pause_that_keeps_the_cache_changes_nothing_of_what_is_believed(
    gateway: str, engines: Sequence[RealEngine]
) -> None:
    engine = engines[0]
    request = completion("before the pause", [*range(300, 300 + 5 * BLOCK_SIZE + 1)])
    send(engine.url, request)
    wait_until(lambda: scores(gateway, request)[engine.name] == 5, "the gateway knows its blocks")
    tell(engine, "/pause?clear_cache=false")
    wait_until_state(gateway, engine, "paused")
    tell(engine, "/resume")
    wait_until_state(gateway, engine, "ready")

    assert scores(gateway, request)[engine.name] == 5
    assert cached(send(engine.url, request)).blocks == 5
