"""A request whose prompt one engine computes for another: the prefill leg, then the decode leg.

what happens                                     then
the prefill engine is lost, or answers 502, 503  the next one, within the budget of further tries
it says nothing any more (silent_engines)        the same; blocks that it holds are lost
it answers any other error, or not in time, or   the engine that answers computes the prompt
nothing that the decode engine may get
the decode leg fails before a piece with         once more without blocks, on the same engine; on
content: 5xx, an error event, a lost connection  another one if the connection was lost
two engines were lost while they had it, in any  the client hears of it, and nobody computes more
leg (request_quarantine)
the client goes away                             both are aborted; blocks that are kept for nobody
                                                 are free when their lease ends

With NIXL the prefill leg comes first, with Mooncake and SGLang both are sent at once. The decode
leg holds its place at its engine from the beginning, so that it never waits while a lease runs.

A stream's head is held back until a piece with content, while blocks of another engine are used:
vLLM answers 200, and with a role, before it has fetched them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from inferway.errors import (
    OurFaultError,
    SilentEngineError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.http.ends import RequestLifecycle
from inferway.http.forward import UNWELL, Forwarding
from inferway.http.headers import request_lines
from inferway.model import Decision, Headers, Target
from inferway.openai_api.token_events import bears_tokens
from inferway.routing.kv_legs import (
    AGAIN,
    ANSWERED,
    ELSEWHERE,
    FAILED,
    FULL,
    GONE,
    NO_BOOTSTRAP,
    NOT_EDITED,
    REFUSED,
    TIMED_OUT,
    TOO_LARGE,
)
from inferway.routing.limits.failover import Failover
from inferway.routing.prefill_leg import PrefillLeg
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.headers import header_block
from inferway.upstream.pool import Pool
from inferway_structured.sse import WholeEvents

MAX_ANSWER_BYTES = 8 << 20  # of a prefill engine: the block ids of a million tokens are 0.5 MB
_MAX_HELD_BYTES = 1 << 20  # of a stream without content
_ERROR = re.compile(rb'^(?:event: ?error\b|data: ?\{"error")', re.MULTILINE)
# Why a decode leg is sent again, where no status and no error says it.
_NO_BLOCKS = "the blocks did not come"
_ERROR_EVENT = "its stream began with an error"
# The prefill engine's answer must come as we can read it.
_NOT_FOR_PREFILL = frozenset({b"accept-encoding"})


class TwoLegJourney(RequestLifecycle, Protocol):
    """What two legs need of a journey (routing.journey.Journey)."""

    @property
    def is_moved(self) -> bool: ...
    def split(self) -> PrefillLeg: ...


class TwoLegs(Forwarding):
    """A request whose decision says where its prompt is computed (see the module)."""

    __slots__ = ("_answer", "_decode", "_held", "_held_bytes", "_is_over", "_prefill", "_tries")

    _journey: TwoLegJourney

    def begin(self, decision: Decision) -> None:
        self._decode = decision.targets[0]
        self._held: WholeEvents | None = None  # None: nothing is held back
        self._held_bytes = b""
        self._is_over = False
        self._answer: _CollectedAnswer | None = None  # of the prefill engine, while it is awaited
        self._tries: Failover | None = None
        self._prefill = self._journey.split()
        self._tries = self._attempts.beside(decision.prefill)
        if self._tries is None:
            self._compute(FULL)
        else:
            self._send_prefill(self._tries.target)

    # -------------------------------------------------------------------------- prefill leg

    def _send_prefill(self, target: Target) -> None:
        bootstrap = self._prefill.bootstrap_to_ask(target)
        if bootstrap is None:
            self._send_prefill_leg(target)
            return

        def answered(answer: _CollectedAnswer) -> None:
            self._answer = None
            if answer.status == 200 and self._prefill.learn_engine_ids(target, answer.body):
                self._send_prefill_leg(target)
            else:
                self._compute(NO_BOOTSTRAP)

        self._answer = _CollectedAnswer(self._pool, answered, self._lost)
        self._answer.send(bootstrap, "GET", b"/query", b"", b"")

    def _send_prefill_leg(self, target: Target) -> None:
        prefill, request = self._prefill, self._request
        extra = prefill.attempt(target)
        if extra is None:
            self._compute(NOT_EDITED)
            return
        dropped = _NOT_FOR_PREFILL | {name for name, _ in extra}
        lines = request_lines(request, dropped) + header_block(extra)
        self._answer = answer = _CollectedAnswer(self._pool, self._prefill_ended, self._lost)
        answer.send(target.endpoint.url, request.method, request.target, lines, prefill.body)
        if prefill.is_at_once:
            self.attempt(self._decode)

    def _prefill_ended(self, answer: _CollectedAnswer) -> None:
        """The prefill engine has answered, or will not."""
        assert self._tries is not None
        self._answer = None
        if 200 <= answer.status < 300 and not answer.outcome:
            self._tries.succeeded()
            delay = self._pool.timeouts.connect  # until the decode engine has it, at most
            self._prefill.answered(answer.body, answer.age, delay, answer.hosts)
            self._tries.over()
            if not self._prefill.is_at_once:
                self.attempt(self._decode)
        else:
            self._prefill_failed(answer)

    def _prefill_failed(self, answer: _CollectedAnswer) -> None:
        assert self._tries is not None
        another = None
        outcome = answer.outcome or (REFUSED if answer.status < 500 else FAILED)
        if answer.status in UNWELL or answer.error is not None:
            self._tries.failed(answer.error)
            if answer.error is not None and self._wants_blocks and self._is_given_up(answer.error):
                return
        if outcome == FAILED and self._wants_blocks:
            is_lost = answer.error is not None
            another = self._tries.another() if is_lost else self._tries.instead_of(answer.status)
        if another is None:
            self._compute(outcome)
        else:
            self._prefill.failed(outcome)
            if self._exchange is not None:
                self._withdraw(ELSEWHERE, _NO_BLOCKS)
            self._send_prefill(another)

    @property
    def _wants_blocks(self) -> bool:
        """Whether the decode leg has not been sent, or waits for blocks."""
        if self._is_over:
            return False
        return self._exchange is None or (self._is_moved and not self._responder.started)

    def _compute(self, outcome: str) -> None:
        """The engine that answers computes the prompt; it is asked once more if it waits for blocks
        that will not come."""
        self._prefill.failed(outcome)
        if self._tries is not None:
            self._tries.over()
        if not self._wants_blocks:
            return
        if self._exchange is None:
            self.attempt(self._decode)
        else:
            self._again(None, _NO_BLOCKS)

    # --------------------------------------------------------------------------- decode leg

    @property
    def _is_moved(self) -> bool:
        """Whether the decode leg that is under way uses blocks of another engine."""
        return self._journey.is_moved

    def attempt(self, target: Target) -> None:
        super().attempt(target)
        self._held, self._held_bytes = None, b""

    def _again(self, another: Target | None, why: object) -> None:
        """Send the decode leg once more, without blocks of another engine: to the same one, unless
        that is lost."""
        self._withdraw(AGAIN, why)
        self._drop_answer()
        if another is None:
            self._attempts.again()
        self.attempt(another or self._decode)

    def _withdraw(self, outcome: str, why: object) -> None:
        """Take back the decode leg that is under way."""
        self._stop_timer()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()
        self._prefill.decoded(outcome, why)

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        if status >= 500 and self._is_moved:
            another = None
            if status in UNWELL:
                self._attempts.failed()
                another = self._attempts.instead_of(status)
            self._again(another, f"it answered with status {status}")
            return
        super().on_head(status, headers, length)
        if self._events is not None and self._is_moved:
            self._held = WholeEvents()

    def on_chunk(self, chunk: bytes) -> None:
        if self._held is None:
            super().on_chunk(chunk)
            return
        self._held_bytes += chunk
        events = self._held.whole(chunk)
        if bears_tokens(events):
            super().on_chunk(self._let_go())
        elif _ERROR.search(events):
            self._again(None, _ERROR_EVENT)
        elif len(self._held_bytes) > _MAX_HELD_BYTES:
            super().on_chunk(self._let_go())

    def on_end(self, chunk: bytes) -> None:
        if self._held is not None:
            self._held_bytes += chunk
            events = self._held.whole(chunk) + self._held.rest()
            if _ERROR.search(events) and not bears_tokens(events):
                self._again(None, _ERROR_EVENT)
                return
            chunk = self._let_go()
        super().on_end(chunk)

    def on_error(self, error: UpstreamError) -> None:
        is_ours = isinstance(error, OurFaultError)
        if is_ours or self._is_over or self._responder.started or not self._is_moved:
            super().on_error(error)
            return
        self._exchange = None
        self._attempts.failed(error)
        if not self._is_given_up(error):
            self._again(self._attempts.another(), error)

    def _is_given_up(self, error: UpstreamError) -> bool:
        """Return whether the request is tried no more, for the engines that were lost with it: its
        client is told so."""
        if not self._attempts.losses.are_too_many:
            return False
        self._drop_exchange()
        self._give_up(error)
        return True

    def _lost(self, error: OurFaultError) -> None:
        """What came of the prefill leg is lost, by a fault of ours."""
        if self._exchange is not None:
            self._exchange.abort()
        if not self._is_over:
            self.on_error(error)

    def _let_go(self) -> bytes:
        held, self._held, self._held_bytes = self._held_bytes, None, b""
        return held

    def _hold_no_more(self) -> None:
        if self._held is None:
            super()._hold_no_more()
        else:
            self._timer = self._pool.loop.call_later(self._time_left(), self._too_late)

    # ---------------------------------------------------------------------------------------

    def engine_is_silent(self, error: SilentEngineError, *, may_wait: bool) -> bool | None:
        tries, engine = self._tries, error.engine
        if tries is not None and tries.engine == engine and self._wants_blocks:
            self._compute_elsewhere(tries, error)
            return True
        if self._exchange is None and self._attempts.engine == engine and not self._is_over:
            target = self._attempts.elsewhere()  # for the decode leg that is to come
            self._decode = target or self._decode
            return target is not None
        return super().engine_is_silent(error, may_wait=may_wait)

    def _compute_elsewhere(self, tries: Failover, error: SilentEngineError) -> None:
        """The prefill engine will not compute the prompt, nor hand over what it has computed."""
        answer, self._answer = self._answer, None
        if answer is None:
            self._again(None, error)
            return
        answer.drop()
        another = tries.elsewhere()
        if another is None:
            if not self._is_given_up(error):
                self._compute(FAILED)
            return
        self._prefill.failed(FAILED)
        if self._exchange is not None:
            self._withdraw(ELSEWHERE, _NO_BLOCKS)
        self._send_prefill(another)

    def _is_moved_away(self, error: UpstreamError) -> bool:
        if self._responder.started or not self._is_moved:
            return super()._is_moved_away(error)
        target = self._attempts.elsewhere()
        if target is not None:
            self._again(target, error)
        return target is not None

    def client_gone(self) -> None:
        if self._answer is not None and self._tries is not None:
            self._tries.abandoned()
            self._prefill.failed(GONE)
        super().client_gone()

    def _drop_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.drop()
        self._prefill.close()

    def over(self, outcome: str) -> None:
        self._is_over = True
        if self._is_moved:
            self._prefill.decoded(ANSWERED if outcome == "ok" else outcome)
        if self._tries is not None:
            self._tries.over()
        if outcome != "ok":
            self._drop_answer()  # else it is read to its end, as SGLang wants it
        super().over(outcome)


class _CollectedAnswer:
    """Sink of an answer that is collected, within limits of size and of time; `done` is called once
    with what has come, unless it is dropped before."""

    __slots__ = ("_done", "_exchange", "_lost", "_pieces", "_pool", "_size", "_timer",
                 "age", "error", "hosts", "outcome", "status")  # fmt: skip

    def __init__(
        self,
        pool: Pool,
        done: Callable[[_CollectedAnswer], None],
        lost: Callable[[OurFaultError], None],
    ) -> None:
        self._pool = pool
        self._lost = lost
        self._done: Callable[[_CollectedAnswer], None] | None = done  # None: it is over
        self._exchange: UpstreamRequest | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self.status = 0  # 0: no head has come
        self.age = 0.0  # seconds: the answer did not begin longer before its head was read
        self.hosts: Sequence[str] = ()  # where it came from
        self.outcome = ""  # why it is not whole; empty if it is
        self.error: UpstreamError | None = None

    @property
    def body(self) -> bytes:
        """The answer's body, as far as it has come."""
        return b"".join(self._pieces)

    def send(self, url: str, method: str, target: bytes, lines: bytes, body: bytes) -> None:
        """Send the request that is answered."""
        pool = self._pool
        self._timer = pool.loop.call_later(pool.timeouts.first_byte, self._too_late)
        self._exchange = pool.send(url, method, target, lines, body, self)

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        del headers
        self.status = status
        self.age = self._pool.unread
        assert self._exchange is not None
        self.hosts = self._exchange.hosts
        if length is not None and length > MAX_ANSWER_BYTES:
            self._stop(TOO_LARGE)

    def on_chunk(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_ANSWER_BYTES:
            self._stop(TOO_LARGE)

    def on_end(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._over()

    def on_error(self, error: UpstreamError) -> None:
        if isinstance(error, OurFaultError):
            self._done = None
            self._lost(error)
        self.error = error
        self.outcome = TIMED_OUT if isinstance(error, UpstreamTimeoutError) else FAILED
        self._over()

    def drop(self) -> None:
        """Let it go: `done` is not called."""
        self._done = None
        self._stop("")

    def _too_late(self) -> None:
        seconds = self._pool.timeouts.first_byte
        self.error = UpstreamTimeoutError(f"no whole answer came within {seconds:g} s")
        self._stop(TIMED_OUT)

    def _stop(self, outcome: str) -> None:
        self.outcome = outcome
        if self._exchange is not None:
            self._exchange.abort()
        self._over()

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, None
        if done is None:
            return
        try:
            done(self)
        except Exception as error:  # also from the timer, where nobody would hear of it
            assert self._exchange is not None
            self._exchange.crashed(error)
