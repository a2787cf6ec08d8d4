"""The table that says which request is sent next for an answer. No I/O.

Everything that decides how an answer is got stands in this file. `http/forward` tells the plan what
has happened, and does what the plan returns.

state      what the client has, and from whom the answer is to come
PREFILL    nothing; a prefill engine computes the prompt for the engine that is to answer
FETCHING   nothing; the engine that is to answer gets blocks of the prompt from a prefill engine
WAITING    nothing of this engine's answer; the engine computes what it does not have
PASSING    the head of this engine's answer, and what has come behind it
MOVING     the beginning; another engine is being chosen for the rest
OVER       all that it will get

`TABLE` has what is tried after each incident, in this order, until one is possible: a move, which
says what action it takes, or an action. The rest of an answer is got by a plan of its own: its
request may be tried at several engines, and its prompt be computed elsewhere, as that of any
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from inferway.errors import (
    InferwayError,
    MovedError,
    NoEndpointError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.model import Decision, Headers, Target
from inferway.routing.limits.failover import Failover, FailoverPolicy
from inferway.routing.limits.request_quarantine import EngineLosses
from inferway.routing.limits.slot import Slot
from inferway.routing.record import LegOutcome, Passed, Record

UNWELL = frozenset({502, 503, 504})  # what says that the engine is unwell (circuit_breaker)


class State(Enum):
    """The state of an answer (see the module)."""

    PREFILL, FETCHING, WAITING, PASSING, MOVING, OVER = range(6)


class Incident(Enum):
    """An incident at the engine that is to answer, or answers; of `PREFILL_...`, at the prefill
    engine."""

    REFUSED = auto()  # a head with a status of 4xx
    FAILED = auto()  # a head with a status of 5xx
    LOST = auto()  # no connection, its end before that of the answer, or no answer in time
    NO_BLOCKS = auto()  # it says that it has not got the blocks, or no engine has them any more
    GAVE_UP = auto()  # it says in the middle of a stream that it will not end it
    SILENT = auto()  # it answers no request any more (http.silent_engines)
    DRAINED = auto()
    FAULT = auto()  # ours
    SUSPENDED = auto()  # a refusal: it computes nothing until it is told to
    PREFILL_FAILED = auto()  # no answer of use, for whatever reason
    PREFILL_SILENT = auto()


class Action(Enum):
    """The next action for an answer."""

    SEND = auto()  # the request, to `attempts.target`, instead of what is under way there
    SEND_PREFILL = auto()  # the prefill leg, to `prefill_attempts.target`; the other one is let go
    LATER = auto()  # nothing now: another engine will get the request when its time comes
    HOLD = auto()  # have it decided anew, once engines are suspended no more
    GO_ON = auto()  # have the rest of the answer decided
    TELL = auto()  # the client, that no engine answers
    STAY = auto()  # by what is under way


class What(NamedTuple):
    """The details of an incident."""

    error: UpstreamError | None = None
    status: int = 0
    outcome: str = ""  # of a prefill leg
    why: str = "the blocks did not come"  # for the log, where neither error nor status says it
    may_wait: bool = False


class RequestLifecycle(Protocol):
    """The part of a decided request that all frontends drive (routing.journey.Journey)."""

    @property
    def body(self) -> bytes: ...
    @property
    def changes_length(self) -> bool: ...
    def pass_encoded(self) -> None: ...
    def attempt(self, target: Target) -> Headers: ...
    def on_head(self, status: int) -> Headers: ...
    def on_chunk(self, chunk: bytes) -> bytes: ...
    def on_end(self) -> bytes: ...
    def close(self, outcome: str) -> None: ...


class PlannedRequest(RequestLifecycle, Protocol):
    """A RequestLifecycle with what is needed to send it (routing.journey.Journey)."""

    record: Record
    losses: EngineLosses

    @property
    def is_moved(self) -> bool: ...
    @property
    def is_cut_off(self) -> bool: ...
    def split(self) -> PlannedLeg: ...
    def further_pieces(self) -> Callable[[bytes], None] | None: ...
    def give_up(self) -> bytes: ...


class PlannedLeg(Protocol):
    """The prefill legs of a request (routing.prefill_leg.PrefillLeg)."""

    body: bytes

    @property
    def is_at_once(self) -> bool: ...
    def bootstrap_to_ask(self, target: Target) -> str | None: ...
    def learn_engine_ids(self, target: Target, answer: bytes) -> bool: ...
    def attempt(self, target: Target) -> Headers | None: ...
    def answered(self, answer: bytes, age: float, delay: float, hosts: Sequence[str]) -> None: ...
    def failed(self, outcome: str) -> None: ...
    def decoded(self, outcome: str, why: object = None) -> None: ...
    def close(self) -> None: ...


class Continuation(Protocol):
    """The way in which another engine goes on with a streamed answer that has begun, should its
    engine be left (http.continued.ContinuedStream)."""

    error: InferwayError  # why the last engine was left

    def may_go_on(self, error: UpstreamError) -> bool:
        """Return whether another engine is to be asked for the rest, because of `error`."""

    def ask(
        self, go_on: Callable[[AnswerPlan], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Have it decided which engine is asked for the rest; one of both is called later."""

    def begins(self, status: int, headers: Headers) -> bool:
        """Return whether an answer with this head is a rest."""

    def feed(self, events: bytes) -> bytes:
        """Return events of the rest as the client gets them. Raises SeamError."""

    def ended(self, outcome: str) -> None:
        """Note how the whole answer has ended."""

    def last_word(self, error: BaseException) -> InferwayError:
        """Return what the client hears, because the rest did not come, or not all of it."""


