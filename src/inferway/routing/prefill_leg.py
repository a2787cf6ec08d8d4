"""The prefill legs of one request: a prompt that one engine computes for another. No I/O.

leg.attempt(target)          books the prefill engine, and makes the body that it gets
leg.answered(answer, ...)    what it returned, checked: the reference for the decode leg
leg.failed(outcome)          nothing came
leg.put_into(attempt)        the decode leg carries the reference, which serves once

A reference is kept for one decode engine, until the lease of its blocks is too near its end: after
that vLLM answers with other blocks, and keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import getrandbits
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from inferway.errors import BadReferenceError
from inferway.model import Endpoint, Headers, KvConnector, Target, block_size_of
from inferway.openai_api.kv_transfer import (
    NIXL_PREFILL,
    decode_body,
    prefill_body,
    read_reference,
    with_bootstrap,
)
from inferway.openai_api.usage import Usage, usage_of
from inferway.routing.attempt import Attempt
from inferway.routing.kv_legs import KvLegs
from inferway.routing.record import LegOutcome
from inferway_structured.decoding import UNREADABLE

if TYPE_CHECKING:
    from inferway.routing.journey import Host, Journey
    from inferway.scheduling.plugin import RequestListener

_HANDED_OVER_AT_ONCE = frozenset({KvConnector.MOONCAKE, KvConnector.SGLANG})


_ENGINES_FAULT = frozenset({LegOutcome.FAILED, LegOutcome.TIMED_OUT, LegOutcome.TOO_LARGE})


class _EngineId(msgspec.Struct):
    engine_id: str


_ENGINE_IDS = msgspec.json.Decoder(dict[int, _EngineId])


class _HeldReference(msgspec.Struct, frozen=True):
    """A reference to blocks, which one decode engine may get once."""

    params: bytes
    decode: Endpoint
    prefill: Target
    expires: float | None  # None: the prefill leg runs at the same time


class PrefillLeg:
    """The prefill legs of one request, one after the other. `close` must be called."""

    __slots__ = ("_attempt", "_decode", "_engine", "_host", "_ids", "_journey", "_legs",
                 "_listeners", "_reference", "_sent_at", "body", "connector")  # fmt: skip

    def __init__(
        self, journey: Journey, host: Host, legs: KvLegs, listeners: Sequence[RequestListener]
    ) -> None:
        """`journey` must be decided, and its prompt be known to go to its first target."""
        assert journey.routed is not None
        self._journey = journey
        self._host = host
        self._legs = legs
        self._listeners = listeners
        self._attempt: Attempt | None = None
        self._reference: _HeldReference | None = None
        self._decode = journey.routed.decision.targets[0].endpoint
        self._sent_at = 0.0
        self._ids: bytes | None = None  # of the prompt, as the prefill engine got them
        first = journey.routed.decision.prefill[0].endpoint
        self._engine = first.engine  # that was asked last, or was to be
        transfer = first.kv_transfer
        assert transfer is not None
        self.connector = transfer.connector
        self.body = b""  # that is sent

    @property
    def is_at_once(self) -> bool:
        """True if both legs are sent at the same time."""
        return self.connector in _HANDED_OVER_AT_ONCE

    def bootstrap_to_ask(self, target: Target) -> str | None:
        """Return the URL of the bootstrap server that must say first who `target` is: Mooncake's,
        whose engines have another id after each start. None if nothing is missing."""
        endpoint = target.endpoint
        if self.connector is not KvConnector.MOONCAKE or endpoint.name in self._legs.engine_ids:
            return None
        assert endpoint.kv_transfer is not None
        return f"http://{endpoint.kv_transfer.bootstrap}"

    def learn_engine_ids(self, target: Target, answer: bytes) -> bool:
        """Return whether the answer of a bootstrap server names the engine id of `target`."""
        try:
            found = _ENGINE_IDS.decode(answer).get(target.endpoint.rank or 0)
        except UNREADABLE:
            return False
        if found is None:
            return False
        self._legs.engine_ids[target.endpoint.name] = found.engine_id
        return True

    def attempt(self, target: Target) -> Headers | None:
        """Book a slot on `target`; a second attempt takes back the first. Return headers that the
        engine needs, None if the body cannot be edited."""
        journey, host, routed = self._journey, self._host, self._journey.routed
        assert routed is not None
        self._end_attempt()
        self._engine = target.endpoint.engine
        attempt = Attempt(
            *(target, journey.known_body, journey.matched, journey.goes_on),
            *(host.fleet, host.matcher.overlay),
        )
        self._attempt = attempt
        body, at_once = self._bodies(attempt, target.endpoint)
        if body is None:
            self._end_attempt()
            return None
        if at_once is not None:
            self._reference = _HeldReference(at_once, self._decode, target, None)
        self.body = body
        self._sent_at = now = host.clock()
        headers = target.endpoint.headers
        for listener in self._listeners:
            headers = (*headers, *(listener.on_prefill(target, now) or ()))
        return headers

    def _bodies(self, attempt: Attempt, prefill: Endpoint) -> tuple[bytes | None, bytes | None]:
        """Return the body of the prefill leg, and the parameters of a decode leg that is sent at
        the same time."""
        routed = self._journey.routed
        assert routed is not None
        assert prefill.kv_transfer is not None
        bootstrap = prefill.kv_transfer.bootstrap
        if self.connector is KvConnector.SGLANG:
            host, _, port = bootstrap.rpartition(":")
            members = b'"bootstrap_host":%b,"bootstrap_port":%d,"bootstrap_room":%d' % (
                *(msgspec.json.encode(host), int(port), getrandbits(63)),
            )
            return with_bootstrap(attempt.body, members), members
        params, at_once = NIXL_PREFILL, None
        if self.connector is KvConnector.MOONCAKE:
            transfer = f"xfer-{uuid4()}"
            params = _json(do_remote_decode=True, do_remote_prefill=False, transfer_id=transfer)
            at_once = _json(
                do_remote_prefill=True,
                do_remote_decode=False,
                transfer_id=transfer,
                remote_bootstrap_addr=f"http://{bootstrap}",
                remote_engine_id=self._legs.engine_ids.get(prefill.name, ""),
            )
        once = self._host.tokens_once
        self._ids = None if once is None else once.ids(routed, prefill, self._ids)
        return prefill_body(attempt.body, routed.request.body, params, self._ids), at_once

    def answered(self, answer: bytes, age: float, delay: float, hosts: Sequence[str]) -> None:
        """The prefill engine has computed the prompt. `age`: the answer began no more seconds ago;
        `delay`: the decode engine has the reference in so many seconds at most; `hosts`: where the
        engine's side channel may be."""
        journey, attempt = self._journey, self._attempt
        if attempt is None:  # the decode leg was answered meanwhile
            self._legs.prefilled(self._engine, LegOutcome.OK)
            return
        usage = usage_of(answer)
        attempt.has_begun_to_answer(self._host.later)
        if journey.tells_its_reuse:
            tokens = self._host.stats.tokens_of(attempt.target.endpoint.engine)
            tokens.sent(attempt.prompt_tokens, attempt.reused_tokens)
            if usage is not None and usage.cached is not None:
                tokens.told(attempt.prompt_tokens, attempt.reused_tokens, usage.cached)
        outcome = LegOutcome.OK if self.is_at_once else self._keep(answer, usage, age, delay, hosts)
        self._ended(outcome, usage)

    def _keep(
        self, answer: bytes, usage: Usage | None, age: float, delay: float, hosts: Sequence[str]
    ) -> str:
        """Keep the reference in the answer, if the decode leg may have it; return the outcome."""
        routed, attempt = self._journey.routed, self._attempt
        assert routed is not None
        assert attempt is not None
        transfer = attempt.target.endpoint.kv_transfer
        assert transfer is not None
        ours = routed.whole_prompt
        theirs = None if usage is None else usage.prompt
        num_tokens = theirs if ours is None else len(ours)
        cut = self._host.fleet.cut(attempt.target.endpoint.holder)
        try:
            params = read_reference(
                *(answer, (*transfer.hosts, *hosts), self.connector),
                num_tokens=num_tokens,
                block_size=None if cut is None else block_size_of(cut),
            )
        except BadReferenceError as e:
            self._legs.warn(attempt.target.endpoint.engine, e)
            return LegOutcome.MALFORMED
        if params is None:
            return LegOutcome.NO_PARAMETERS
        if theirs is not None and theirs != num_tokens:
            return LegOutcome.OTHER_PROMPT
        now = self._host.clock()
        began = max(self._sent_at, now - age)
        expires = began + transfer.lease_seconds - self._legs.lease_margin
        if now + delay >= expires:
            return LegOutcome.TOO_LATE
        self._reference = _HeldReference(params, self._decode, attempt.target, expires)
        return LegOutcome.OK

    def failed(self, outcome: str) -> None:
        """The prefill leg has ended without an answer of use, or was not sent."""
        self._reference = None
        if self._attempt is not None and outcome in _ENGINES_FAULT:
            self._journey.suspect(self._attempt.target.endpoint)
        self._ended(outcome, None)

    def _ended(self, outcome: str, usage: Usage | None) -> None:
        self._legs.prefilled(self._engine, outcome)
        if self._attempt is None:
            return
        self._end_attempt()
        now = self._host.clock()
        self._journey.record.prefill_seconds += now - self._sent_at
        for listener in self._listeners:
            listener.on_prefilled(now, usage, moved=outcome == LegOutcome.OK)

    def carries(self, endpoint: Endpoint) -> bool:
        """Return whether an attempt on `endpoint` carries the reference."""
        reference = self._reference
        if reference is None or reference.decode != endpoint:
            return False
        return reference.expires is None or self._host.clock() < reference.expires

    def put_into(self, attempt: Attempt) -> None:
        """Let a decode attempt carry the reference, which is gone then."""
        reference, self._reference = self._reference, None
        routed = self._journey.routed
        assert reference is not None
        assert routed is not None
        if self.connector is KvConnector.SGLANG:
            body, ids = with_bootstrap(attempt.body, reference.params), None
        else:
            once = self._host.tokens_once
            ids = None if once is None else once.ids(routed, attempt.target.endpoint, self._ids)
            body = decode_body(attempt.body, routed.request.body, reference.params, ids)
        attempt.is_moved = body is not None
        if body is not None:
            attempt.carry_transfer(body, with_tokens=ids is not None)
            self._journey.record.prefill_target = reference.prefill

    def decoded(self, outcome: str, why: object = None) -> None:
        """Count the decode leg with the reference: it was answered, or has failed; `why` is
        logged."""
        self._reference = None
        self._legs.decoded(outcome)
        if why is not None:
            self._legs.say_failed(self._decode.engine, why, self._host.clock())
        target = self._journey.record.prefill_target
        if outcome != LegOutcome.OK and target is not None:
            self._journey.record.prefill_target = None
            self._legs.engine_ids.pop(target.endpoint.name, None)

    def _end_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.end()

    def close(self) -> None:
        """Give back what is taken. Only the first call counts."""
        self._reference = None
        self._end_attempt()


def _json(**members: object) -> bytes:
    return msgspec.json.encode(members)
