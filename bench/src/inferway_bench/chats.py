"""Real conversations from a directory, and what the benchmarks make of them: real text in a real
order, joined and cut to a length. `data/README.md` says where the installed text comes from."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferway.prompts.render_requests import (
    GetOrCreateTokenizerKeyRequest,
    RenderChatRequest,
    RenderRequest,
)
from inferway.prompts.renderer import Renderer
from inferway_bench.packed import unpacked
from inferway_bench.processes import BenchError

Message = dict[str, str]

_ENDINGS = (".jsonl", ".gz", ".xz")

# Tokens of a text, without what a template puts around it.
CountTokens = Callable[[str], int]


def default_data_dir() -> Path:
    """The data that is installed with the benchmarks."""
    return Path(__file__).with_name("data")


def load_conversations(directory: Path) -> list[list[Message]]:
    """All conversations of the directory's `*.jsonl`, packed or not, as their user and assistant
    turns; what tools said is left out. Raises BenchError when there are none."""
    conversations = []
    for path in sorted(p for p in directory.glob("*.jsonl*") if p.suffix in _ENDINGS):
        for line in unpacked(path).splitlines():
            kept = [
                {"role": message["role"], "content": message["content"]}
                for message in msgspec.json.decode(line)["messages"]
                if message["role"] in ("user", "assistant") and message["content"]
            ]
            if kept:
                conversations.append(kept)
    if not conversations:
        raise BenchError(
            f"{directory}: no conversations; fix: --data DIR, where DIR/chat holds *.jsonl "
            '(.gz, .xz) files with one {"messages": [{"role": …, "content": …}, …]} a line'
        )
    return conversations


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long a model's prompts are: a text's tokens, and what the template adds to a turn."""

    count: CountTokens
    around_turn: int


def sizes(model: str) -> Sizes:
    """Of a model's directory or hub id, with a tokenizer of its own: nobody's caches learn from
    what is counted."""
    renderer = Renderer(num_threads=1)
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(model))

    def in_chat(*texts: str) -> int:
        turns = [{"role": "user", "content": text} for text in texts]
        return len(renderer.render_chat(RenderChatRequest(key, turns)).input_ids)

    def count(text: str) -> int:
        return len(renderer.render(RenderRequest(key, text, add_special_tokens=False)).input_ids)

    try:
        return Sizes(count, in_chat("Hi", "Hi") - in_chat("Hi") - count("Hi"))
    finally:
        renderer.close()  # its threads; counting needs none


class Turns(Iterator[Message]):
    """An endless stream of turns: conversations in an order drawn once, one behind the other.
    `num_rounds` counts how often all of them have been used up: above 0, text repeats."""

    def __init__(self, conversations: Sequence[list[Message]], seed: int) -> None:
        self._conversations = list(conversations)
        random.Random(seed).shuffle(self._conversations)
        self.num_rounds = 0
        self._stream = self._turns()

    def __next__(self) -> Message:
        return next(self._stream)

    def _turns(self) -> Iterator[Message]:
        while True:
            for conversation in self._conversations:
                yield from conversation
            self.num_rounds += 1


def chat_of(
    turns: Iterator[Message], num_tokens: int, count: CountTokens, num_around: int = 0
) -> list[Message]:
    """A chat of about `num_tokens`, `num_around` of them a template's own for each turn; the last
    turn is cut and is the user's."""
    chat: list[Message] = []
    left = num_tokens
    while True:
        turn = next(turns)
        left -= num_around
        length = count(turn["content"])
        if length < left - num_around:
            chat.append(turn)
            left -= length
            continue
        chat.append({"role": "user", "content": cut_to(turn["content"], left, count)})
        return chat


def cut_to(text: str, num_tokens: int, count: CountTokens) -> str:
    """The longest beginning of `text` with at most `num_tokens`, at least one character."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[:middle]) <= num_tokens:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def reshuffled(chat: Sequence[Message], seed: int) -> list[Message]:
    """The same roles and the same sentences in another order, dealt anew to the turns with cuts
    before any word: no turn is the same text, but nearly every word is one that `chat` had."""
    rng = random.Random(seed)
    sentences = [s for message in chat for s in _sentences(message["content"])]
    rng.shuffle(sentences)
    text = "".join(sentences)
    borders = [match.start() for match in re.finditer(r"(?<=\S)\s", text)]
    cuts = sorted(rng.sample(borders, len(chat) - 1))
    return [
        {"role": message["role"], "content": text[start:end]}
        for message, start, end in zip(chat, [0, *cuts], [*cuts, len(text)], strict=True)
    ]


def _sentences(text: str) -> list[str]:
    """Pieces that end with their sentence's or line's end, white space included."""
    return [piece for piece in re.split(r"(?<=[.!?] )|(?<=\n)", f"{text}\n") if piece]