class AnswerPlan:
    """The way to one answer. `over` must be called."""

    __slots__ = ("again", "attempts", "awaits_prefill", "continuation", "continues", "explain",
                 "journey", "leg", "passed", "prefill", "prefill_attempts", "sent_at",
                 "state")  # fmt: skip

    prefill_attempts: Failover | None  # None: no prefill engine has room; from `split` on
    awaits_prefill: bool  # a prefill engine has the prompt, and has not answered; from `split` on
    continuation: Continuation  # since the answer goes on

    def __init__(
        self,
        journey: PlannedRequest,
        decision: Decision,
        policy: FailoverPolicy,
        slot: Slot | None = None,
        *,
        explain: bool = True,
        passed: Passed | None = None,
        continues: Callable[[], Continuation] | None = None,
        again: Callable[[InferwayError], None] | None = None,
    ) -> None:
        """`slot` is left when all is over; None: nothing is limited. `explain`: the client is told
        how it was decided, else no error names an engine. `passed` hears of the events of a stream.
        `continues`: returns by what another engine goes on with the answer, should it be left when
        it has begun; None: it ends with its engine. `again` has the request decided anew, which a
        suspended engine has refused with this error; None: the client gets the refusal. Raises
        NoEndpointError, with the journey closed, if the decision has no target."""
        if not decision.targets:
            journey.close("error")
            if slot is not None:
                slot.leave()
            raise NoEndpointError("the decision has no target")
        self.journey = journey
        self.attempts = Failover(decision.targets, policy, slot, journey.losses)
        self.prefill = decision.prefill
        self.explain = explain
        self.passed = passed
        self.continues = continues
        self.again = again
        self.state = State.WAITING
        self.leg: PlannedLeg | None = None  # None: the engine that answers computes the prompt
        self.sent_at = 0.0

    def split(self) -> Action:
        """Begin with a prefill leg; return what is sent first."""
        self.leg = self.journey.split()
        self.prefill_attempts = self.attempts.beside(self.prefill)
        self.awaits_prefill = self.prefill_attempts is not None
        if self.prefill_attempts is None:
            self.leg.failed(LegOutcome.FULL)
            return Action.SEND
        self.state = State.PREFILL
        return Action.SEND_PREFILL

    def sending(self, now: float) -> Headers:
        """Note that the request is sent to `attempts.target` now; return the headers that the
        engine needs."""
        self.sent_at, journey = now, self.journey
        headers = journey.attempt(self.attempts.target)
        is_moved = self.leg is not None and journey.is_moved
        self.state = State.FETCHING if is_moved else State.WAITING
        return headers

    def prefilled(self, answer: bytes, age: float, delay: float, hosts: Sequence[str]) -> Action:
        """The prefill engine has computed the prompt; return what is to be done. The arguments are
        those of `PrefillLeg.answered`."""
        assert self.leg is not None
        assert self.prefill_attempts is not None
        self.awaits_prefill = False
        self.prefill_attempts.succeeded()
        self.leg.answered(answer, age, delay, hosts)
        self.prefill_attempts.over()
        return Action.SEND if self.state is State.PREFILL else Action.STAY

    def after(self, incident: Incident, what: What) -> Action:
        """Return what is to be done after the incident."""
        attempts: Failover | None = self.attempts
        if incident in (Incident.PREFILL_FAILED, Incident.PREFILL_SILENT):
            attempts, self.awaits_prefill = self.prefill_attempts, False
        is_failure = (
            incident in (Incident.LOST, Incident.GAVE_UP, Incident.PREFILL_FAILED) and what.error
        )
        if attempts is not None and (is_failure or what.status in UNWELL):
            attempts.failed(what.error)
        for move in TABLE[self.state, incident]:
            action = move if isinstance(move, Action) else move(self, what)
            if action is not None:
                return action
        raise AssertionError(f"nothing is left to do after {incident} in {self.state}")

    def silent(self, error: UpstreamError, engine: str, *, may_wait: bool) -> Action | None:
        """Return what is to be done as the engine answers no request any more; None if the answer
        does not come from it."""
        if self.leg is not None and self.state in (State.PREFILL, State.FETCHING):
            attempts = self.prefill_attempts
            if attempts is not None and attempts.engine == engine:
                incident = Incident.PREFILL_SILENT if self.awaits_prefill else Incident.NO_BLOCKS
                return self.after(incident, What(error, outcome=LegOutcome.FAILED))
        if self.state in (State.MOVING, State.OVER) or self.attempts.engine != engine:
            return None
        return self.after(Incident.SILENT, What(error, may_wait=may_wait))

    def drained(self, error: MovedError, engine: str) -> Action:
        """Return what is to be done as the engine is drained, and has had its grace."""
        if self.state is not State.PASSING or self.attempts.engine != engine:
            return Action.STAY
        return self.after(Incident.DRAINED, What(error))

    def passes(self) -> None:
        """The client gets the head: from here on the answer is this engine's."""
        self.state = State.PASSING

    def client_gone(self) -> None:
        """The client has gone, and everything is over."""
        if self.state in (State.MOVING, State.OVER):
            self.state = State.OVER
            return
        if self.leg is not None and self.awaits_prefill:
            assert self.prefill_attempts is not None
            self.prefill_attempts.abandoned()
            self.leg.failed(LegOutcome.CLIENT_GONE)
        self.attempts.abandoned()
        self.over("client_gone")

    def over(self, outcome: str) -> None:
        """Give back all that was taken. Only the first call counts."""
        if self.leg is not None:
            if self.journey.is_moved and self.state is not State.OVER:
                self.leg.decoded(outcome)
            if self.prefill_attempts is not None:
                self.prefill_attempts.over()
        self.state = State.OVER
        self.attempts.over()
        self.journey.close(outcome)

    def withdraw(self, outcome: str, what: What) -> None:
        """Take back the request that waits for blocks, if there is one."""
        if self.state is State.FETCHING and self.leg is not None:
            told = f"it answered with status {what.status}" if what.status else what.why
            self.leg.decoded(outcome, what.error or told)
            if outcome == LegOutcome.RECOMPUTED:
                self.leg.close()
                self.awaits_prefill = False


