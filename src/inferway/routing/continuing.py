"""Streams that another engine may go on with when theirs is lost: what is kept of them until their
end, and what is asked for then. No I/O.

`openai_api/sent_stream.py` has the rules by which nothing is doubled or missing, and
`openai_api/stream_rest.py` the fields with which the rest is the same as that of the whole answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferway.errors import InvalidRequestError
from inferway.metrics import Family, counter, gauge
from inferway.model import Endpoint
from inferway.openai_api.requests import ChatRequest, decode_fields
from inferway.openai_api.sent_stream import PATHS, Cut, SentStream
from inferway.openai_api.stream_rest import (
    keeps_text_back,
    may_go_on,
    rest_body,
    stops_of,
    why_not,
)
from inferway.prompts.served import ServedModel

if TYPE_CHECKING:
    from inferway.routing.journey import Routed

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
assert frozenset({CHAT, COMPLETIONS}) == PATHS

MOST_BODY_BYTES = 1 << 20  # of one request, that is kept until its answer has ended
MOST_BYTES = 64 << 20  # of all of them

# Why a stream whose engine was lost ended there; beside the name of a field of its request.
NO_CUT, NO_TOKENS, TOO_OFTEN = "no-cut", "max-tokens", "too-often"
# What became of one that another engine was asked to go on with.
WENT_ON, FAILED = "ok", "failed"


@dataclass(frozen=True, slots=True)
class RestOfStream:
    """What is asked for, and where it begins."""

    body: bytes
    cut: Cut


@dataclass(slots=True)
class KeptStream:
    """What is kept of one stream. `drop` must be called."""

    sent: SentStream
    body: bytes  # that was sent, but for what its attempt added
    is_chat: bool
    model: ServedModel


@dataclass(slots=True)
class Continuing:
    """Keeps streams, and counts what became of those that lost their engine. `takes`: whether an
    endpoint tells the ids of its tokens, and takes ids as a prompt."""

    takes: Callable[[Endpoint], bool]
    held: int = 0  # bytes of bodies
    counts: Counter[str] = field(default_factory=Counter)

    def keep(
        self, routed: Routed, endpoint: Endpoint, body: bytes, *, is_rest: bool
    ) -> KeptStream | None:
        """Return what is kept of an answer to `body`; None if its engine's end will be its own."""
        asked = routed.request.body
        size = len(body)
        if size > MOST_BODY_BYTES or self.held + size > MOST_BYTES:
            return None
        if not may_go_on(asked, is_rest=is_rest) or not self.takes(endpoint):
            return None
        self.held += size
        is_chat = isinstance(asked, ChatRequest)
        return KeptStream(SentStream(CHAT if is_chat else COMPLETIONS), body, is_chat, routed.model)

    def drop(self, kept: KeptStream) -> None:
        """Forget a stream, which has ended."""
        self.held -= len(kept.body)
        kept.body = b""

    def rest(self, kept: KeptStream, *, is_rest: bool) -> RestOfStream | None:
        """Return how to ask for the rest of a stream; None, which is counted, if it cannot be
        had."""
        found = self._rest(kept, is_rest=is_rest)
        if isinstance(found, str):
            self.counts[found] += 1
            return None
        return found

    def _rest(self, kept: KeptStream, *, is_rest: bool) -> RestOfStream | str:
        try:
            fields = decode_fields(kept.body)
        except InvalidRequestError:
            return "body"
        if is_rest:
            fields.pop("kv_transfer_params", None)
        name = why_not(fields)
        if name is not None:
            return name
        stops = stops_of(fields)
        if keeps_text_back(fields):
            local = kept.model.prompts.local
            cut = None if local is None else kept.sent.cut_by_text(local.text_of, stops)
        else:
            cut = kept.sent.cut(stops)
        if cut is None:
            return NO_CUT
        body = rest_body(kept.body, fields, cut, is_chat=kept.is_chat)
        return NO_TOKENS if body is None else RestOfStream(body, cut)

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        yield counter(
            "continued_streams",
            "Streams that lost their engine in the middle, by what came of it: another engine went"
            " on to the end (ok), or failed, or was not asked, for this reason.",
            ["outcome"],
            {(outcome,): number for outcome, number in self.counts.items()},
        )
        yield gauge(
            "kept_stream_bytes",
            "Bytes of requests that are kept while their answers are streamed, for another engine"
            " to go on with.",
            value=self.held,
        )
