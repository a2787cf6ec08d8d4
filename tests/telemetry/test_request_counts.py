"""Requests by model: their times by a clock of the test's, and what clients cannot do to labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from inferway.extension import EndedAnswer
from inferway.metrics import Family
from inferway.openai_api.usage import Usage
from inferway.routing.record import Record
from inferway.telemetry.request_counts import MAX_MODELS, OTHER, RequestCounts

CHAT = b'data: {"id":"c","choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n'
ROLE, TOKEN = CHAT % b'{"role":"assistant","content":""}', CHAT % b'{"content":"Hello"}'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class _Page(Collector):
    def __init__(self, counts: RequestCounts) -> None:
        self.counts = counts

    def collect(self) -> Iterator[Family]:
        return self.counts.families()


def page(counts: RequestCounts) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Page(counts))
    return generate_latest(registry)


def end(counts: RequestCounts, record: Record, status: int, seconds: float = 0.0) -> None:
    """Have the answer of a request end."""
    who, path = ("127.0.0.1", "POST"), "/v1/chat/completions"
    answer = EndedAnswer(
        *(*who, path, b"", "r", None, status, record.outcome, 0.0, seconds, 0, record)
    )
    counts.on_answers([answer])


def streamed(
    pieces: list[tuple[float, bytes]], usage: Usage | None = None, outcome: str = "ok"
) -> RequestCounts:
    """Counts of one stream: (at which second of it, what came)."""
    clock = Clock()
    counts = RequestCounts(clock)
    record = Record(100.0, known_model="m", prompt_tokens=7, waited=0.5)
    passed = counts.follow(record)
    for at, events in pieces:
        clock.now = 100.0 + at
        passed(record, events)
    record.outcome, record.usage = outcome, usage
    end(counts, record, 200, clock.now - 100.0)
    counts.flush()
    return counts


PIECES = [
    *((0.125, ROLE), (1.0, TOKEN), (1.25, TOKEN), (1.75, TOKEN), (2.0, TOKEN)),
    *((2.5, USAGE), (3.0, DONE)),
]


def test_a_stream_s_times_are_those_of_its_tokens() -> None:
    model = streamed(PIECES, Usage(prompt=9, completion=5)).models["m"]

    assert model.first_token.total == 1.0
    assert (sum(model.inter_token.counts), model.inter_token.total) == (3, 1.0)
    assert model.per_token.total == 1.0 / 4
    assert (model.whole.total, model.queued.total) == (3.0, 0.5)
    assert (model.prompt_tokens.total, model.output_tokens.total) == (9, 5)


def test_without_usage_each_event_is_a_token() -> None:
    pieces = [(0.5, ROLE + TOKEN), (1.0, TOKEN), (2.0, TOKEN * 3), (2.0, DONE)]
    model = streamed(pieces).models["m"]

    assert model.prompt_tokens.total == 7
    assert model.output_tokens.total == 2 + 1 + 3
    assert sum(model.inter_token.counts) == 2


def test_pieces_too_short_to_be_events_count_for_nothing() -> None:
    model = streamed([(1.0, TOKEN), (2.0, b"\n\n"), (3.0, b":\n\n"), (4.0, TOKEN)]).models["m"]

    assert (sum(model.inter_token.counts), model.inter_token.total) == (1, 3.0)


def test_an_answer_that_was_cut_has_its_first_token_and_no_latency() -> None:
    model = streamed(PIECES[:3], outcome="upstream_error").models["m"]

    assert model.endings == {(200, "upstream_error"): 1}
    assert sum(model.first_token.counts) == 1
    assert sum(model.whole.counts) == sum(model.output_tokens.counts) == 0


def test_a_client_who_has_gone_before_a_status_has_499() -> None:
    counts = RequestCounts(Clock())

    end(counts, Record(0.0, known_model="m"), 0)

    assert counts.models["m"].endings == {(499, "client_gone"): 1}


def test_unknown_models_are_one_label_however_many_clients_make_up() -> None:
    counts = RequestCounts(Clock())
    end(counts, Record(0.0, model="0", outcome="refused"), 404)
    size = len(page(counts))

    for number in range(100_000):
        end(counts, Record(0.0, model=f"made up {number}", outcome="refused"), 404)

    assert set(counts.models) == {OTHER}
    assert len(page(counts)) < size + 10  # the number's digits


def test_models_that_come_and_go_are_not_without_bound() -> None:
    counts = RequestCounts(Clock())

    for number in range(MAX_MODELS * 2):
        end(counts, Record(0.0, known_model=f"adapter-{number}", outcome="ok"), 200)

    assert len(counts.models) == MAX_MODELS + 1
    assert counts.models[OTHER].endings[200, "ok"] == MAX_MODELS
