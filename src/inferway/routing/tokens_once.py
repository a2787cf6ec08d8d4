"""A prompt that we have made token ids of is not tokenized by the engine again: it gets them.

Ids that are not the engine's own would be an answer to another prompt. So nothing is sent but the
very array that the request was matched by, where it is the whole prompt; and `Refuses` (the fleet)
sees to it that the engine takes them, and is known to make the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from inferway.metrics import Family, counter
from inferway.model import Endpoint, Reason, TokenIds
from inferway.openai_api.requests import PromptBody
from inferway.openai_api.token_ids_json import TokenIdsWriter
from inferway.openai_api.tokens_once import why_text, with_ids
from inferway.prompts.served import ServedModel
from inferway.routing.journey import Routed

# From so many tokens on ids are worth their bytes: real engines have been seen to spare 0.5 ms of
# CPU a request at 64, and next to nothing for texts of 20 (docs/performance.md).
LEAST_TOKENS = 64

SENT, SHORT, LONG = "sent", "short", "long"
NOT_OURS, OF_REQUEST = "not-ours", "request"


class Refuses(Protocol):
    """Says why an endpoint gets no ids of a model (fleet.tokens_once)."""

    def __call__(
        self, endpoint: Endpoint, model: ServedModel, *, is_compared: bool
    ) -> str | None: ...


class TokensOnce:
    """Puts ids into the bodies of requests; they must have `least` tokens."""

    def __init__(self, refuses: Refuses, least: int = LEAST_TOKENS) -> None:
        self._refuses = refuses
        self._least = least
        self._writer = TokenIdsWriter()
        self._counts: dict[str, int] = {}

    def edited(self, raw: bytes, routed: Routed, endpoint: Endpoint) -> bytes | None:
        """Return the body with its prompt's ids, for one attempt; None if it goes as it is."""
        found = self._edited(raw, routed, endpoint)
        outcome = found if isinstance(found, str) else SENT
        self._counts[outcome] = self._counts.get(outcome, 0) + 1
        return None if isinstance(found, str) else found

    def _edited(self, raw: bytes, routed: Routed, endpoint: Endpoint) -> bytes | str:
        """Return the body, or why it has none."""
        ids = _whole_prompt(routed)
        if ids is None:
            return NOT_OURS
        if len(ids) < self._least:
            return SHORT
        shortest = routed.model.contexts.least
        if shortest is not None and len(ids) > shortest:
            return LONG
        body = routed.request.body
        if why_text(body) is not None:
            return OF_REQUEST
        is_compared = isinstance(body, PromptBody)
        refused = self._refuses(endpoint, routed.model, is_compared=is_compared)
        if refused is not None:
            return refused
        return with_ids(raw, body, self._writer.json(ids)) or OF_REQUEST

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        yield counter(
            "tokens_once",
            "Attempts at engines by whether they carried their prompt's token ids (sent), or why"
            " not.",
            ["outcome"],
            {(outcome,): number for outcome, number in self._counts.items()},
        )


def _whole_prompt(routed: Routed) -> TokenIds | None:
    """The ids of a request's only prompt, if we made them; they are the same for each block
    size."""
    if routed.decision.reason is not Reason.KV_AWARE:
        return None
    prompts = next(iter(routed.prompts.values()), ())
    return prompts[0].prompt.token_ids if len(prompts) == 1 else None
