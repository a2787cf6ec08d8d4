"""A drained engine hands over the warm prefixes of all workers' requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.serving import LONG, Serving, serving, worker_of
from tests.engines import client
from tests.engines.waiting import wait_until

from inferway.cluster.bus.messages import Drain, Message
from inferway.cluster.hand_overs import WorkersHandOver
from inferway.fleet.hand_over import HandOverState, Progress


def test_what_workers_have_warm_goes_to_the_other_engine(tmp_path: Path) -> None:
    with serving(tmp_path, engine_flags=["--kv-transfer", "nixl"]) as found:
        name = found.engines[0].url.removeprefix("http://")
        other = found.engines[1].url.removeprefix("http://")
        texts = warm(found, name)

        client.post(f"{found.url}/admin/engines/{name}/drain", b"")
        wait_until(
            lambda: state(found, name) == "done", "all is handed over", found.gateway.log_text
        )

        told = hand_over(found, name)
        assert told["failed"] == 0
        assert told["handed_over"] >= len(texts)
        for text in texts:
            answer = found.chat(text)
            assert answer.headers["x-inferway-engine"] == other
            assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
        client.post(f"{found.url}/admin/engines/{name}/resume", b"")
        wait_until(lambda: hand_over(found, name) is None, "it gets requests again")


def warm(found: Serving, engine: str) -> list[str]:
    """Prompts that the engine holds, of at least one request of each worker."""
    texts: dict[str, str] = {}

    def both() -> bool:
        text = f"Story {len(texts)}-{found.metric('inferway_http_answers_total')}: {LONG * 2}"
        answer = found.chat(text)
        if answer.headers["x-inferway-engine"] == engine:
            texts.setdefault(worker_of(answer), text)
        return len(texts) == 2

    wait_until(both, "the engine holds prompts of both workers")
    return list(texts.values())


def hand_over(found: Serving, engine: str) -> Any:
    engines = client.get(f"{found.url}/admin/engines").json["engines"]
    return next(each["hand_over"] for each in engines if each["name"] == engine)


def state(found: Serving, engine: str) -> str:
    told = hand_over(found, engine)
    return "" if told is None else str(told["state"])


class Workers:
    """Two of them, as the hub knows them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[Message] = []
        self.hand_over = WorkersHandOver(self.sent.append, 2, lambda: self.now)

    def tell(self, place: int, state: HandOverState, **counts: Any) -> None:
        self.hand_over.heard(place, {"e": Progress(state, **counts)})


def test_it_runs_until_all_have_told_that_it_does_not() -> None:
    workers = Workers()
    assert workers.hand_over.progress("e") is None

    workers.hand_over.drain("e", 10.0)
    workers.tell(1, HandOverState.DONE, handed_over=3, tokens=100)

    assert workers.sent == [Drain("e", 10.0)]
    running = workers.hand_over.progress("e")
    assert running is not None
    assert running.is_running
    workers.tell(2, HandOverState.OUT_OF_TIME, handed_over=1, left=2, tokens=50)
    assert workers.hand_over.progress("e") == Progress(
        HandOverState.OUT_OF_TIME, left=2, handed_over=4, tokens=150, ends_at=10.0
    )


@pytest.mark.parametrize("tells", [True, False])
def test_a_worker_that_ends_holds_up_nothing(tells: bool) -> None:
    workers = Workers()
    workers.hand_over.drain("e", 10.0)
    workers.tell(1, HandOverState.DONE)
    if tells:
        workers.tell(2, HandOverState.RUNNING)
    workers.hand_over.ended(2)

    workers.now = 10.0

    assert workers.hand_over.progress("e") == Progress(HandOverState.DONE, ends_at=10.0)


def test_what_was_told_of_an_earlier_time_is_forgotten() -> None:
    workers = Workers()
    workers.hand_over.drain("e", 10.0)
    workers.tell(1, HandOverState.DONE, tokens=5)
    workers.hand_over.resume("e")
    assert workers.sent[-1] == Drain("e", None)
    assert workers.hand_over.progress("e") is None

    workers.hand_over.drain("e", 20.0)

    again = workers.hand_over.progress("e")
    assert again is not None
    assert (again.is_running, again.tokens) == (True, 0)
