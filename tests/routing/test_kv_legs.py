"""Which requests have two legs, and for how long a reference is good."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.routing.test_director import TwoEngines, chat, director, open_chat
from tests.routing.test_tokens_once import Taking

from inferway.config import KvTransferSettings
from inferway.model import Candidates, Endpoint, KvConnector, KvTransfer, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import parse_chat
from inferway.routing.director import Director
from inferway.routing.journey import Journey
from inferway.routing.kv_legs import KvLegs, build_legs, can_hand_over
from inferway.routing.prefill_leg import PrefillLeg
from inferway.routing.tokens_once import TokensOnce
from inferway.scheduling.scheduling import Scheduling

TEXT = "abcdefghijkl"
NIXL = KvTransfer(KvConnector.NIXL, group="g")
HEADER = (b"x-prefiller-host-port", b"e1")
BODY = parse_chat(chat(TEXT))


def endpoint(name: str, transfer: KvTransfer | None = NIXL) -> Endpoint:
    return Endpoint(name, f"http://{name}", int(name[1:]), kv_transfer=transfer)


def result(decode: Endpoint, *prefill: Endpoint) -> SchedulingResult:
    targets = tuple([Target(each, 0.0, 0, 0) for each in prefill])
    return SchedulingResult((Target(decode, 0.0, 0, 0),), ((b"x-other", b"1"),), prefill=targets)


@pytest.mark.parametrize(
    ("by", "known", "told", "asked"),
    [
        ("off", True, False, False),
        ("sidecar", True, True, False),
        ("sidecar", False, True, False),
        ("gateway", True, False, True),
        ("gateway", False, False, False),
        ("auto", True, False, True),
        ("auto", False, True, False),
    ],
)
def test_who_asks_the_prefill_engine(by: Any, known: bool, told: bool, asked: bool) -> None:
    transfer = NIXL if known else None
    choice = result(endpoint("e0", transfer), endpoint("e1", transfer))

    headers, prefill = KvLegs(by).split(choice, BODY)

    assert (HEADER in headers, bool(prefill)) == (told, asked)
    assert (b"x-other", b"1") in headers


def test_a_picker_asks_nobody_itself() -> None:
    assert build_legs(KvTransferSettings(), picks=True).by == "sidecar"
    assert build_legs(KvTransferSettings(legs="gateway"), picks=True).by == "sidecar"
    assert build_legs(KvTransferSettings(legs="off"), picks=True).by == "off"
    assert build_legs(KvTransferSettings(), picks=False).by == "auto"


@pytest.mark.parametrize(
    ("gives", "takes"),
    [
        (KvTransfer(KvConnector.NIXL, group="other"), NIXL),
        (KvTransfer(KvConnector.NIXL_PUSH, group="g"), NIXL),
        (KvTransfer(KvConnector.NIXL, group="g", gives=False), NIXL),
        (NIXL, KvTransfer(KvConnector.NIXL, group="g", takes=False)),
        (NIXL, None),
        (None, NIXL),
        (KvTransfer(KvConnector.MOONCAKE), KvTransfer(KvConnector.MOONCAKE)),
        (KvTransfer(KvConnector.SGLANG, bootstrap="h"), KvTransfer(KvConnector.SGLANG)),
    ],
)
def test_engines_that_cannot_hand_over(gives: KvTransfer | None, takes: KvTransfer | None) -> None:
    assert not can_hand_over(endpoint("e1", gives), endpoint("e0", takes))


def test_engines_that_can() -> None:
    room = KvTransfer(KvConnector.SGLANG, bootstrap="h:8998")
    assert can_hand_over(endpoint("e1"), endpoint("e0"))
    assert can_hand_over(endpoint("e1", room), endpoint("e0", KvTransfer(KvConnector.SGLANG)))
    assert not can_hand_over(endpoint("e0"), endpoint("e0"))  # vLLM fails there


def test_only_engines_that_can_hand_over_are_asked() -> None:
    away = KvTransfer(KvConnector.NIXL, group="other")
    choice = result(endpoint("e0"), endpoint("e1"), endpoint("e2", away), endpoint("e3"))

    assert [each.endpoint.engine for each in KvLegs("auto").split(choice, BODY)[1]] == ["e1", "e3"]


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Split:
    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:  # noqa: ARG002
        decode, prefill = (Target(each, 1.0, 0, 3) for each in candidates.endpoints)
        return SchedulingResult((decode,), prefill=(prefill,))


def splitting(clock: Callable[[], float]) -> Director:
    to = director(TwoEngines(endpoints=[endpoint("e0"), endpoint("e1")]))
    to.scheduling, to.clock, to.legs = Scheduling(Split()), clock, KvLegs("auto")
    return to


async def sent(to: Director, body: bytes | None = None) -> tuple[Journey, PrefillLeg]:
    journey = open_chat(to, body or chat(TEXT))
    decision = await journey.decide()
    leg = journey.split()
    assert leg.attempt(decision.prefill[0]) is not None
    return journey, leg


def returned(**fields: object) -> bytes:
    reference = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": "id",
        "remote_request_id": "r",
        "remote_host": "e1",
        "remote_port": 1,
        **fields,
    }
    return json.dumps({"usage": {"prompt_tokens": 12}, "kv_transfer_params": reference}).encode()


@pytest.mark.parametrize(
    ("took", "age", "delay", "later", "moves"),
    [
        (0.0, 0.0, 0.0, 0.0, True),
        (600.0, 1.0, 2.0, 0.0, True),  # a long prompt: the lease begins with the answer
        (600.0, 24.9, 0.0, 0.0, True),
        (600.0, 25.0, 0.0, 0.0, False),  # the gateway stood still meanwhile
        (3.0, 600.0, 0.0, 0.0, True),  # it cannot have begun before it was sent
        (600.0, 23.0, 2.0, 0.0, False),  # the connection may take as long
        (600.0, 0.0, 0.0, 24.9, True),
        (600.0, 0.0, 0.0, 25.0, False),  # what happens after all that
    ],
)
async def test_a_reference_is_good_until_its_lease_is_nearly_over(
    took: float, age: float, delay: float, later: float, moves: bool
) -> None:
    clock = Clock()
    to = splitting(clock)
    journey, leg = await sent(to)
    clock.now += took
    leg.answered(returned(), age, delay, ("e1",))
    clock.now += later
    assert journey.routed is not None

    journey.attempt(journey.routed.decision.targets[0])

    assert journey.is_moved is moves
    assert (b"remote_block_ids" in journey.body) is moves
    journey.close("ok")


async def test_a_reference_serves_once_and_only_its_decode_engine() -> None:
    to = splitting(Clock())
    journey, leg = await sent(to)
    leg.answered(returned(), 0.0, 0.0, ("e1",))
    assert journey.routed is not None
    decode, other = journey.routed.decision.targets[0], journey.routed.decision.prefill[0]

    journey.attempt(other)
    assert not journey.is_moved
    journey.attempt(decode)
    assert journey.is_moved
    journey.attempt(decode)

    assert not journey.is_moved
    assert b"remote_block_ids" not in journey.body


async def test_both_legs_carry_the_prompt_s_ids() -> None:
    to = splitting(Clock())
    to.tokens_once = TokensOnce(Taking(), least=8)
    journey, leg = await sent(to)
    one = json.loads(leg.body)["kv_transfer_params"]
    leg.answered(returned(), 0.0, 0.0, ("e1",))
    assert journey.routed is not None
    journey.attempt(journey.routed.decision.targets[0])
    two = json.loads(journey.body)["kv_transfer_params"]

    ids = [ord(letter) for letter in TEXT]
    assert one["prompt_token_ids"] == two["prompt_token_ids"] == ids
    assert (one["do_remote_decode"], two["remote_engine_id"]) == (True, "id")
    assert (b"x-inferway-edited", b"kv_transfer_params, tokens") in journey.on_head(200)


async def test_what_is_refused_is_logged_once_and_without_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    to = splitting(Clock())
    for _ in range(2):
        _, leg = await sent(to)
        leg.answered(returned(remote_host="secret"), 0.0, 0.0, ("e1",))

    [record] = caplog.records
    assert "e1" in record.message
    assert "remote_host" in record.message
    assert "secret" not in record.message
    assert to.legs.prefills == {("e1", "malformed"): 2}


async def test_what_is_taken_is_given_back_whatever_happens() -> None:
    to = splitting(Clock())
    journey, _ = await sent(to)
    fleet = to.fleet
    assert isinstance(fleet, TwoEngines)
    assert fleet.booked.tolist() == [0, 1]

    journey.close("client_gone")

    assert fleet.booked.tolist() == [0, 0]
