"""The gateway in front of real engines, with our structured output and without: what it refuses, no
engine sees, and what it says of an answer is said once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from structured.tests.test_vllm_shapes import refusal
from tests.engines import client
from tests.engines.chats import CHAT
from tests.engines.conftest import FULL, ROOT, Say, serve
from tests.engines.engine import RealEngine, wait_until_ready
from tests.engines.gateway import requests_seen, wait_until_probed
from tests.engines.hostile_shapes import BAD
from tests.engines.record_shapes import SHAPES
from tests.engines.shaped import (
    KINDS,
    PERSON,
    Shaped,
    body_of,
    chat,
    said,
    schema_form,
    streamed,
    text_of,
)
from tests.engines.waiting import wait_until
from tests.stored import rows

from inferway_structured.backends.answer_state import TOO_LONG

SETTINGS = {"inferway": {"structured": True}}
SET = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}


@pytest.fixture(scope="module")
def engine(
    vllm: Path, whole_model: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[RealEngine]:
    """With our plugin, which leaves streams as they are."""
    flags = ("--additional-config", json.dumps(SETTINGS))
    made = RealEngine(
        vllm,
        whole_model,
        new_log("engine-ours"),
        flags,
        {"PYTHONPATH": str(ROOT / "structured/src")},
        alone=True,
    )
    try:
        made.start()
        wait_until_ready([made], say)
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def url(engine: RealEngine, new_log: Callable[[str], Path]) -> Iterator[str]:
    flags = ("--report-validity", "--structured-trial-compile")
    with serve([engine], new_log("gateway-ours"), *flags) as program:
        yield program.url


def metric(url: str, name: str) -> float:
    page = client.get(f"{url}/metrics").raw.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name))


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_kept_is_refused_and_the_engine_does_not_see_it(
    url: str, engine: RealEngine, name: str
) -> None:
    fields, place = BAD[name]
    before = requests_seen([engine])

    answer = client.post(url + CHAT, chat("hello", **fields))

    assert answer.status == 400, answer.raw[:500]
    assert answer.json["error"]["param"].startswith(place), answer.raw[:500]
    assert requests_seen([engine]) == before


@pytest.mark.parametrize("shaped", KINDS, ids=lambda shaped: shaped.name)
def test_an_answer_says_once_that_it_has_its_shape(url: str, shaped: Shaped) -> None:
    answer = client.post(url + CHAT, body_of(shaped, "Who are you?"))

    assert shaped.holds(said(answer)), answer.raw
    assert answer.headers.get_all("x-inferway-valid") == ["true"]
    assert answer.headers.get_all("x-inferway-unenforced") is None


def test_a_stream_says_so_though_its_engine_does_not(url: str) -> None:
    lines = list(streamed(url, body_of(KINDS[0], "Who are you?")))

    assert KINDS[0].holds(text_of(lines)), lines
    assert lines[-2:] == [": x-inferway-valid true", "data: [DONE]"]


def test_what_is_not_enforced_is_named_once(url: str) -> None:
    answer = client.post(url + CHAT, chat("Numbers?", response_format=schema_form(SET)))

    said(answer)
    assert answer.headers.get_all("x-inferway-unenforced") == ["uniqueItems"]


def test_the_engine_was_told_of_shapes_in_advance(url: str, engine: RealEngine) -> None:
    body = body_of(KINDS[0], "Who are you?")
    body["response_format"] = schema_form({**PERSON, "x-title": "told"})

    said(client.post(url + CHAT, body))

    wait_until(lambda: metric(url, 'inferway_gate_warmed_total{outcome="sent"}') > 0, "told")
    assert metric(url, 'inferway_gate_warmed_total{outcome="failed"}') == 0
    assert client.get(f"{engine.url}/v1/structured/stats").json["plugin"] == "inferway"


def test_gateway_and_engine_explain_a_shape_by_the_same_backend(
    url: str, engine: RealEngine
) -> None:
    body = {"response_format": schema_form(SET)}

    ours, engines = (
        client.post(f"{where}/v1/structured/explain", body).json["specs"][0]
        for where in (url, engine.url)
    )

    assert (ours["backend"], ours["key"]) == (engines["backend"], engines["key"])


def test_of_a_stock_engine_the_gateway_says_what_it_can_see(
    gateway: str, engines: Sequence[RealEngine]
) -> None:
    wait_until_probed(gateway)
    before = requests_seen(engines)
    bad = client.post(gateway + CHAT, chat("hi", response_format=schema_form({"type": "strin"})))
    assert (bad.status, requests_seen(engines)) == (400, before)

    answer = client.post(gateway + CHAT, body_of(KINDS[0], "Who are you?"))

    assert answer.headers["x-inferway-unenforced"] == "unknown"
    assert answer.headers["x-inferway-valid"] == ("true" if holds(said(answer)) else "false")


def holds(text: str) -> bool:
    """Stock vLLM may write blanks until `max_tokens`: then it is no JSON at all."""
    try:
        return KINDS[0].holds(text)
    except ValueError:
        return False


def test_what_vllm_serves_is_answered(engine: RealEngine) -> None:
    """A sample of the 901 shapes that both serve by their recorded verdicts, a larger one with
    `make fleet-full`. Grammars whose steps take more than a step may are ended with that reason; of
    what is drawn, few are."""
    served = [row for row in rows(SHAPES) if row["backend"] is not None and refusal(row) is None]
    refused, num_ended = [], 0
    for row in random.Random(22).sample(served, 150 if FULL else 30):
        fields = {"structured_outputs": {row["kind"]: row["value"]}, "max_tokens": 4}
        body = json.dumps(chat("Say something.", **fields)).encode()
        answer = client.post(f"{engine.url}/v1/chat/completions", body)
        if answer.status == 400 and row["kind"] == "grammar" and TOO_LONG.encode() in answer.raw:
            num_ended += 1
        elif answer.status != 200:
            refused.append((row["kind"], row["value"], answer.raw[:300]))

    assert (refused, num_ended <= 3) == ([], True)


def test_what_vllm_up_to_0_11_was_asked_is_enforced(engine: RealEngine) -> None:
    body = json.dumps(
        chat("Say something.", guided_choice=["left", "right"], max_tokens=4)
    ).encode()

    answer = client.post(f"{engine.url}/v1/chat/completions", body)

    assert said(answer) in ("left", "right")
    assert answer.headers["x-inferway-valid"] == "true"
