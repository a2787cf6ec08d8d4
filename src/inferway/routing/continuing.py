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
from inferway.prompts.chat.conversation import carries_media
from inferway.prompts.served import ServedModel
from inferway_structured.decoding import UNREADABLE

if TYPE_CHECKING:
    from inferway.routing.attempt import Attempt
    from inferway.routing.journey import Routed

MOST_BODY_BYTES = 1 << 20  # of one request, that is kept until its answer has ended
MOST_BYTES = 64 << 20  # of all of them

# Why a stream whose engine was lost ended there; beside the name of a field of its request.
NO_CUT, NO_TOKENS, TOO_OFTEN, ALONE = "no-cut", "max-tokens", "too-often", "no-other-engine"
BODY, SHAPE, TOO_LARGE, ENGINE, NO_IDS = "body", "shape", "too-large", "old-engine", "unknown-ids"
COMPRESSED = "compressed"  # its engine's answer
# The outcomes of a stream that another engine was asked to go on with.
WENT_ON, FAILED = "ok", "failed"


@dataclass(frozen=True, slots=True)
class RestOfStream:
    """The body that asks for the rest of a stream, and where the rest begins."""

    body: bytes
    cut: Cut
    events: RestEvents | RestMessages  # puts the rest's events behind those that were sent


@dataclass(slots=True)
class Continuing:
    """The policy of continued streams, and the counts of those that lost their engine. `takes`:
    whether an endpoint tells the ids of its tokens, and takes ids as a prompt. `knows`: whether the
    ids of a request's prompt are those that the endpoint makes of it."""

    takes: Callable[[Endpoint], bool]
    knows: Callable[[Routed, Endpoint], bool]
    held: int = 0  # bytes of bodies
    counts: Counter[str] = field(default_factory=Counter)

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
    `ended` must be called. The answer's journey writes it."""

    __slots__ = ("_asked", "_continuing", "_model", "_prompt", "_why_it_ends", "body", "sent")

    _asked: type[Body]
    _model: ServedModel
    _prompt: TokenIds | None  # of messages, whose engines tell no ids

    def __init__(self, continuing: Continuing) -> None:
        self.sent: SentStream | SentMessages | None = None  # None: the answer ends with its engine
        self.body = b""  # of the request, but for what its attempt added; empty if nothing is kept
        self._continuing = continuing
        self._why_it_ends = ""

    def keep(
        self, routed: Routed, attempt: Attempt, body: bytes, shape: object, is_rest: bool
    ) -> None:
        """Keep of an attempt what would be needed. `body`: without what the attempt has added;
        `shape`: that the answer is to have, or None."""
        self.drop()
        self._why_it_ends = (
            SHAPE
            if shape is not None
            else self._why_not(routed, attempt.target.endpoint, len(body), is_rest)
        )
        if self._why_it_ends:
            return
        asked = routed.request.body
        self._asked, self._model, self._prompt = type(asked), routed.model, None
        self.body = body
        self._continuing.held += len(body)
        if not asked.tells_ids:
            self.sent, self._prompt = SentMessages(), routed.whole_prompt
            return
        self.sent = SentStream(asked.path)
        if not attempt.ask_for_ids():
            self.drop()
            self._why_it_ends = BODY

    def _why_not(self, routed: Routed, endpoint: Endpoint, size: int, is_rest: bool) -> str:
        """Return why the answer ends with its engine; empty if it need not."""
        continuing, asked = self._continuing, routed.request.body
        why = why_not_at_once(asked, is_rest=is_rest)
        if why is not None:
            return why
        if size > MOST_BODY_BYTES or continuing.held + size > MOST_BYTES:
            return TOO_LARGE
        if not continuing.takes(endpoint):
            return ENGINE
        if not asked.tells_ids:
            is_known = is_rest or continuing.knows(routed, endpoint)
            return "" if is_known and routed.whole_prompt is not None else NO_IDS
        return ""

    def drop(self) -> None:
        """Keep nothing any more."""
        self._continuing.held -= len(self.body)
        self.sent, self.body = None, b""

    def give_up(self) -> bytes:
        """Return what the engine said when it gave up: no other one goes on with the answer."""
        assert self.sent is not None
        return self.sent.give_up()

    def rest(self, model: str, num_cached: int | None, *, is_rest: bool) -> RestOfStream | None:
        """Return how to ask for the rest, and what makes one answer of it and the start; None if it
        cannot be had. `model`: what the answer names, if not what the first engine did.
        `num_cached`: tokens of the prompt that the first engine had in its cache; None: unknown."""
        rest = NO_CUT if self.sent is None else self._rest(self.sent, model, num_cached, is_rest)
        if isinstance(rest, str):
            self.ends_here(rest)
            return None
        self.ends_here("")
        return rest

    def _rest(
        self, sent: SentStream | SentMessages, model: str, num_cached: int | None, is_rest: bool
    ) -> RestOfStream | str:
        try:
            fields = decode_fields(self.body)
        except InvalidRequestError:
            return BODY
        if is_rest:
            fields.pop("kv_transfer_params", None)
        name = why_not(fields)
        if name is not None:
            return name
        if self._asked.path != COMPLETION and any(map(carries_media, fields["messages"])):
            return "messages"  # engines render them anew, whatever ids come with them
        try:
            cut = self._cut(sent, fields)
        except RenderError:
            cut = None
        if cut is None:
            return NO_CUT
        is_completion = self._asked.path == COMPLETION
        body = rest_body(self.body, fields, cut, is_completion=is_completion)
        if body is None:
            return NO_TOKENS
        if isinstance(sent, SentMessages):
            return RestOfStream(body, cut, RestMessages(cut, sent.block, num_cached))
        try:
            return RestOfStream(body, cut, RestEvents(cut, model, num_cached))
        except UNREADABLE:  # how its stream began
            return NO_CUT

    def _cut(self, sent: SentStream | SentMessages, fields: Mapping[str, Any]) -> Cut | None:
        """Return where another engine can go on; None if it cannot. Raises RenderError."""
        stops = stops_of(fields)
        if isinstance(sent, SentStream) and not (sent.has_thought or keeps_text_back(fields)):
            return sent.cut(stops)
        local = self._model.prompts.local
        if local is None:
            return None

        def decode(ids: Sequence[int]) -> str:
            return local.decode(ids, skip_special_tokens=True)

        def encode(text: str) -> list[int]:
            ids: list[int] = local.encode(text).tolist()
            return ids

        if isinstance(sent, SentStream):
            return sent.cut_by_text(decode, stops)
        return None if self._prompt is None else sent.cut(self._prompt.tolist(), encode, decode)

    def ends_here(self, why: str) -> None:
        """No other engine goes on with the answer, should its engine be lost now. `why` is a label
        of the metric; empty: one does."""
        self._why_it_ends = why

    def ended(self, *, is_lost: bool) -> None:
        """The answer has ended; if it is lost that had begun, count it, unless another engine goes
        on with it."""
        self.drop()
        if is_lost and self._why_it_ends:
            self._continuing.counts[self._why_it_ends] += 1
