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
from inferway.openai_api.requests import COMPLETION, Body, decode_fields
from inferway.openai_api.sent_messages import RestMessages, SentMessages
from inferway.openai_api.sent_stream import Cut, SentStream
from inferway.openai_api.stream_rest import (
    RestEvents,
    keeps_text_back,
    rest_body,
    stops_of,
    why_not,
    why_not_at_once,
)
from inferway.prompts.served import ServedModel

if TYPE_CHECKING:
    from inferway.routing.attempt import Attempt
    from inferway.routing.journey import Routed

MOST_BODY_BYTES = 1 << 20  # of one request, that is kept until its answer has ended
MOST_BYTES = 64 << 20  # of all of them

# Why a stream whose engine was lost ended there; beside the name of a field of its request.
NO_CUT, NO_TOKENS, TOO_OFTEN, ALONE = "no-cut", "max-tokens", "too-often", "no-other-engine"
BODY, SHAPE, TOO_LARGE, ENGINE, NO_IDS = "body", "shape", "too-large", "old-engine", "unknown-ids"
COMPRESSED = "compressed"  # its engine's answer
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

    def events(self, cut: Cut, model: str, num_cached: int | None) -> RestEvents | RestMessages:
        """Return what puts the rest's events behind those that were sent. `model`: what the answer
        names, if not what the first engine did. `num_cached`: tokens of the prompt that the first
        engine had in its cache; None: unknown."""
        if isinstance(self.sent, SentMessages):
            return RestMessages(cut, self.sent.block, num_cached)
        return RestEvents(cut, model, num_cached)


@dataclass(slots=True)
class Continuing:
    """Keeps streams, and counts what became of those that lost their engine. `takes`: whether an
    endpoint tells the ids of its tokens, and takes ids as a prompt. `knows`: whether the ids of a
    request's prompt are those that the endpoint makes of it."""

    takes: Callable[[Endpoint], bool]
    knows: Callable[[Routed, Endpoint], bool]
    held: int = 0  # bytes of bodies
    counts: Counter[str] = field(default_factory=Counter)

    def keep(
        self, routed: Routed, endpoint: Endpoint, body: bytes, *, is_rest: bool
    ) -> KeptStream | str:
        """Return what is kept of an answer to `body`, or why its engine's end will be its own. What
        is kept must be dropped."""
        asked = routed.request.body
        why = why_not_at_once(asked, is_rest=is_rest)
        if why is not None:
            return why
        size = len(body)
        if size > MOST_BODY_BYTES or self.held + size > MOST_BYTES:
            return TOO_LARGE
        if not self.takes(endpoint):
            return ENGINE
        kind, model = type(asked), routed.model
        if not asked.tells_ids:
            if routed.whole_prompt is None or not (is_rest or self.knows(routed, endpoint)):
                return NO_IDS
            kept = KeptStream(SentMessages(), body, kind, model, routed.whole_prompt)
        else:
            kept = KeptStream(SentStream(asked.path), body, kind, model, None)
        self.held += size
        return kept

    def drop(self, kept: KeptStream) -> None:
        """Forget a stream, which has ended."""
        self.held -= len(kept.body)
        kept.body = b""

    def rest(self, kept: KeptStream, *, is_rest: bool) -> RestOfStream | str:
        """Return how to ask for the rest of a stream, or why it cannot be had."""
        try:
            fields = decode_fields(kept.body)
        except InvalidRequestError:
            return BODY
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
        is_completion = kept.asked.path == COMPLETION
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


class ContinuableStream:
    """One streamed answer: what another engine would need to go on with it, or why none can.
    `drop` must be called. The answer's journey writes it."""

    __slots__ = ("_continuing", "_why_it_ends", "kept")

    def __init__(self, continuing: Continuing | None) -> None:
        """Without `continuing` nothing is kept, and nothing counted."""
        self.kept: KeptStream | None = None  # None: the answer ends with its engine
        self._continuing = continuing
        self._why_it_ends = ""

    @property
    def is_cut_off(self) -> bool:
        """Whether the engine has given up its answer, and the client does not know."""
        return self.kept is not None and self.kept.sent.is_broken

    @property
    def body(self) -> bytes:
        """The request's body, without what an attempt has added; empty if nothing is kept."""
        return b"" if self.kept is None else self.kept.body

    def keep(
        self, routed: Routed, attempt: Attempt, body: bytes, shape: object, is_rest: bool
    ) -> None:
        """Keep of an attempt what would be needed. `body`: without what the attempt has added;
        `shape`: that the answer is to have, or None."""
        if self._continuing is None:
            return
        self.drop()
        if shape is not None:
            self._why_it_ends = SHAPE
            return
        kept = self._continuing.keep(routed, attempt.target.endpoint, body, is_rest=is_rest)
        if isinstance(kept, str):
            self._why_it_ends = kept
            return
        self.kept, self._why_it_ends = kept, ""
        if kept.asks_for_ids and not attempt.ask_for_ids():
            self.drop()
            self._why_it_ends = BODY

    def drop(self) -> None:
        """Keep nothing any more."""
        kept, self.kept = self.kept, None
        if kept is not None:
            assert self._continuing is not None
            self._continuing.drop(kept)

    def give_up(self) -> bytes:
        """Return what the engine has said when it gave up: nobody goes on with the answer."""
        assert self.kept is not None
        return self.kept.sent.give_up()

    def rest(self, *, is_rest: bool) -> RestOfStream | None:
        """Return how to ask for the rest; None if it cannot be had."""
        if self.kept is None:
            return None
        assert self._continuing is not None
        rest = self._continuing.rest(self.kept, is_rest=is_rest)
        if isinstance(rest, str):
            self.ends_here(rest)
            return None
        self.ends_here("")
        return rest

    def ends_here(self, why: str) -> None:
        """No other engine goes on with the answer, should its engine be lost now. `why` is a label
        of the metric; empty: one does."""
        self._why_it_ends = why

    def was_lost(self) -> None:
        """The answer is lost that has begun; count it, unless another engine goes on with it."""
        if self._continuing is not None and self._why_it_ends:
            self._continuing.counts[self._why_it_ends] += 1


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
