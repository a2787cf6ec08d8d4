"""A prompt that we have made token ids of is not tokenized by the engine again: it gets them.

Ids that are not the engine's own would be an answer to another prompt. So nothing is sent but the
very array that the request was matched by, where it is the whole prompt; and `Refuses` (the fleet)
sees to it that the engine takes them, and is known to make the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from inferway.metrics import Family, counter
from inferway.model import Endpoint, TokenIds
from inferway.openai_api.tokens_once import TokenIdsWriter, why_text, with_ids
from inferway.prompts.served import ServedModel
from inferway.routing.journey import Routed

# From so many tokens on ids are worth their bytes: real engines have been seen to spare 0.5 ms of
# CPU a request at 64, and next to nothing for texts of 20 (docs/fidelity.md).
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
        found = self._ids(routed, endpoint)
        edited = None
        if not isinstance(found, str):
            edited = with_ids(raw, routed.request.body, found)
        self._count(found if isinstance(found, str) else SENT if edited else OF_REQUEST)
        return edited

    def ids(self, routed: Routed, endpoint: Endpoint, written: bytes | None = None) -> bytes | None:
        """Return the ids of the prompt, a JSON array, for a body with more than them; None if it
        gets none. `written`: the same array, if it has been made for another body."""
        found = self._ids(routed, endpoint, written)
        self._count(found if isinstance(found, str) else SENT)
        return None if isinstance(found, str) else found

    def _count(self, outcome: str) -> None:
        self._counts[outcome] = self._counts.get(outcome, 0) + 1

    def _ids(self, routed: Routed, endpoint: Endpoint, written: bytes | None = None) -> bytes | str:
        """Return the ids, or why there are none."""
        ids = routed.whole_prompt
        if ids is None:
            return NOT_OURS
        if len(ids) < self._least:
            return SHORT
        refused = self._refused(routed, ids, endpoint)
        if refused is not None:
            return refused
        return self._writer.json(ids) if written is None else written

    def knows(self, routed: Routed, endpoint: Endpoint) -> bool:
        """Return whether the ids that we have made are those of the endpoint's prompt, be they
        worth their bytes or not."""
        ids = routed.whole_prompt
        return ids is not None and self._refused(routed, ids, endpoint) is None

    def _refused(self, routed: Routed, ids: TokenIds, endpoint: Endpoint) -> str | None:
        shortest = routed.model.contexts.least
        if shortest is not None and len(ids) > shortest:
            return LONG
        body = routed.request.body
        if why_text(body) is not None:
            return OF_REQUEST
        return self._refuses(endpoint, routed.model, is_compared=body.tells_ids)

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        yield counter(
            "tokens_once",
            "Attempts at engines by whether they carried their prompt's token ids (sent), or why"
            " not.",
            ["outcome"],
            {(outcome,): number for outcome, number in self._counts.items()},
        )
