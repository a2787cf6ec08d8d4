"""One request's stream: Envoy's messages in, answers out. No I/O, no clock, no waiting.

state      request_headers  request_body     request_trailers  response_*
START      -> BODY, or ASK
BODY                        kept; at its end -> ASK
ASK        what the driver has to find out is in `ask`; then `decided` or `refused`
DECIDED                     ignored, or passed on              passed on; at its end -> OVER
OVER       nothing is answered any more; the stream may be closed: request and answer were passed on

A stream is never closed before: llm-d does so where nobody wants to see the answer, but one that
begins before Envoy has seen the close reaches the client with its head, and an empty body (105 of
300 with Envoy 1.40 and an engine that answers at once).

The headers' answer is held until the body is complete: the pick needs it, and Envoy goes on sending
meanwhile. So the mode must be full duplex: in another, Envoy waits for the headers' answer, and we
for the body.

Ends of a body: end_of_stream, or trailers; what comes after it is ignored (Envoy 1.35 to 1.37 may
send a large body's end twice). Where a connection is upgraded, Envoy keeps the stream open for what
both sides say later: CONNECT, and an offered upgrade without Content-Length, are decided by their
head, and a body with Content-Length as soon as it has come. What comes then is passed on.

A stream may end anywhere, cleanly or not; `close` frees what the request holds. Only a response
that has come to its end counts as answered; a stream that ends after the request phase (NGINX has
no response phase) frees its slot there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from inferway.errors import BodyTooLargeError, InferwayError, NoEndpointError
from inferway.http.headers import ROUTING_HEADERS, ROUTING_PREFIXES, not_ours_alone
from inferway.http.message import CONTENT_ENCODING
from inferway.model import Endpoint, Headers, Target
from inferway.routing.answer_plan import RequestLifecycle
from inferway.telemetry.tracing import TRACESTATE
from inferway_llmd.ext_proc import answers
from inferway_llmd.ext_proc.messages import FULL_DUPLEX_STREAMED, NONE
from inferway_llmd.ext_proc.noted import Noted, new_request_id
from inferway_llmd.ext_proc.questions import Ask, Pick, Rules
from inferway_llmd.ext_proc.reading import (
    DESTINATION,
    client_of,
    headers_of,
    is_local_reply,
    request_head,
    served_of,
    served_words,
    status_of,
    subset_of,
)
from inferway_structured.answers import AnswerJudge
from inferway_structured.sse import content_coding, is_event_stream

_COST = "x-gateway-inference-request-cost"
_SEEN = (b"x-went-into-resp-headers", b"true")  # gateways' tests look for it
# Conformance tests of gateways choose the endpoint, and want to be told who has served.
_CHOSEN = b"test-epp-endpoint-selection"
_CONFORMANCE_SERVED = b"x-conformance-test-served-endpoint"
_ECHO = b"x-echo-set-header"


_WRONG_MODE = (
    "inference error: Internal - ext_proc filter: request_body_mode must be FULL_DUPLEX_STREAMED;"
    " in any other the proxy sends no body before its headers are answered, and the endpoint is"
    " picked by the body"
)


class _State(Enum):
    START = auto()
    BODY = auto()
    ASK = auto()
    DECIDED = auto()
    OVER = auto()


class ProcessingStream:
    """The messages of one stream, in order; see the module."""

    __slots__ = (
        "_address",
        "_answer_bytes",
        "_body",
        "_conformance",
        "_ended",
        "_failed",
        "_is_closed",
        "_is_open",
        "_journey",
        "_judge",
        "_length",
        "_names_request",
        "_pick",
        "_response_mode",
        "_rules",
        "_state",
        "_status",
        "_streams",
        "_subset",
        "_targets",
        "ask",
        "noted",
    )

    def __init__(self, rules: Rules) -> None:
        self.ask: Ask | None = None  # to be found out now
        self.noted = Noted()
        self._rules = rules
        self._state = _State.START
        self._body = bytearray()  # however small its pieces are, no more than they are
        self._ended = True  # the body, without trailers
        self._length: int | None = None  # of the body, as the head says
        self._is_open = False  # decided before the request's end: what comes is passed on
        self._journey: RequestLifecycle | None = None
        self._pick: Pick | None = None  # once there is one
        self._judge: AnswerJudge | None = None  # of an answer that is to have a shape
        self._status = 0
        self._streams = False  # the answer is a stream of events
        self._answer_bytes = 0
        self._targets: Sequence[Target] = ()
        self._address = ""  # of the target that has the slot
        self._failed = False  # the answer is none of an engine's
        self._conformance = False
        self._names_request = False  # its id is ours
        self._response_mode = FULL_DUPLEX_STREAMED
        self._is_closed = False

    @property
    def over(self) -> bool:
        """True if the stream can be closed."""
        return self._state is _State.OVER

    def receive(self, message: Any) -> Sequence[bytes]:
        """Return the answers to a message, in order."""
        answer = _ANSWERED.get(message.WhichOneof("kind"))
        return () if answer is None else answer(self, message)

    # -------------------------------------------------------------------------- the request

    def _request_headers(self, message: Any) -> Sequence[bytes]:
        if self._state is not _State.START:
            return ()
        received = message.request_headers
        self.noted.head = head = request_head(headers_of(received.headers))
        self.noted.fields = fields = dict(head.headers)
        self.noted.client = client_of(message)
        self._subset = subset_of(message) if self._rules.heed_subset else None
        bodiless = received.end_of_stream
        if message.HasField("protocol_config"):
            self._response_mode = message.protocol_config.response_body_mode
            mode = message.protocol_config.request_body_mode
            if mode not in (FULL_DUPLEX_STREAMED, NONE):
                return self._over(500, answers.immediate(500, _WRONG_MODE))
            bodiless = bodiless or mode == NONE
        if bodiless:
            self._asks(None)
            return ()
        self._state = _State.BODY
        length = fields.get(b"content-length", b"")
        self._length = int(length) if length.isdigit() else None
        if self._length is None and (head.method == "CONNECT" or b"upgrade" in fields):
            self._asks_early(None)
        return ()

    def _request_body(self, message: Any) -> Sequence[bytes]:
        received = message.request_body
        if self._is_open:
            return self._pass_on(received.body, ended=received.end_of_stream)
        if self._state is not _State.BODY:
            return ()
        self._body += received.body
        if len(self._body) > self._rules.max_body_bytes:
            return self.refused(self._too_large())
        if received.end_of_stream:
            self._asks(bytes(self._body))
        elif len(self._body) == self._length:
            self._asks_early(bytes(self._body))
        return ()

    def _asks_early(self, body: bytes | None) -> None:
        """Ask although the request may go on."""
        self._is_open = True
        self._ended = False
        self._asks(body)

    def _pass_on(self, body: bytes, *, ended: bool) -> Sequence[bytes]:
        """Return what the proxy is to send of what comes behind an early decision; what comes
        before that is kept."""
        if self._state is _State.ASK:
            self._body += body
            self._ended = ended
            if len(self._body) > self._rules.max_body_bytes:
                return self.refused(self._too_large())
            return ()
        self._is_open = not ended
        return tuple(answers.request_pieces(body, ended=ended))

    def _too_large(self) -> BodyTooLargeError:
        limit = self._rules.max_body_bytes
        return BodyTooLargeError(f"body: over the limit of {limit} bytes (limits.body_bytes)")

    def _request_trailers(self, _: Any) -> Sequence[bytes]:
        if self._is_open and self._state is _State.DECIDED:
            self._is_open = False
            return (answers.request_trailers(),)
        if self._state is _State.BODY:
            self._ended = False
            self._asks(bytes(self._body))
        self._is_open = False
        return ()

    def _asks(self, body: bytes | None) -> None:
        self._body.clear()
        self._state = _State.ASK
        fields = self.noted.fields
        given = fields.get(b"x-request-id", b"").decode("latin-1")
        self._names_request = not given
        self.noted.request_id = given or new_request_id()
        chosen = fields.get(_CHOSEN) if self._rules.conformance else None
        if chosen:
            self._conformance = True
            self._subset = frozenset(chosen.decode("latin-1").replace(" ", "").split(","))
        self.ask = Ask(
            *(self.noted, body, self._subset),
            is_read=not self._conformance,
        )

    def decided(self, pick: Pick) -> Sequence[bytes]:
        """Return the answers to a request that was picked for. From now on its journey is the
        exchange's to close."""
        asked, self.ask = self.ask, None
        assert asked is not None
        self._pick, self._journey = pick, pick.journey
        if pick.shape is not None:
            self._judge = pick.shape.answer_judge()
        journey = pick.journey
        self._targets = targets = pick.targets[: self._rules.most_targets]
        if not targets:
            return self.refused(NoEndpointError("the decision has no target"))
        self._state = _State.DECIDED
        self._address = targets[0].endpoint.address
        told = list(journey.attempt(targets[0]))
        if self._names_request:
            told.append((b"x-request-id", asked.noted.request_id.encode()))
        if self._conformance:
            served = b"%b:%b" % (_CONFORMANCE_SERVED, self._address.encode())
            told.append((_ECHO, served))
        addresses = ",".join([target.endpoint.address for target in targets])
        body = None if asked.body is None else journey.body
        removed = _steering(asked.noted.head.headers) - {name for name, _ in told}
        if body and asked.is_read and CONTENT_ENCODING in asked.noted.fields:
            removed.add(CONTENT_ENCODING)  # the picker has decoded it
        if self.noted.span is not None and self.noted.span.is_root:
            removed.add(TRACESTATE)  # it is of another trace, or of none
        length = None if body is None else len(body)
        answered = [answers.request_headers(addresses, told, sorted(removed), length)]
        later = bytes(self._body)  # has come since it was asked
        if body is not None or later or (self._is_open and self._ended):
            answered += answers.request_pieces((body or b"") + later, ended=self._ended)
        self._is_open = self._is_open and not self._ended
        if not self._ended and not self._is_open:
            answered.append(answers.request_trailers())
        return answered

    def refused(self, error: InferwayError) -> Sequence[bytes]:
        """Return the answer to a request that no engine sees."""
        self.ask = None
        return self._over(answers.status_of_refusal(error), answers.refusal(error))

    def _over(self, status: int, answer: bytes) -> Sequence[bytes]:
        self._state = _State.OVER
        self._rules.counts.refusals[status] += 1
        self.noted.end("error" if status >= 500 else "refused", status, None)
        return [answer]

    # ------------------------------------------------------------------------- the response

    def _response_headers(self, message: Any) -> Sequence[bytes]:
        if self._state is _State.OVER:
            return ()
        received = message.response_headers
        self._status = status = status_of(received.headers)
        told: list[tuple[bytes, bytes]] = [_SEEN]
        removed: list[bytes] = []
        served = served_of(message)
        if self._journey is not None:
            self._note_served(served)
            self._streams = is_event_stream(headers_of(received.headers))
            self._failed = served is None and is_local_reply(status, received.headers)
            if content_coding(headers_of(received.headers)):
                self._journey.pass_encoded()
            decided = self._journey.on_head(status)
            told += decided if self._rules.explain else not_ours_alone(decided)
            if self._judge is not None:
                self._judge.start(status, headers_of(received.headers))
            if self._journey.changes_length:
                removed.append(b"content-length")
        if self._rules.conformance:
            told.append((_CONFORMANCE_SERVED, served_words(message, served)))
        if received.end_of_stream or self._response_mode == NONE:
            self._finish()  # before it is said: the stream may end as soon as it has been
        return [answers.response_headers(tuple(told), tuple(removed))]

    def _note_served(self, served: str | None) -> None:
        """The proxy has sent it elsewhere than to the first: that is who has the slot."""
        assert self._journey is not None
        if served is None or served == self._address:
            return
        known = [target for target in self._targets if target.endpoint.address == served]
        endpoint = None if known else self._rules.find(served)
        self._rules.counts.elsewhere += 1
        if known or endpoint is not None:
            self._address = served
            self._journey.attempt(known[0] if known else _unranked(endpoint))

    def _response_body(self, message: Any) -> Sequence[bytes]:
        if self._state is _State.OVER:
            return ()
        received = message.response_body
        body, ended = received.body, received.end_of_stream
        if self._journey is not None and self._pick is not None:
            if body:
                if self._streams:
                    self._pick.passed(body)
                self._answer_bytes += len(body)
                if self._judge is not None:
                    self._judge.feed(body)
                body = self._journey.on_chunk(body)
            if ended:
                body += self._journey.on_end()
        if self._response_mode == FULL_DUPLEX_STREAMED:
            answer = answers.response_piece(body, ended=ended)
        else:
            answer = answers.response_body(body, changed=body != received.body)
        if ended:
            answer += self._cost()
            self._finish()
        return [answer]

    def _response_trailers(self, _: Any) -> Sequence[bytes]:
        if self._state is _State.OVER:
            return ()
        rest = b"" if self._journey is None else self._journey.on_end()
        answered = [answers.response_piece(rest, ended=False)] if rest else []
        answered.append(answers.response_trailers() + self._cost())
        self._finish()
        return answered

    def _cost(self) -> bytes:
        """Return the frame of the request's cost, which is put behind the last answer."""
        if self._rules.cost is None or self._pick is None:
            return b""
        usage = self._pick.usage()
        if usage is None:
            return b""
        return answers.load_balancer_metadata({_COST: self._rules.cost(usage)})

    def _finish(self) -> None:
        self._state = _State.OVER
        if self._judge is not None and self._pick is not None and self._pick.shape is not None:
            self._pick.shape.judge_later(self._judge)
        self.close("upstream_error" if self._failed else "ok")

    def close(self, outcome: str = "client_gone") -> None:
        """The stream has ended: free what the request holds, and put the answer aside for
        extensions. Only the
        first call counts."""
        if self._is_closed:
            return
        self._is_closed = True
        noted, journey = self.noted, self._journey
        try:
            if journey is not None:
                self._journey = None
                outcome = noted.outcome or outcome
                journey.close(outcome)
                passed = self._response_mode != NONE
                noted.end(outcome, self._status, self._answer_bytes if passed else None)
        finally:
            if noted.counts is not None and noted.record is not None:
                noted.counts.ended(noted.record, noted.seconds, self._answer_bytes)
            if noted.is_answered:
                self._rules.tap.add(noted.as_ended())


_ANSWERED: Mapping[str | None, Callable[[ProcessingStream, Any], Sequence[bytes]]] = {
    "request_headers": ProcessingStream._request_headers,
    "request_body": ProcessingStream._request_body,
    "request_trailers": ProcessingStream._request_trailers,
    "response_headers": ProcessingStream._response_headers,
    "response_body": ProcessingStream._response_body,
    "response_trailers": ProcessingStream._response_trailers,
}


def _unranked(endpoint: Endpoint | None) -> Target:
    """Somebody we have not picked: nothing is known of what it holds of the prompt."""
    assert endpoint is not None
    return Target(endpoint, 0.0, 0, 0)


def _steering(headers: Headers) -> set[bytes]:
    """Return the headers by which a client would steer the fleet, and those that are only for
    us."""
    return {
        name
        for name, _ in headers
        if name != DESTINATION.encode()  # overwritten
        and (name in ROUTING_HEADERS or name.startswith(ROUTING_PREFIXES))
    }
