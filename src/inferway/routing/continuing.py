"""Streams that another engine may go on with when theirs is lost: what is kept of them until their
end, and what is asked for then. No I/O.

By the rules of `openai_api/sent_stream.py` and `sent_messages.py` nothing is doubled or missing;
`stream_rest.py` has the fields with which the rest is that of one engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferway.errors import InvalidRequestError, RenderError
from inferway.metrics import Family, counter, gauge
from inferway.model import Endpoint, TokenIds
from inferway.openai_api.requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    decode_fields,
)
from inferway.openai_api.sent_messages import RestMessages, SentMessages
from inferway.openai_api.sent_stream import CHAT, COMPLETIONS, Cut, SentStream
from inferway.openai_api.stream_rest import (
    RestEvents,
    keeps_text_back,
    may_go_on,
    rest_body,
    stops_of,
    why_not,
)
from inferway.prompts.served import ServedModel

if TYPE_CHECKING:
    from inferway.routing.journey import Routed

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
    kept: KeptStream


@dataclass(slots=True)
class KeptStream:
    """What is kept of one stream."""

    sent: SentStream | SentMessages
    body: bytes  # that was sent, but for what its attempt added
    asked: type[Body]
    model: ServedModel
    prompt: TokenIds | None  # of messages, whose engines tell no ids

    @property
    def asks_for_ids(self) -> bool:
        """Whether the engine is to tell the ids of its tokens."""
        return self.prompt is None

    def events(self, cut: Cut, model: str) -> RestEvents | RestMessages:
        """Return what puts the rest's events behind those that were sent. `model`: what the answer
        names, if not what the first engine did."""
        if isinstance(self.sent, SentMessages):
            return RestMessages(cut, has_block=self.sent.has_block)
        return RestEvents(cut, model)


@dataclass(slots=True)
class Continuing:
    """Keeps streams, and counts what became of those that lost their engine. `takes`: whether an
    endpoint tells the ids of its tokens, and takes ids as a prompt."""

    takes: Callable[[Endpoint], bool]
    held: int = 0  # bytes of bodies
    counts: Counter[str] = field(default_factory=Counter)

    def keep(
        self,
        routed: Routed,
        endpoint: Endpoint,
        body: bytes,
        *,
        is_rest: bool,
        has_tokens: bool,
    ) -> KeptStream | None:
        """Return what is kept of an answer to `body`; None if its engine's end will be its own.
        `has_tokens`: the engine gets the prompt as the ids that we have made. What is returned
        must be dropped."""
        asked = routed.request.body
        size = len(body)
        if size > MOST_BODY_BYTES or self.held + size > MOST_BYTES:
            return None
        if not may_go_on(asked, is_rest=is_rest) or not self.takes(endpoint):
            return None
        kind, model = type(asked), routed.model
        if isinstance(asked, MessagesRequest):
            if not has_tokens or routed.whole_prompt is None:
                return None
            kept = KeptStream(SentMessages(), body, kind, model, routed.whole_prompt)
        else:
            path = CHAT if isinstance(asked, ChatRequest) else COMPLETIONS
            kept = KeptStream(SentStream(path), body, kind, model, None)
        self.held += size
        return kept

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
        try:
            cut = _cut(kept, fields)
        except RenderError:
            cut = None
        if cut is None:
            return NO_CUT
        is_completion = kept.asked is CompletionRequest
        body = rest_body(kept.body, fields, cut, is_completion=is_completion)
        return NO_TOKENS if body is None else RestOfStream(body, cut, kept)

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        yield counter(
            "continued_streams",
            "Streams that lost their engine in the middle, by what came of it: another engine went"
            " on to the end (ok), or failed (failed), or was not asked, for the reason that is"
            " named",
            ["outcome"],
            {(outcome,): number for outcome, number in self.counts.items()},
        )
        yield gauge(
            "kept_stream_bytes",
            "Bytes of requests that are kept while their answers are streamed, for another engine"
            " to go on with.",
            value=self.held,
        )


def _cut(kept: KeptStream, fields: Mapping[str, Any]) -> Cut | None:
    """Return where another engine can go on; None if it cannot. Raises RenderError."""
    sent, stops = kept.sent, stops_of(fields)
    if isinstance(sent, SentStream) and not (sent.has_thought or keeps_text_back(fields)):
        return sent.cut(stops)
    local = kept.model.prompts.local
    if local is None:
        return None

    def decode(ids: Sequence[int]) -> str:
        return local.tokenizer.decode(ids, skip_special_tokens=True)

    def encode(text: str) -> list[int]:
        ids: list[int] = local.tokenizer.encode(text, add_special_tokens=False).tolist()
        return ids

    if isinstance(sent, SentStream):
        return sent.cut_by_text(decode, stops)
    return None if kept.prompt is None else sent.cut(kept.prompt.tolist(), encode, decode)
