"""One request from its first byte to its last: forwarded or only picked, with a prompt that we know
or without. Frontends drive it; who decides where it goes is one of few (`Decides`).

journey.decide()            where it goes               director.ByPrompt, director.ByLoad
journey.attempt(target)     books the slot, speculates on the prompt: routing/attempt
journey.on_head / on_chunk  what the engine answers passes by
journey.close(outcome)      frees the slot and the speculation, exactly once

Who listens is told of each of these: plugins, observers, spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from inferway.model import Candidates, Decision, Endpoint, Headers, Reason, Target, TokenIds
from inferway.openai_api.edits import ModelRenamer
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import asks_for_report
from inferway.openai_api.sent_messages import SentMessages
from inferway.openai_api.sent_stream import SentStream
from inferway.openai_api.usage import Usage, UsageReader
from inferway.prompts.served import ServedModel
from inferway.routing.attempt import Attempt, EndpointBook, Later
from inferway.routing.continuing import COMPRESSED, ContinuableStream, Continuing, RestOfStream
from inferway.routing.counts import DirectorStats
from inferway.routing.kv_legs import KvLegs
from inferway.routing.limits.request_quarantine import EngineLosses, RequestQuarantine
from inferway.routing.limits.slot import Slot
from inferway.routing.match import MatchedPrompts, Matcher
from inferway.routing.prefill_leg import PrefillLeg
from inferway.routing.record import Record
from inferway.routing.salt import MEDIA_EDIT, UUID_EDIT
from inferway.routing.structured_gate.gate import Gate
from inferway.routing.structured_gate.shape import Shape
from inferway.scheduling.plugin import RequestListener, RequestOutcome

# The headers of an answer whose decision was made by load alone.
_BY_LOAD: Mapping[str, Headers] = {
    reason: ((b"x-inferway-reason", reason.encode()),) for reason in Reason if reason.is_by_load
}


class EditsTokens(Protocol):
    """Puts the token ids of its prompt into a request (tokens_once.TokensOnce)."""

    def edited(self, raw: bytes, routed: Routed, endpoint: Endpoint) -> bytes | None: ...
    def ids(
        self, routed: Routed, endpoint: Endpoint, written: bytes | None = None
    ) -> bytes | None: ...


class Host(Protocol):
    """The objects that all journeys share (director.Director)."""

    @property
    def fleet(self) -> EndpointBook: ...
    @property
    def matcher(self) -> Matcher: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def stats(self) -> DirectorStats: ...
    @property
    def later(self) -> Later | None: ...
    @property
    def gate(self) -> Gate | None: ...
    @property
    def on_request(self) -> Sequence[OnRequest]: ...
    @property
    def tokens_once(self) -> EditsTokens | None: ...
    @property
    def legs(self) -> KvLegs: ...
    @property
    def continuing(self) -> Continuing | None: ...
    @property
    def quarantine(self) -> RequestQuarantine | None: ...


class Decides(Protocol):
    """Finds out where a request goes, and writes on its journey what it has found out."""

    async def decide(self, journey: Journey, slot: Slot | None) -> Decision: ...


class Routed(msgspec.Struct, frozen=True):
    """The findings about a request, for the alarm and the publisher."""

    request: LLMRequest
    model: ServedModel
    prompts: MatchedPrompts  # empty when not rendered
    decision: Decision
    candidates: Candidates
    record: Record | None = None  # what is remembered of it until its answer has ended
    # whether the engine says how much of all prompts it has reused; None: it is not known
    tells_its_reuse: bool | None = None

    @property
    def whole_prompt(self) -> TokenIds | None:
        """The ids of the request's only prompt, if we made them; they are the same for each block
        size."""
        if self.decision.reason is not Reason.KV_AWARE:
            return None
        prompts = next(iter(self.prompts.values()), ())
        if len(prompts) != 1 or prompts[0].prompt.media:  # ids alone are no picture
            return None
        return prompts[0].prompt.token_ids


# `extension.Extension.on_request`.
OnRequest = Callable[[Routed, float], RequestListener | None]


class Journey:
    """`close` is idempotent and must be called. What has no `_` is written by who decides."""

    __slots__ = (
        "_attempt",
        "_decides",
        "_first_chunk_came",
        "_host",
        "_listeners",
        "_names",
        "_sent",
        "_usage",
        "body",
        "closed",
        "edits",
        "goes_on",
        "is_cut_off",
        "is_encoded",
        "is_rest",
        "known_body",
        "losses",
        "matched",
        "prefill",
        "reads_prompt",
        "record",
        "routed",
        "shape",
        "stream",
        "tells_its_reuse",
    )

    def __init__(
        self, host: Host, body: bytes, decides: Decides, edits: Sequence[bytes] = ()
    ) -> None:
        """`edits`: what of the client's bytes has been changed."""
        self.routed: Routed | None = (
            None  # until the answer has begun; None: its prompt is not ours
        )
        self.closed = False
        self.record = Record(host.clock())
        self.shape: Shape | None = None  # that is asked of the answer
        self.body = body  # what the attempt sends: the client's bytes, and what we changed of them
        self.known_body = body  # the same, without what one attempt adds
        self.edits: list[bytes] = [*edits]
        self.reads_prompt = False  # the client is told how many of its blocks match
        self.matched: MatchedPrompts = {}
        self.goes_on = False  # the engine's prompts are longer than what we know of them
        self.is_rest = False  # it asks for the rest of an answer whose engine was lost
        self.stream: ContinuableStream | None = None  # None: its answer ends with its engine
        self.is_encoded = False  # the answer is compressed, and passes unread
        self.is_cut_off = False  # its engine has given it up, and the client does not know
        self.prefill: PrefillLeg | None = None  # None: the engine that answers computes all
        # whether the engine says how much of all prompts it has reused; None: it is not known
        self.tells_its_reuse: bool | None = None
        self.losses = EngineLosses(host.quarantine, self._sent_body)
        self._host = host
        self._decides = decides
        self._names: ModelRenamer | None = None
        self._attempt: Attempt | None = None
        self._listeners: list[RequestListener] = []
        self._first_chunk_came = False
        self._sent: SentStream | SentMessages | None = None  # of a stream that may go on elsewhere
        self._usage = UsageReader()

    @property
    def usage(self) -> Usage | None:
        """The tokens that the engine says it has taken and made, as far as it has said so."""
        return self._usage.usage()

    def finish_reasons(self) -> Sequence[str]:
        """Return why the engine has ended its answers, as far as it has said so."""
        return self._usage.finish_reasons()

    @property
    def changes_length(self) -> bool:
        """True if the answer that the client gets may be longer or shorter than the engine's."""
        return self._names is not None and not self.is_encoded

    async def decide(self, slot: Slot | None = None) -> Decision:
        """Return where to send the request, after it has had its turn at `slot`. Raises
        RequestError (the client's fault, or engines were lost with equal requests),
        NoEndpointError, or what `slot` raises."""
        host, record = self._host, self.record
        decision = await self._decides.decide(self, slot)
        if host.quarantine is not None and host.quarantine.suspects_any and not self.is_rest:
            self.losses = host.quarantine.losses(self.known_body, self._sent_body)
        if slot is not None:
            record.waited = slot.waited
        record.decided_in = host.clock() - record.opened_at - record.waited
        record.reason = decision.reason
        host.stats.decided(decision.reason, record.decided_in)
        if self.routed is not None:
            for on_request in host.on_request:
                listener = on_request(self.routed, record.decided_in)
                if listener is not None:
                    self._listeners.append(listener)
        return decision

    def split(self) -> PrefillLeg:
        """Return the prefill legs of a decided request: an engine computes the prompt for the one
        that answers. Call it once, before any attempt."""
        self.prefill = PrefillLeg(self, self._host, self._host.legs, self._listeners)
        return self.prefill

    @property
    def is_moved(self) -> bool:
        """True if the last attempt was sent with the blocks of another engine."""
        return self._attempt is not None and self._attempt.is_moved

    def rename(self, asked: str, body: bytes) -> None:
        """Send the request on as `body`, to another model than was asked for; the answer names the
        one that was."""
        self.body = self.known_body = body
        self.edits.append(b"model")
        self._names = ModelRenamer(asked)

    def name_media(self, body: bytes, *, is_fetched: bool = False) -> bytes:
        """Send the request on as `body`, in which its media have names; return it. `is_fetched`: in
        place of URLs are the bytes behind them."""
        if body is not self.known_body:
            self.body = self.known_body = body
            if UUID_EDIT not in self.edits:
                self.edits.append(UUID_EDIT)
            if is_fetched:
                self.edits.append(MEDIA_EDIT)
        return body

    def listen(self, listener: RequestListener) -> None:
        """Have `listener` hear what becomes of the request, behind the earlier ones."""
        self._listeners.append(listener)

    def attempt(self, target: Target) -> Headers:
        """Book a slot on `target`, and count the prompt as held there until its first token; a
        second attempt takes back the first. Return headers that the engine needs."""
        host, record, routed, prefill = self._host, self.record, self.routed, self.prefill
        record.target = target
        record.attempts += 1
        self.is_encoded = False
        if self._attempt is not None:
            self.suspect(self._attempt.target.endpoint)
            self._attempt.end()
            self._attempt = None
        if routed is not None and asks_for_report(routed.request.body):
            host.fleet.reports(target.endpoint)
        is_moved = prefill is not None and prefill.carries(target.endpoint)
        overlay = host.matcher.overlay
        self._attempt = attempt = Attempt(
            target, self.known_body, self.matched, self.goes_on, host.fleet, overlay, is_moved
        )
        if prefill is not None and is_moved:
            prefill.put_into(attempt)
        elif host.tokens_once is not None and routed is not None:
            edited = host.tokens_once.edited(attempt.body, routed, target.endpoint)
            attempt.carry_tokens(edited)
        if record.is_streamed and host.continuing is not None and routed is not None:
            self.stream = stream = self.stream or ContinuableStream(host.continuing)
            stream.keep(routed, attempt, self.known_body, self.shape, self.is_rest)
            self._sent = stream.sent
        self.body = attempt.body
        record.prompt_tokens = attempt.prompt_tokens
        record.reused_tokens = attempt.reused_tokens
        return self._attempt_headers(target)

    def pass_encoded(self) -> None:
        """Let the answer of this attempt pass as it is: it is compressed, so that nothing in it can
        be read or changed. Call it before `on_head`."""
        self.is_encoded = True
        if self.stream is not None:
            self.stream.drop()
            self.stream.ends_here(COMPRESSED)
            self._sent = None

    def give_up(self) -> bytes:
        """Return what the engine said when it gave up: no other one goes on with the answer."""
        assert self.stream is not None
        self.is_cut_off = False
        return self.stream.give_up()

    def rest(self) -> RestOfStream | None:
        """Return how the rest of a streamed answer whose engine was lost is asked for; None if
        another engine cannot go on with it."""
        if self.closed or self.stream is None:
            return None
        record = self.record
        renamed = record.model if self.changes_length else ""
        # what was cached where the answer began, its engine did not come to tell: what we believe
        num_cached = record.reused_tokens if record.prompt_tokens else None
        return self.stream.rest(renamed, num_cached, is_rest=self.is_rest)

    def goes_on_with(self, before: Journey) -> None:
        """Ask for the rest of the answer that `before` has lost."""
        self.is_rest = True
        self.losses = before.losses

    def _sent_body(self) -> bytes:
        return self.known_body or (b"" if self.stream is None else self.stream.body)

    def _attempt_headers(self, target: Target) -> Headers:
        headers = target.endpoint.headers
        if self.routed is not None and self.routed.decision.headers:
            headers = (*headers, *self.routed.decision.headers)
        for listener in self._listeners:
            headers = (*headers, *listener.on_attempt(target, self._host.clock()))
        return headers

    def on_head(self, status: int) -> Headers:
        """The engine has answered; return the headers that the client gets besides the engine's."""
        attempt = self._attempt
        if attempt is None:
            raise RuntimeError("on_head before attempt")
        target = attempt.target
        tells_its_reuse = self.tells_its_reuse and not self.is_encoded
        if status < 400 and tells_its_reuse and not attempt.is_moved:
            tokens = self._host.stats.tokens_of(target.endpoint.engine)
            tokens.sent(attempt.prompt_tokens, attempt.reused_tokens)
        elif status >= 500:
            self.suspect(target.endpoint)
            if status == 500:  # vLLM's before its process ends, if its core has
                self.losses.failed(target.endpoint.engine)
        told: Headers = ((b"x-inferway-engine", target.endpoint.engine.encode()),)
        if attempt.is_moved and (computed := self.record.prefill_target) is not None:
            told = (*told, (b"x-inferway-prefill-engine", computed.endpoint.engine.encode()))
        if self.reads_prompt:
            told = (
                *told,
                (b"x-inferway-matched-blocks", b"%d" % target.matched_blocks),
                (b"x-inferway-prompt-blocks", b"%d" % target.prompt_blocks),
            )
        by_load = _BY_LOAD.get(self.record.reason)
        if by_load is not None:
            told = (*told, *by_load)
        edits = [*self.edits, *attempt.edits] if attempt.edits else self.edits
        if edits:
            self.record.edits = edits
        if edits and not self.is_encoded:  # else what an edit has in the answer reaches the client
            told = (*told, (b"x-inferway-edited", b", ".join(edits)))
        for listener in self._listeners:
            told = (*told, *listener.on_head(status))
        return told

    def on_chunk(self, chunk: bytes) -> bytes:
        """A piece of the answer passes; return it as the client gets it. With the first one the
        speculation ends: from here on the engine's own events tell what it holds."""
        if not self._first_chunk_came:
            self._first_chunk_came = True
            self._begun()
        if self.is_encoded:
            return chunk
        sent = self._sent
        if sent is not None:
            chunk = sent.feed(chunk)
            self.is_cut_off = sent.is_broken
        self._usage.feed(chunk)
        return chunk if self._names is None else self._names.feed(chunk)

    def further_pieces(self) -> Callable[[bytes], None] | None:
        """Return what takes the pieces behind the first one, which reach the client as they are;
        None if `on_chunk` must be called with them."""
        is_plain = self._sent is None and self._names is None and not self.is_encoded
        return self._usage.feed if is_plain else None

    def on_end(self) -> bytes:
        """The answer has come to its end; return what of it was kept back."""
        return b"" if self._names is None or self.is_encoded else self._names.end()

    def _begun(self) -> None:
        """The answer has begun. Its prompt is not sent again, and is let go: an answer of minutes
        need not keep megabytes."""
        self.record.begun_at = self._host.clock()
        attempt = self._attempt
        if attempt is not None:
            attempt.body = b""
            if self.matched:
                attempt.has_begun_to_answer(self._host.later)
        for listener in self._listeners:
            listener.on_first_chunk(self._host.clock())
        self.body = self.known_body = b""
        self.matched = {}
        self.routed = None
        if self.prefill is not None:
            self.prefill.body = b""

    def close(self, outcome: str) -> None:
        """End the journey: free what `attempt` took, and call the listeners. Only the first call
        counts."""
        if self.closed:
            return
        self.closed = True
        attempt = self._attempt
        if attempt is not None:
            attempt.end()  # first: what it took is given back, whatever the answer holds
        if self.prefill is not None:
            self.prefill.close()
        record = self.record
        record.outcome = outcome
        if outcome == "ok":
            self.losses.answered()
        if self.stream is not None:
            self.stream.ended(is_lost=outcome == "upstream_error" and self._first_chunk_came)
        record.usage = usage = self._usage.usage()
        if usage is not None and self.tells_its_reuse is False:  # but of a part of it
            record.usage = usage = Usage(usage.prompt, usage.completion)
        if attempt is not None:
            endpoint = attempt.target.endpoint
            if (
                usage is not None
                and usage.cached is not None
                and self.tells_its_reuse
                and not attempt.is_moved  # then it is what the other engine had in its cache
            ):
                tokens = self._host.stats.tokens_of(endpoint.engine)
                tokens.told(attempt.prompt_tokens, attempt.reused_tokens, usage.cached)
            if outcome == "upstream_error":
                self.suspect(endpoint)
        if self._listeners:
            ending = RequestOutcome(outcome, self._host.clock(), usage, record.is_streamed)
            for listener in self._listeners:
                listener.on_end(ending)

    def suspect(self, endpoint: Endpoint) -> None:
        """Note that the endpoint has failed this request."""
        host = self._host
        host.fleet.suspect(endpoint)
        if self.shape is None and host.gate is not None:
            host.gate.failed_beside(endpoint.engine)
