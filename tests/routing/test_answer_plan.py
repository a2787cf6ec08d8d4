"""The table of answers: what is done after each incident in each state, and which state follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.slots import NotingSlot

from inferway.config import EjectionSettings, RetrySettings
from inferway.errors import (
    EngineLostError,
    MovedError,
    NoEndpointError,
    OurFaultError,
    SilentEngineError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.model import Decision, Endpoint, Headers, Reason, Target
from inferway.routing.answer_plan import (
    TABLE,
    Action,
    AnswerPlan,
    Continuation,
    Incident,
    PlannedRequest,
    State,
    What,
)
from inferway.routing.limits.failover import FailoverPolicy, Retries
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.limits.request_quarantine import EngineLosses
from inferway.routing.record import LegOutcome

PREFILL, FETCHING, WAITING = State.PREFILL, State.FETCHING, State.WAITING
PASSING, MOVING, OVER = State.PASSING, State.MOVING, State.OVER
SEND, SEND_PREFILL, LATER = Action.SEND, Action.SEND_PREFILL, Action.LATER
GO_ON, TELL, STAY = Action.GO_ON, Action.TELL, Action.STAY

LOST = What(EngineLostError("it is gone"))
UNREACHABLE = What(UpstreamError("cannot connect"))
LATE = What(UpstreamTimeoutError("not in time"))
FAULT = What(OurFaultError("ours"))
DRAINED = What(MovedError("it is drained"))
WAITS = What(SilentEngineError("d0", "silent"), may_wait=True)
WAITED = What(SilentEngineError("d0", "silent"))
REFUSED = What(UpstreamError("it scales"))
LEG_LOST = What(EngineLostError("it is gone"), outcome=LegOutcome.FAILED)
LEG_LATE = What(UpstreamTimeoutError("not in time"), outcome=LegOutcome.TIMED_OUT)
LEG_SILENT = What(SilentEngineError("p0", "silent"), outcome=LegOutcome.FAILED)


@dataclass
class Leg:
    """Prefill legs that note what they are told. Once one was answered, an attempt has blocks."""

    told: list[str] = field(default_factory=list)
    has_reference: bool = False

    def answered(self, answer: bytes, age: float, delay: float, hosts: Sequence[str]) -> None:
        del answer, age, delay, hosts
        self.told.append("computed")
        self.has_reference = True

    def failed(self, outcome: str) -> None:
        self.told.append(f"prefill {outcome}")
        self.has_reference = False

    def decoded(self, outcome: str, why: object = None) -> None:
        del why
        self.told.append(f"decode {outcome}")
        self.has_reference = False

    def close(self) -> None:
        self.has_reference = False


@dataclass
class Request:
    """A request that notes where it is sent, and how it ends."""

    leg: Leg = field(default_factory=Leg)
    losses: EngineLosses = field(default_factory=EngineLosses)
    sent: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    is_moved: bool = False

    def split(self) -> Leg:
        return self.leg

    def attempt(self, target: Target) -> Headers:
        self.is_moved, self.leg.has_reference = self.leg.has_reference, False
        blocks = " with blocks" if self.is_moved else ""
        self.sent.append(f"{target.endpoint.engine}{blocks}")
        return ()

    def close(self, outcome: str) -> None:
        self.outcomes.append(outcome)


@dataclass
class May:
    """The way to go on with an answer, if there is one."""

    is_possible: bool

    def may_go_on(self, error: UpstreamError) -> bool:
        del error
        return self.is_possible


def plan_of(
    request: Request,
    decision: Decision,
    policy: FailoverPolicy,
    slot: NotingSlot,
    *,
    goes_on: bool = False,
) -> AnswerPlan:
    continues = cast(Callable[[], Continuation], lambda: May(goes_on))
    return AnswerPlan(cast(PlannedRequest, request), decision, policy, slot, continues=continues)


class World:
    """A plan with `decodes` engines d0, d1, ... that may answer, and prefill engines p0, p1, ..."""

    def __init__(
        self,
        state: State,
        *,
        others: bool = True,
        goes_on: bool = False,
        computes: bool = False,
        statuses: tuple[int, ...] = (502, 503),
    ) -> None:
        """`others`: engines beside the first of each kind. `computes`: a prefill engine still does,
        while the engine that is to answer has the request."""
        number = 3 if others else 1
        decodes, prefills = (
            tuple(Target(Endpoint(f"{kind}{i}", "http://e", i), 1.0, 0, 0) for i in range(number))
            for kind in "dp"
        )
        self.standing = OutlierDetection(EjectionSettings(failures=1))
        retries = Retries(RetrySettings(statuses=statuses))
        self.policy = FailoverPolicy(lambda: 0.0, self.standing, retries)
        self.request, self.slot = Request(), NotingSlot()
        self.leg = self.request.leg
        has_leg = state in (PREFILL, FETCHING) or computes
        decision = Decision(decodes, Reason.KV_AWARE, (), prefills if has_leg else ())
        self.plan = plan = plan_of(
            *(self.request, decision, self.policy, self.slot), goes_on=goes_on
        )
        if has_leg:
            assert plan.split() is SEND_PREFILL
        if computes:
            self.leg.has_reference = state is FETCHING
        elif state is FETCHING:
            assert plan.prefilled(b"", 0.0, 0.0, ()) is SEND
        if state is not PREFILL:
            plan.sending(0.0)
        if state in (PASSING, OVER):
            plan.passes()
        if state is OVER:
            plan.over("ok")
        assert plan.state is state
        self.request.sent.clear()
        self.leg.told.clear()

    def lose(self, engine: str) -> None:
        """The request was at this engine, too, when that was lost."""
        self.plan.attempts.losses.lost(engine)


@pytest.mark.parametrize(
    ("state", "incident", "what", "action", "then"),
    [
        # a prefill engine computes the prompt
        (PREFILL, Incident.PREFILL_FAILED, LEG_LOST, SEND_PREFILL, PREFILL),
        (
            PREFILL,
            Incident.PREFILL_FAILED,
            What(status=503, outcome=LegOutcome.FAILED),
            SEND_PREFILL,
            PREFILL,
        ),
        (
            PREFILL,
            Incident.PREFILL_FAILED,
            What(status=500, outcome=LegOutcome.FAILED),
            SEND,
            PREFILL,
        ),
        (
            PREFILL,
            Incident.PREFILL_FAILED,
            What(status=400, outcome=LegOutcome.REFUSED),
            SEND,
            PREFILL,
        ),
        (PREFILL, Incident.PREFILL_FAILED, LEG_LATE, SEND, PREFILL),
        (PREFILL, Incident.PREFILL_SILENT, LEG_SILENT, SEND_PREFILL, PREFILL),
        (PREFILL, Incident.SILENT, WAITS, LATER, PREFILL),
        (PREFILL, Incident.SILENT, WAITED, LATER, PREFILL),
        (PREFILL, Incident.FAULT, FAULT, TELL, PREFILL),
        # the engine that is to answer gets blocks
        (FETCHING, Incident.NO_BLOCKS, What(), SEND, FETCHING),
        (FETCHING, Incident.REFUSED, What(status=400), STAY, FETCHING),
        (FETCHING, Incident.FAILED, What(status=500), SEND, FETCHING),
        (FETCHING, Incident.FAILED, What(status=503), SEND, FETCHING),
        (FETCHING, Incident.LOST, LOST, SEND, FETCHING),
        (FETCHING, Incident.LOST, LATE, SEND, FETCHING),
        (FETCHING, Incident.SILENT, WAITED, SEND, FETCHING),
        (FETCHING, Incident.SUSPENDED, REFUSED, SEND, FETCHING),
        (FETCHING, Incident.FAULT, FAULT, TELL, FETCHING),
        # it computes the prompt
        (WAITING, Incident.REFUSED, What(status=400), STAY, WAITING),
        (WAITING, Incident.FAILED, What(status=500), STAY, WAITING),
        (WAITING, Incident.FAILED, What(status=503), SEND, WAITING),
        (WAITING, Incident.LOST, LOST, SEND, WAITING),
        (WAITING, Incident.LOST, UNREACHABLE, SEND, WAITING),
        (WAITING, Incident.LOST, LATE, SEND, WAITING),
        (WAITING, Incident.SILENT, WAITS, SEND, WAITING),
        (WAITING, Incident.SILENT, WAITED, SEND, WAITING),
        (WAITING, Incident.SUSPENDED, REFUSED, SEND, WAITING),
        (WAITING, Incident.FAULT, FAULT, TELL, WAITING),
        # it answers
        (PASSING, Incident.LOST, LOST, GO_ON, MOVING),
        (PASSING, Incident.LOST, LATE, GO_ON, MOVING),
        (PASSING, Incident.GAVE_UP, UNREACHABLE, GO_ON, MOVING),
        (PASSING, Incident.SILENT, WAITS, GO_ON, MOVING),
        (PASSING, Incident.DRAINED, DRAINED, GO_ON, MOVING),
        (PASSING, Incident.FAULT, FAULT, TELL, PASSING),
    ],
)
def test_what_is_done_where_other_engines_can(
    state: State, incident: Incident, what: What, action: Action, then: State
) -> None:
    world = World(state, goes_on=True)

    assert (world.plan.after(incident, what), world.plan.state) == (action, then)


@pytest.mark.parametrize(
    ("state", "incident", "what", "action"),
    [
        (PREFILL, Incident.PREFILL_FAILED, LEG_LOST, SEND),
        (PREFILL, Incident.PREFILL_SILENT, LEG_SILENT, SEND),
        (PREFILL, Incident.SILENT, WAITED, STAY),
        (FETCHING, Incident.LOST, LOST, SEND),
        (FETCHING, Incident.FAILED, What(status=503), SEND),
        (FETCHING, Incident.SILENT, WAITS, STAY),
        (FETCHING, Incident.SILENT, WAITED, TELL),
        (WAITING, Incident.REFUSED, What(status=429), STAY),
        (WAITING, Incident.FAILED, What(status=503), STAY),
        (WAITING, Incident.SUSPENDED, REFUSED, STAY),
        (WAITING, Incident.LOST, LOST, TELL),
        (WAITING, Incident.SILENT, WAITS, STAY),
        (WAITING, Incident.SILENT, WAITED, TELL),
        (PASSING, Incident.LOST, LOST, TELL),
        (PASSING, Incident.GAVE_UP, UNREACHABLE, STAY),
        (PASSING, Incident.SILENT, WAITS, STAY),
        (PASSING, Incident.SILENT, WAITED, TELL),
        (PASSING, Incident.DRAINED, DRAINED, STAY),
    ],
)
def test_what_is_done_where_no_other_engine_can(
    state: State, incident: Incident, what: What, action: Action
) -> None:
    world = World(state, others=False)

    assert (world.plan.after(incident, what), world.plan.state) == (action, state)


@pytest.mark.parametrize(
    ("state", "incident", "what"),
    [
        (PREFILL, Incident.PREFILL_FAILED, LEG_LOST),
        (PREFILL, Incident.PREFILL_SILENT, LEG_SILENT),
        (FETCHING, Incident.LOST, LOST),
        (WAITING, Incident.LOST, LOST),
    ],
)
def test_a_request_that_two_engines_were_lost_with_is_tried_no_more(
    state: State, incident: Incident, what: What
) -> None:
    world = World(state)
    world.lose("another")

    assert world.plan.after(incident, what) is TELL


@pytest.mark.parametrize("state", [WAITING, PASSING, OVER])
def test_a_prefill_leg_that_fails_when_it_is_not_needed_is_counted(state: State) -> None:
    world = World(state, computes=True)

    assert world.plan.after(Incident.PREFILL_FAILED, LEG_LOST) is STAY
    assert (world.plan.state, world.leg.told) == (state, ["prefill failed"])


def test_both_legs_are_sent_again_if_the_prefill_engine_is_lost_meanwhile() -> None:
    world = World(FETCHING, computes=True)

    assert world.plan.after(Incident.PREFILL_FAILED, LEG_LOST) is SEND_PREFILL
    assert world.plan.prefill_attempts is not None
    assert (world.plan.state, world.plan.prefill_attempts.engine) == (PREFILL, "p1")
    assert world.leg.told == ["prefill failed", "decode other-engine"]


def test_blocks_that_a_silent_engine_holds_are_lost() -> None:
    world = World(FETCHING)
    error = SilentEngineError("p0", "silent")

    assert world.plan.silent(error, "p0", may_wait=True) is SEND
    world.plan.sending(0.0)
    assert (world.request.sent, world.leg.told) == (["d0"], ["decode recomputed"])


@pytest.mark.parametrize("state", [PREFILL, FETCHING, WAITING, PASSING])
def test_the_silence_of_an_engine_that_has_nothing_of_it_is_nothing_to_an_answer(
    state: State,
) -> None:
    error = SilentEngineError("e9", "silent")

    assert World(state).plan.silent(error, "e9", may_wait=False) is None


def test_a_decode_engine_that_is_silent_before_its_turn_does_not_get_the_request() -> None:
    world = World(PREFILL)

    assert world.plan.silent(SilentEngineError("d0", "silent"), "d0", may_wait=True) is LATER
    assert world.plan.prefilled(b"", 0.0, 0.0, ()) is SEND
    world.plan.sending(0.0)
    assert world.request.sent == ["d1 with blocks"]


def test_an_engine_that_has_answered_others_since_is_not_replaced_for_being_late() -> None:
    world = World(WAITING)
    world.standing.answered["d0"] = 1.0

    assert world.plan.after(Incident.LOST, LATE) is TELL


@pytest.mark.parametrize("status", [429, 500])
def test_statuses_that_are_configured_are_tried_elsewhere(status: int) -> None:
    world = World(WAITING, statuses=(status,))
    incident = Incident.REFUSED if status < 500 else Incident.FAILED

    assert world.plan.after(incident, What(status=status)) is SEND
    assert world.plan.attempts.engine == "d1"


@pytest.mark.parametrize(
    ("state", "engine", "action"),
    [(PASSING, "d0", GO_ON), (PASSING, "d1", STAY), (WAITING, "d0", STAY), (FETCHING, "d0", STAY)],
)
def test_only_answers_of_a_drained_engine_that_have_begun_go_elsewhere(
    state: State, engine: str, action: Action
) -> None:
    world = World(state, goes_on=True)

    assert world.plan.drained(MovedError("drained"), engine) is action


@pytest.mark.parametrize(
    ("what", "outcome", "moved"), [(LOST, "upstream_error", 1), (DRAINED, "client_gone", 0)]
)
def test_who_goes_on_ends_the_request_before(what: What, outcome: str, moved: int) -> None:
    world = World(PASSING, goes_on=True)

    world.plan.after(Incident.DRAINED if what is DRAINED else Incident.LOST, what)

    assert (world.request.outcomes, world.slot.left) == ([outcome], 1)
    assert world.standing.moved.get("d0", 0) == moved


@pytest.mark.parametrize("state", [PREFILL, FETCHING, WAITING, PASSING])
@pytest.mark.parametrize("outcome", ["ok", "client_gone"])
def test_all_that_was_taken_is_given_back_once(state: State, outcome: str) -> None:
    world = World(state)

    for _ in range(2):
        if outcome == "ok":
            world.plan.over("ok")
        else:
            world.plan.client_gone()

    assert world.plan.state is OVER
    assert set(world.request.outcomes) == {outcome}
    assert (world.policy.retries.active, world.slot.left) == (0, 1)
    gone = ["prefill client-gone"] if (state, outcome) == (PREFILL, "client_gone") else []
    decoded = [f"decode {outcome}"] if state is FETCHING else []
    assert world.leg.told == gone + decoded


def test_a_client_that_goes_while_an_engine_is_chosen_ends_the_answer() -> None:
    world = World(PASSING, goes_on=True)
    world.plan.after(Incident.LOST, LOST)

    world.plan.client_gone()

    assert (world.plan.state, world.request.outcomes) == (OVER, ["upstream_error"])


def test_a_prefill_leg_that_finds_no_room_is_not_sent() -> None:
    request = Request()
    targets = [Target(Endpoint(name, "http://e", i), 1.0, 0, 0) for i, name in enumerate("dp")]
    decision = Decision((targets[0],), Reason.KV_AWARE, (), (targets[1],))
    plan = plan_of(request, decision, FailoverPolicy(lambda: 0.0), NotingSlot({"p"}))

    assert (plan.split(), request.leg.told) == (SEND, ["prefill full"])
    plan.over("ok")


def test_a_decision_without_targets_gives_back_what_was_taken() -> None:
    request, slot = Request(), NotingSlot()

    with pytest.raises(NoEndpointError):
        plan_of(request, Decision((), Reason.KV_AWARE), FailoverPolicy(lambda: 0.0), slot)

    assert (request.outcomes, slot.left) == (["error"], 1)


def test_what_fails_counts_against_the_engine_unless_the_request_may_be_the_cause() -> None:
    for incident, what, counts in [
        (Incident.LOST, LOST, True),
        (Incident.FAILED, What(status=504), True),
        (Incident.FAILED, What(status=500), False),
        (Incident.REFUSED, What(status=400), False),
        (Incident.REFUSED, What(status=429), False),
        (Incident.FAULT, FAULT, False),
    ]:
        world = World(WAITING)
        world.plan.after(incident, what)
        assert ("d0" in world.standing.failures) is counts, incident


def test_a_refusal_by_a_suspended_engine_counts_against_nobody() -> None:
    world = World(WAITING)

    assert world.plan.after(Incident.SUSPENDED, REFUSED) is SEND
    assert (world.standing.failures, world.request.losses.number) == ({}, 0)


def test_each_state_has_its_rows() -> None:
    assert {state for state, _ in TABLE} == set(State) - {MOVING}
