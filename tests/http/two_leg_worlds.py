"""A gateway before scripted engines that compute prompts for each other: a real director, our
server and pool. What an engine returns is what two real ones with vLLM 0.32 have returned."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.http.clients import Answer, connected, post, serving
from tests.routing.test_director import TwoEngines, director
from tests.upstream.engines import (
    LAST_CHUNK,
    SSE_HEAD,
    Engine,
    Script,
    Seen,
    Talk,
    answer,
    chunk,
    raw,
    running,
)

from inferway.config import FlowSettings, RetrySettings, TimeoutSettings
from inferway.http.forward import forward
from inferway.http.message import Request
from inferway.http.request_queue import RequestQueue, Ticket
from inferway.http.responder import Responder
from inferway.model import (
    Candidates,
    Endpoint,
    Headers,
    KvConnector,
    KvTransfer,
    RequestHead,
    SchedulingResult,
    Target,
)
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.usage import Usage
from inferway.routing.answer_plan import AnswerPlan
from inferway.routing.director import Director
from inferway.routing.journey import Journey
from inferway.routing.kv_legs import KvLegs
from inferway.routing.limits.failover import FailoverPolicy, Retries
from inferway.scheduling.idle import idle
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway.scheduling.scheduling import Scheduling
from inferway.upstream.pool import Pool

TEXT = "abcdefgh"
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": TEXT}],
    "max_tokens": 64,
    "cache_salt": "tenant",
}
REFERENCE: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "0f4c6a7e",
    "remote_request_id": "chatcmpl-1-0a1b2c3d",
    "remote_host": "127.0.0.1",
    "remote_port": 4711,
    "tp_size": 1,
    "remote_num_tokens": 8,
    "transfer_mode": "pull",
}
USAGE = {"prompt_tokens": 8, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'
ERROR = b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"id":"x","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":8}}'
SERVER_ERROR = b"500 Internal Server Error"


def returned(reference: object = REFERENCE, usage: object = USAGE) -> Script:
    """What a prefill engine answers."""
    told = {"id": "x", "choices": [], "usage": usage, "kv_transfer_params": reference}
    return answer(json.dumps(told).encode())


def streamed(*events: bytes) -> Script:
    return raw(SSE_HEAD, *map(chunk, events), LAST_CHUNK)


def one_after_the_other(*scripts: Script) -> Script:
    """Answers the first request by the first script, and so on; the last one's for all others."""
    left = list(scripts)

    async def script(seen: Seen, talk: Talk) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(seen, talk)

    return script


class Fleet(TwoEngines):
    """As many engines as it is given."""

    def candidates(self, model: str) -> Candidates:  # noqa: ARG002
        candidates = idle(self.endpoints, 0)
        candidates.block_sizes[:] = candidates.cuts[:] = 4
        return candidates


@dataclass(frozen=True)
class Split:
    """Decodes at the first `decodes` endpoints; the others compute prompts for them."""

    decodes: int

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:  # noqa: ARG002
        targets = tuple([Target(each, 1.0, 0, 2) for each in candidates.endpoints])
        return SchedulingResult(targets[: self.decodes], prefill=targets[self.decodes :])


class Noting(RequestListener):
    """A follower that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def follow(self, *_: object) -> Noting:
        return self

    def on_prefill(self, target: Target, now: float) -> Headers:  # noqa: ARG002
        self.told.append(("prefill", target.endpoint.engine))
        return ((b"traceparent", b"of-the-leg"),)

    def on_prefilled(self, now: float, usage: Usage | None, *, moved: bool) -> None:
        del now
        self.told.append(("prefilled", usage and usage.cached, moved))

    def on_attempt(self, target: Target, now: float) -> Headers:  # noqa: ARG002
        self.told.append(("attempt", target.endpoint.engine))
        return ()

    def on_end(self, ending: RequestOutcome) -> None:
        self.told.append(("end", ending.outcome))


@dataclass
class World:
    """A gateway before engines that decode, `d0`, ..., and such that prefill, `p0`, ..."""

    decode: list[Engine]
    prefill: list[Engine]
    director: Director
    fleet: Fleet
    noted: Noting
    ask: Callable[..., Any]
    policy: FailoverPolicy
    queue: RequestQueue | None
    journeys: list[Journey] = field(default_factory=list)
    client: Any = None  # connected to it
    server: Any = None

    @property
    def prefills(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (_, outcome), number in self.director.legs.prefills.items():
            counts[outcome] = counts.get(outcome, 0) + number
        return counts

    @property
    def decodes(self) -> dict[str, int]:
        return self.director.legs.decodes

    def is_at_rest(self) -> bool:
        """Whether nothing is taken any more."""
        limiter = self.queue.limiter if self.queue is not None else None
        return (
            not self.fleet.booked.any()
            and self.policy.retries.active == self.policy.retries.retrying == 0
            and (limiter is None or (limiter.in_flight == 0 and not limiter.engines))
            and all(journey.closed for journey in self.journeys)
        )


@asynccontextmanager
async def world(
    decode: Sequence[Script],
    prefill: Sequence[Script],
    *,
    connector: KvConnector = KvConnector.NIXL,
    bootstrap: str = "",
    lease: float = 30.0,
    attempts: int = 3,
    timeouts: TimeoutSettings | None = None,
    in_flight: int | None = None,
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running(each)) for each in (*decode, *prefill)]
        transfer = KvTransfer(connector, lease_seconds=lease, bootstrap=bootstrap)
        names = [f"d{i}" for i in range(len(decode))] + [f"p{i}" for i in range(len(prefill))]
        fleet = Fleet(
            endpoints=[
                Endpoint(
                    name, engine.url, i, headers=((b"authorization", name.encode()),),
                    kv_transfer=transfer,
                )
                for i, (name, engine) in enumerate(zip(names, engines, strict=True))
            ],
            booked=np.zeros(len(names)),
        )  # fmt: skip
        noted = Noting()
        to = director(fleet)
        to.scheduling = Scheduling(Split(len(decode)), following=(noted,))
        to.legs = KvLegs("auto")
        pool = Pool(timeouts)
        stack.push_async_callback(pool.close)
        policy = FailoverPolicy(pool.time, retries=Retries(RetrySettings(attempts=attempts)))
        queue = None
        if in_flight is not None:
            settings = FlowSettings(engine_in_flight=in_flight)
            queue = RequestQueue(settings, lambda _: frozenset(names), pool.time)
        made = World(
            engines[: len(decode)], engines[len(decode) :], to, fleet, noted, print, policy, queue
        )

        async def handler(request: Request, responder: Responder) -> None:
            slot = None if queue is None else Ticket(queue, responder, "")
            journey = to.open(
                RequestHead("POST", request.path, "", request.headers), request.body, "id"
            )
            made.journeys.append(journey)
            decision = await journey.decide(slot)
            forward(request, responder, AnswerPlan(journey, decision, policy, slot=slot), pool)

        server = await stack.enter_async_context(serving(handler, timeouts=timeouts))
        made.server = server
        made.client = client = await stack.enter_async_context(connected(server))

        async def ask(path: str = "/v1/chat/completions", **fields: Any) -> Answer:
            body = json.dumps({**BODY, **fields}).encode()
            got: Answer = await client.ask(post(body, target=path.encode()))
            return got

        made.ask = ask
        yield made


def sent(engine: Engine, number: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(engine.seen[number].body)
    return body
