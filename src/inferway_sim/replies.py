"""The answers of a simulated engine: what it was told, sentences from a small bank, or a text that
it goes on with where the prompt has come to, as a model does."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.model import TokenIds
from inferway.openai_api.requests import PromptBody
from inferway.openai_api.sent_messages import thought_marks
from inferway.prompts.chat.conversation import forwarded_ids


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One prompt of a request, as a reply hook sees it."""

    model: str  # as the client named it
    body: PromptBody
    read_text: Callable[[], str]
    prompt_ids: TokenIds
    num_cached_tokens: int  # what its engine's cache would save it now

    @property
    def text(self) -> str:
        """The last user message, or the prompt; token ids are decoded only when they are read."""
        return self.read_text()


# A text, or token ids.
Reply = Callable[[SimRequest], str | Sequence[int]]

_SENTENCES = (
    "The prefix was already here, so only the end of the prompt had to be computed.",
    "A block holds a fixed number of tokens and is shared once it is full.",
    "When memory runs short, the block that nobody used for longest goes first.",
    "This reply comes from a simulated engine and carries no meaning.",
    "Two requests that begin alike may begin with the same blocks.",
    "The last token of a prompt is always computed again.",
    "Queues are short today, and the answer did not have to wait.",
    "A router that knows the cache sends a conversation back to where it started.",
    "Time to first token is mostly the time it takes to read the prompt.",
    "Nothing was harmed in the making of these tokens.",
    "The tail of a chain is evicted before its head.",
    "Ask again, and the same words will come sooner.",
)


def echo(encode: Callable[[str], Sequence[int]]) -> Reply:
    """Return a reply of the last user message, or the prompt. A chat that brings its token ids may
    end with the beginning of that message behind the message itself, because another engine has
    said so much: the reply is the rest."""

    def reply(request: SimRequest) -> str | Sequence[int]:
        body, text = request.body, request.text
        if forwarded_ids(body) is None:
            return text
        words, ids = encode(text), request.prompt_ids.tolist()
        # As many are no message behind another: the text is that of blocks which were fetched.
        return _rest(words, ids) if len(words) < len(ids) else text

    return reply


def random_sentences(seed: int) -> Reply:
    """Return a reply of one to four sentences. The same seed and prompt give the same reply, in any
    order."""

    def reply(request: SimRequest) -> str:
        digest = hashlib.sha256(request.prompt_ids.tobytes()).hexdigest()
        rng = random.Random(f"{seed}:{digest}")
        return " ".join(rng.choices(_SENTENCES, k=rng.randint(1, 4)))

    return reply


RECITED = " ".join([*_SENTENCES, "Naïve café, 東京 🚀."] * 8)


# In front of it, where the model has tokens around thoughts.
THOUGHT = " ".join(["What is asked for? A long text, Zoë says 🐈, which must not end here."] * 3)


def recited(encode: Callable[[str], Sequence[int]]) -> Sequence[int]:
    """Return the tokens of RECITED, behind those of a thought if the model has any."""
    marks, text = thought_marks(encode), encode(RECITED)
    return text if marks is None else [marks.start, *encode(THOUGHT), marks.end, *text]


def recite(words: Sequence[int]) -> Reply:
    """Return a reply that is always the same long text, whose tokens are `words`: of a prompt that
    ends with its beginning, the rest."""

    def reply(request: SimRequest) -> Sequence[int]:
        return _rest(words, request.prompt_ids.tolist())

    return reply


def _rest(words: Sequence[int], ids: Sequence[int]) -> Sequence[int]:
    """Return `words` without the most of its beginning that `ids` end with."""
    for number in range(min(len(ids), len(words)), 0, -1):
        if ids[-number] == words[0] and ids[-number:] == words[:number]:
            return words[number:]
    return words


def spoken_text(body: PromptBody, index: int) -> str | None:
    """Return the last user message of a chat, the `index`-th prompt of a completion; None for a
    prompt of token ids."""
    if body.turns is not None:
        messages = [m for m in body.turns if m["role"] == "user"] or body.turns
        return _content_text(messages[-1].get("content"))
    prompt = body.prompts[index]
    return prompt if isinstance(prompt, str) else None


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content or ()
    return "".join(part if isinstance(part, str) else part.get("text") or "" for part in parts)
