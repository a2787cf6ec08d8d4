"""Requests that vLLM answers from the prompt's token ids just as it does from its text. Pure.

Read in vLLM 0.32 and 0.33, and seen on real engines of 0.32 (tests/engines/test_tokens_once.py):

/v1/chat/completions  `kv_transfer_params.prompt_token_ids`: nothing is rendered or tokenized
/v1/responses         (renderers/online_renderer.py: `preprocess_chat`). What comes after is the
/v1/messages          same: checks of tools and templates, parsers of tools and reasoning, shapes,
                      salts, adapters, `n`, beam search, log probabilities, `max_tokens`.
/v1/completions       does not look at that field: an array takes the place of the text in `prompt`.

`why_text` names what must stay text. Beside it, whoever sends ids must know them whole: a chat with
media, or an array of prompts, has no such ids. The engine does not hold ids against its context
length as it does text, and would refuse them in other words, so that none may be too long.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.model import TokenIds
from inferway.openai_api.edits import with_prompt, with_prompt_token_ids
from inferway.openai_api.requests import Body, CompletionRequest, ResponsesRequest
from inferway.openai_api.shapes import TakeValues, values_of

# Field -> why a request that has it stays text.
_STAYS: dict[str, str] = {
    "sampling_params": "is token ids already",
    # who has written them is a router that knows more of the request than we do
    "kv_transfer_params": "says itself what is transferred",
    # vLLM renders its messages nevertheless, for the answer, and ignores the ids
    "echo": "wants its prompt in the answer",
    # vLLM 0.32 answers null, or an empty text: it has rendered none
    "return_prompt_text": "wants its prompt as the engine has rendered it",
    "enable_response_messages": "wants its prompt as the engine has rendered it",
    # ours would be the answer: nobody could find out by them that an engine makes others
    "return_token_ids": "wants its prompt's tokens in the engine's own word",
    "prompt_logprobs": "wants its prompt's tokens in the engine's own word",
    # what is cut depends on the context length of each engine, and the ids are not cut again
    "truncate_prompt_tokens": "may be cut",
    # no probe has compared what such a template makes of a chat
    "chat_template": "brings a template",
}


def why_text(body: Body) -> str | None:
    """Return why this request must be tokenized by the engine; None if its answer to the prompt's
    token ids is the same."""
    asked = _asked_of(type(body))
    if asked is None:
        return "is of a kind that takes no token ids"
    values = asked(body)
    if values.count(None) != len(values):
        for field, why in _STAYS.items():
            value = getattr(body, field, None)
            if value is not None and value is not False:
                return why
    if isinstance(body, CompletionRequest):
        return None if isinstance(body.prompt, str) else "has no single text"
    if (getattr(body, "chat_template_kwargs", None) or {}).get("chat_template") is not None:
        return "brings a template"
    if isinstance(body, ResponsesRequest) and not body.cuts_nothing:
        return "may be cut"
    return None


@cache
def _asked_of(kind: type[Body]) -> TakeValues | None:
    """Return what takes the fields of `_STAYS` from a body; None if it takes no token ids."""
    known = [name for name in _STAYS if name in kind.__struct_fields__]
    return values_of(known) if "kv_transfer_params" in known else None


def with_ids(raw: bytes, body: Body, ids: bytes) -> bytes | None:
    """Return the body `raw` with the token ids of its prompt, a JSON array; `body` is what it was
    parsed into, and needs no text. None if it is JSON that cannot be edited."""
    if isinstance(body, CompletionRequest):
        return with_prompt(raw, ids)
    return with_prompt_token_ids(raw, ids)


_DIGITS = 7  # with its comma an id is eight bytes: one number of a table
_AT_FIRST = 1 << 18  # rows of the table, more than most vocabularies have: 2 MiB, made in 15 ms
_AT_MOST = 1 << 20


class TokenIdsWriter:
    """Writes token ids as JSON without a Python object for each: 10 µs for 8,000 ids, where msgspec
    takes 104 with a list (a core of an Intel Xeon, 2026-11-25). Each has spaces before it, which
    JSON skips, so that all are equally long."""

    __slots__ = ("_texts",)

    def __init__(self) -> None:
        self._texts = _texts(_AT_FIRST)

    def json(self, ids: TokenIds) -> bytes:
        """Return the ids as a JSON array."""
        if not len(ids):
            return b"[]"
        try:
            texts = self._texts.take(ids)
        except IndexError:
            if int(ids.max()) >= _AT_MOST:  # no vocabulary is so large
                return msgspec.json.encode(ids.tolist())
            self._texts = _texts(_AT_MOST)
            texts = self._texts.take(ids)
        return b"[%b]" % texts.tobytes()[:-1]


def _texts(number: int) -> NDArray[np.uint64]:
    """The text of each id below `number`: its digits, to the right, and a comma."""
    rows = np.full((number, _DIGITS + 1), ord(" "), np.uint8)
    rows[:, _DIGITS] = ord(",")
    left = np.arange(number, dtype=np.uint32)
    for place in range(_DIGITS):
        left, digits = np.divmod(left, 10)
        start = 10**place if place else 0  # smaller ids have no such digit
        rows[start:, _DIGITS - 1 - place] = digits[start:] + ord("0")
    return rows.view(np.uint64).ravel()