Move = Callable[[AnswerPlan, What], Action | None]


def next_engine(plan: AnswerPlan, what: What) -> Action | None:
    """Try the next engine of the decision, within the budget of further tries. An engine that did
    not answer in time is replaced only if it has not answered anybody since: then it is lost."""
    is_late = isinstance(what.error, UpstreamTimeoutError) and plan.state is State.WAITING
    if is_late and not plan.attempts.timed_out(plan.sent_at):
        return None
    return _at(plan, plan.attempts.another(), what)


def next_for_status(plan: AnswerPlan, what: What) -> Action | None:
    """Try the next engine, if `retries.statuses` has the status of the answer."""
    return _at(plan, plan.attempts.instead_of(what.status), what)


def next_if_unwell(plan: AnswerPlan, what: What) -> Action | None:
    """Try the next engine, if the status says that this one is unwell, and not the blocks."""
    return next_for_status(plan, what) if what.status in UNWELL else None


def elsewhere(plan: AnswerPlan, what: What) -> Action | None:
    """Try the next engine of the decision that is not silent, whatever the budget."""
    return _at(plan, plan.attempts.elsewhere(), what)


def again(plan: AnswerPlan, what: What) -> Action | None:
    """Ask the same engine once more, without blocks."""
    plan.attempts.again()
    return _at(plan, plan.attempts.target, what)


def _at(plan: AnswerPlan, target: Target | None, what: What) -> Action | None:
    if target is None:
        return None
    plan.withdraw(LegOutcome.RECOMPUTED, what)
    return Action.SEND


def elsewhere_later(plan: AnswerPlan, _: What) -> Action | None:
    """Note the next engine that is not silent: the request is sent there once its prompt is
    computed."""
    return None if plan.attempts.elsewhere() is None else Action.LATER


def next_prefill(plan: AnswerPlan, what: What) -> Action | None:
    """Try the next prefill engine of the decision, within the budget of further tries."""
    attempts = plan.prefill_attempts
    if attempts is None or what.outcome != LegOutcome.FAILED:
        return None
    lost = what.error is not None
    return _prefill_at(plan, attempts.another() if lost else attempts.instead_of(what.status))


def prefill_elsewhere(plan: AnswerPlan, _: What) -> Action | None:
    """Try the next prefill engine of the decision that is not silent."""
    attempts = plan.prefill_attempts
    return None if attempts is None else _prefill_at(plan, attempts.elsewhere())


