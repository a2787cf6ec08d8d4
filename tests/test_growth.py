"""Prefixes matched through the whole request path, with a real template and tokenizer:
conversations that grow match exactly their own past, chats and completions alike, however long
(seed 001)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.routing.test_director import CHAT, COMPLETION, TwoEngines, director, open_chat

from inferway.kv.index.protocol import Store
from inferway.model import TokenIds
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.routing.director import Director
from inferway.routing.journey import Journey
from inferway_sim.prepare import prepare_smollm2

BLOCK = 16
SYSTEM = {"role": "system", "content": "You are brief, and you never guess. " * 8}
WORDS = [*"abcdefghijklmnop", "index", "prompt", "engine", "answers", "all", "at", "once."]


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    shared = Renderer(num_threads=1)
    yield shared
    shared.close()


@dataclass
class Remembering:
    """A director, and by itself what every engine was given; it counts blocks in token ids."""

    to: Director
    given: dict[int, list[TokenIds]] = field(default_factory=lambda: {0: [], 1: []})

    @classmethod
    def of(cls, renderer: Renderer) -> Remembering:
        wanted = GetOrCreateTokenizerKeyRequest(str(prepare_smollm2()))
        prompts = ModelPrompts(renderer, renderer.get_or_create_tokenizer_key(wanted))
        return cls(director(TwoEngines(prompts=prompts, block_sizes=(BLOCK,))))

    async def send(self, path: str, **fields: Any) -> tuple[list[int], list[int], TokenIds]:
        """Decides, and lets the engine hold the prompt: the blocks that were matched on each
        engine, those that must have been, and the prompt."""
        body = msgspec.json.encode({"model": "m", **fields})
        journey = open_chat(self.to, body, path)
        decision = await journey.decide()
        (prompt,) = routed_prompts(journey)
        journey.close("ok")
        assert journey.routed is not None
        matched = [int(blocks) for blocks in journey.routed.candidates.matched_blocks]
        past = [self._longest(holder, prompt.token_ids) for holder in (0, 1)]
        holder = decision.targets[0].endpoint.holder
        assert past[holder] == max(past)  # it stays where its past is
        self.given[holder].append(prompt.token_ids)
        self.to.matcher.index.apply([Store(holder, prompt.block_keys)])
        return matched, past, prompt.token_ids

    def _longest(self, holder: int, ids: TokenIds) -> int:
        """In full blocks, of all that the engine was given."""
        return max((common(ids, other) // BLOCK for other in self.given[holder]), default=0)


def routed_prompts(journey: Journey) -> Any:
    assert journey.routed is not None
    return journey.routed.request.prompts[BLOCK]


def common(left: TokenIds, right: TokenIds) -> int:
    """Tokens in which the two begin alike."""
    size = min(len(left), len(right))
    differs = np.flatnonzero(left[:size] != right[:size])
    return int(differs[0]) if len(differs) else size


def text(number: int, size: int) -> str:
    """Of so many words; another one for each number."""
    words = [WORDS[(number + i * (number % 5 + 1)) % len(WORDS)] for i in range(size)]
    return f"{number}: " + " ".join(words)


turns = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=2, max_size=12)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=turns)
async def test_conversations_side_by_side_match_exactly_their_own_past(
    renderer: Renderer, path: str, drawn: list[tuple[int, int]]
) -> None:
    world = Remembering.of(renderer)
    chats: dict[int, list[dict[str, str]]] = {}
    for turn, (which, size) in enumerate(drawn):
        chat = chats.setdefault(which, [SYSTEM])
        chat.append({"role": "user", "content": text(100 * which + turn, size)})
        if path == CHAT:
            matched, past, _ = await world.send(path, messages=chat)
        else:
            prompt = "\n".join(message["content"] for message in chat)
            matched, past, _ = await world.send(path, prompt=prompt)
        chat.append({"role": "assistant", "content": text(turn, 7)})

        assert matched == past


async def test_a_completion_of_a_chats_tokens_matches_the_chat(renderer: Renderer) -> None:
    world = Remembering.of(renderer)
    chat = [SYSTEM, {"role": "user", "content": text(1, 80)}]
    _, _, ids = await world.send(CHAT, messages=chat)

    matched, past, _ = await world.send(COMPLETION, prompt=ids.tolist())

    assert matched == past
    assert max(matched) == len(ids) // BLOCK


async def test_what_is_changed_in_the_past_matches_up_to_there(renderer: Renderer) -> None:
    world = Remembering.of(renderer)
    chat = [SYSTEM, *({"role": "user", "content": text(i, 40)} for i in range(9))]
    _, _, before = await world.send(CHAT, messages=chat)
    chat[5] = {"role": "user", "content": text(77, 40)}

    matched, past, after = await world.send(CHAT, messages=chat)

    assert matched == past
    assert 0 < max(matched) < len(before) // BLOCK - 5
    assert max(matched) == common(before, after) // BLOCK


async def test_a_history_of_1000_messages_is_matched_to_its_last_block(renderer: Renderer) -> None:
    world = Remembering.of(renderer)
    chat = [
        {"role": "assistant" if i % 2 else "user", "content": text(i, 20)} for i in range(1_000)
    ]
    _, _, before = await world.send(CHAT, messages=chat[:-1])

    for _ in range(5):
        matched, past, ids = await world.send(CHAT, messages=chat)
        chat += [{"role": "user", "content": text(len(chat), 20)}]

        assert matched == past
    assert len(before) > 20_000
    assert max(matched) > len(ids) // BLOCK - 5


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_a_prompt_of_a_million_characters_is_matched(renderer: Renderer, path: str) -> None:
    world = Remembering.of(renderer)
    long = " ".join(text(i, 20) for i in range(16_000))
    assert len(long) > 10**6

    for more in ("", " and this", " and that, too"):
        prompt = long + more
        if path == CHAT:
            fields: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        else:
            fields = {"prompt": prompt}
        matched, past, ids = await world.send(path, **fields)

        assert matched == past
    assert len(ids) > 200_000
    assert max(matched) >= len(ids) // BLOCK - 1
