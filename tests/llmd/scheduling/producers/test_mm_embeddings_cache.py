"""Requests with an image go where it was sent before (llm-d-router ebab687, mmcacheaffinity)."""

from __future__ import annotations

from tests.scheduling.tables import candidates, request, target

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest
from inferway_llmd.scheduling.producers.mm_embeddings_cache import (
    MmEmbeddingsCache,
    MmEmbeddingsCacheScorer,
    share_column,
)

COLUMN = share_column("p")


def asking(*images: str) -> LLMRequest:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    content = [{"type": "text", "text": "what is it?"}, *parts]
    body = ChatRequest(model="m", messages=[{"role": "user", "content": content}])
    return request(body=body)


def sent(producer: MmEmbeddingsCache, ask: LLMRequest, table: Candidates, row: int) -> None:
    producer.produce(ask, table)
    follower = producer.follow(ask, table, SchedulingResult((target(table, row),)))
    assert follower is not None
    follower.on_attempt(target(table, row), 0.0)


def scores(producer: MmEmbeddingsCache, ask: LLMRequest) -> list[float]:
    table = candidates(3)
    producer.produce(ask, table)
    rated: list[float] = MmEmbeddingsCacheScorer(COLUMN).score(ask, table).tolist()
    return rated


def test_the_share_of_its_media_that_went_there_before() -> None:
    producer, table = MmEmbeddingsCache(COLUMN, 100), candidates(3)
    sent(producer, asking("a", "b", "c"), table, 0)
    sent(producer, asking("d"), table, 1)

    assert scores(producer, asking("a", "b", "c", "d")) == [0.75, 0.25, 0.0]
    assert scores(producer, asking("a", "a")) == [1.0, 0.0, 0.0]
    assert scores(producer, asking("e")) == [0.0, 0.0, 0.0]


def test_a_request_without_media_has_nothing_to_do_with_it() -> None:
    producer, table = MmEmbeddingsCache(COLUMN, 100), candidates(3)
    ask = asking()
    producer.produce(ask, table)

    assert producer.follow(ask, table, SchedulingResult((target(table, 0),))) is None
    assert scores(producer, ask) == [0.0, 0.0, 0.0]


def test_the_items_unused_for_the_longest_time_are_forgotten() -> None:
    producer, table = MmEmbeddingsCache(COLUMN, 2), candidates(3)
    for image in ("a", "b", "a", "c"):
        sent(producer, asking(image), table, 2)

    assert [scores(producer, asking(image))[2] for image in "abc"] == [1.0, 0.0, 1.0]