def _prefill_at(plan: AnswerPlan, target: Target | None) -> Action | None:
    if target is None or plan.leg is None:
        return None
    plan.leg.failed(LegOutcome.FAILED)
    plan.withdraw(LegOutcome.OTHER_ENGINE, What())
    plan.state, plan.awaits_prefill = State.PREFILL, True
    return Action.SEND_PREFILL


def compute(plan: AnswerPlan, what: What) -> Action | None:
    """Have the engine that answers compute the prompt: it is asked once more if it waits for
    blocks."""
    note_prefill(plan, what)
    return Action.SEND if plan.state is State.PREFILL else again(plan, What())


def note_prefill(plan: AnswerPlan, what: What) -> Action | None:
    """Count the prefill leg, of which the answer needs nothing any more."""
    if plan.leg is not None and plan.prefill_attempts is not None:
        plan.leg.failed(what.outcome)
        plan.prefill_attempts.over()
    return Action.STAY


def tell_if_lethal(plan: AnswerPlan, what: What) -> Action | None:
    """Tell the client of the error, if so many engines were lost with the request that no other
    one gets it."""
    return Action.TELL if what.error is not None and plan.attempts.losses.are_too_many else None


def next_not_suspended(plan: AnswerPlan, what: What) -> Action | None:
    """Try the next engine of the decision that is not suspended, whatever the budget."""
    return _at(plan, plan.attempts.not_suspended(), what)


def hold(plan: AnswerPlan, _: What) -> Action | None:
    """Have the request decided anew; everything that was taken for it is given back."""
    if plan.again is None:
        return None
    plan.over("held")
    return Action.HOLD


def wait_or_tell(_: AnswerPlan, what: What) -> Action | None:
    """Wait for the silent engine, as long as the request may."""
    return Action.STAY if what.may_wait else Action.TELL


def go_on(plan: AnswerPlan, what: What) -> Action | None:
    """Have another engine go on with the answer, where its rest can be had right."""
    error = what.error
    continuation = None if plan.continues is None else plan.continues()
    if error is None or continuation is None or not continuation.may_go_on(error):
        return None
    plan.continuation = continuation
    is_moved = isinstance(error, MovedError)
    # what an engine is asked no more is not its fault: as if the client had gone
    plan.over("client_gone" if is_moved else "upstream_error")
    plan.state = State.MOVING
    if not is_moved:
        plan.attempts.moved_away()
    return Action.GO_ON


TABLE: Mapping[tuple[State, Incident], Sequence[Move | Action]] = {
    (State.PREFILL, Incident.PREFILL_FAILED): (tell_if_lethal, next_prefill, compute),
    (State.PREFILL, Incident.PREFILL_SILENT): (prefill_elsewhere, tell_if_lethal, compute),
    (State.PREFILL, Incident.SILENT): (elsewhere_later, Action.STAY),
    (State.PREFILL, Incident.FAULT): (Action.TELL,),
    (State.FETCHING, Incident.PREFILL_FAILED): (tell_if_lethal, next_prefill, compute),
    (State.FETCHING, Incident.PREFILL_SILENT): (prefill_elsewhere, tell_if_lethal, compute),
    (State.FETCHING, Incident.NO_BLOCKS): (again,),
    (State.FETCHING, Incident.REFUSED): (next_for_status, Action.STAY),
    (State.FETCHING, Incident.FAILED): (next_if_unwell, again),
    (State.FETCHING, Incident.LOST): (tell_if_lethal, next_engine, again),
    (State.FETCHING, Incident.SILENT): (elsewhere, wait_or_tell),
    (State.FETCHING, Incident.SUSPENDED): (next_not_suspended, hold, Action.STAY),
    (State.FETCHING, Incident.FAULT): (Action.TELL,),
    (State.WAITING, Incident.PREFILL_FAILED): (note_prefill,),
    (State.WAITING, Incident.REFUSED): (next_for_status, Action.STAY),
    (State.WAITING, Incident.FAILED): (next_for_status, Action.STAY),
    (State.WAITING, Incident.LOST): (next_engine, Action.TELL),
    (State.WAITING, Incident.SILENT): (elsewhere, wait_or_tell),
    (State.WAITING, Incident.SUSPENDED): (next_not_suspended, hold, Action.STAY),
    (State.WAITING, Incident.FAULT): (Action.TELL,),
    (State.PASSING, Incident.PREFILL_FAILED): (note_prefill,),
    (State.PASSING, Incident.LOST): (go_on, Action.TELL),
    (State.PASSING, Incident.GAVE_UP): (go_on, Action.STAY),
    (State.PASSING, Incident.SILENT): (go_on, wait_or_tell),
    (State.PASSING, Incident.DRAINED): (go_on, Action.STAY),
    (State.PASSING, Incident.FAULT): (Action.TELL,),
    (State.OVER, Incident.PREFILL_FAILED): (note_prefill,),
    (State.OVER, Incident.FAULT): (Action.STAY,),
}
