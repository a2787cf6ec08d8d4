"""The official client works, and cannot tell the gateway from an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import openai
import pytest
from tests.engines.engine import MODEL, RealEngine

QUESTION = "What is the capital of France? Answer with one sentence."
BEGINNING = "The capital of France is"


@pytest.fixture(scope="module")
def people(gateway: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def chatted(engines: Sequence[RealEngine]) -> str:
    """What an engine itself answers to the question."""
    with openai.OpenAI(base_url=f"{engines[0].url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=24,
            temperature=0,
        )
    return answer.choices[0].message.content or ""


@pytest.fixture(scope="module")
def completed(engines: Sequence[RealEngine]) -> str:
    """How an engine itself goes on with the beginning."""
    with openai.OpenAI(base_url=f"{engines[0].url}/v1", api_key="none") as client:
        answer = client.completions.create(
            model=MODEL, prompt=BEGINNING, max_tokens=4, temperature=0
        )
    return answer.choices[0].text


def test_lists_the_model(people: openai.OpenAI) -> None:
    assert [model.id for model in people.models.list()] == [MODEL]


def test_chats(people: openai.OpenAI, chatted: str) -> None:
    answer = people.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=24,
        temperature=0,
    )

    assert answer.choices[0].message.content == chatted != ""
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 1


def test_streams_a_chat(people: openai.OpenAI, chatted: str) -> None:
    stream = people.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]

    assert "".join(texts) == chatted
    assert len([text for text in texts if text]) > 1
    assert chunks[-1].usage is not None


def test_completes(people: openai.OpenAI, completed: str) -> None:
    answer = people.completions.create(model=MODEL, prompt=BEGINNING, max_tokens=4, temperature=0)

    assert answer.choices[0].text == completed != ""


def test_streams_a_completion(people: openai.OpenAI, completed: str) -> None:
    stream = people.completions.create(
        model=MODEL, prompt=BEGINNING, max_tokens=4, temperature=0, stream=True
    )

    assert "".join(chunk.choices[0].text for chunk in stream) == completed


def test_gets_its_own_error_for_an_unknown_model(people: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        people.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])

    assert caught.value.code == "model_not_found"


def test_can_stop_reading_a_stream(people: openai.OpenAI) -> None:
    with people.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count to one thousand."}],
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(iter(stream))

    assert people.models.list().data[0].id == MODEL
