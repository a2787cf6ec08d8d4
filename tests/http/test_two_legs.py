"""Requests whose prompt one engine computes for another: real director, our pool, scripted
engines. What an engine returns is what two real ones with vLLM 0.32 have returned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
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
    in_loop,
    raw,
    running,
    wait_until,
)

from inferway.config import FlowSettings, RetrySettings, TimeoutSettings
from inferway.http.forward import forward
from inferway.http.message import Request
from inferway.http.request_queue import RequestQueue, Ticket
from inferway.http.responder import Responder
from inferway.http.two_legs import TwoLegs
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
        candidates.block_sizes[:] = 4
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
    client: Any = None

    @property
    def prefills(self) -> dict[str, int]:
        return self.director.legs.prefills

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
            forward(
                *(request, responder, journey, decision, pool),
                policy=policy,
                slot=slot,
                kind=TwoLegs if decision.prefill else None,
            )

        server = await stack.enter_async_context(serving(handler, timeouts=timeouts))
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


# ------------------------------------------------------------------------------- as it should go


@in_loop
async def test_one_engine_computes_the_prompt_and_another_answers() -> None:
    async with world([streamed(ROLE, TOKEN, DONE)], [returned()]) as w:
        got = await w.ask(stream=True, stream_options={"include_usage": True})

        assert (got.status, got.body) == (200, ROLE + TOKEN + DONE)
        assert got.values(b"x-inferway-engine") == [b"d0"]
        assert got.values(b"x-inferway-prefill-engine") == [b"p0"]
        assert got.values(b"x-inferway-edited") == [b"kv_transfer_params"]
        one, two = sent(w.prefill[0]), sent(w.decode[0])
        assert two["kv_transfer_params"] == REFERENCE
        assert one["kv_transfer_params"]["do_remote_decode"] is True
        assert (one["max_tokens"], one["stream"], one["stream_options"]) == (1, False, None)
        assert one["cache_salt"] == two["cache_salt"] == "tenant"
        assert (two["max_tokens"], two["stream"]) == (64, True)
        heads = [w.prefill[0].seen[0], w.decode[0].seen[0]]
        assert heads[0].values(b"x-request-id") == heads[1].values(b"x-request-id")
        assert [each.values(b"authorization") for each in heads] == [[b"p0"], [b"d0"]]
        assert heads[0].values(b"traceparent") == [b"of-the-leg"]
        assert (w.prefills, w.decodes) == ({"ok": 1}, {"ok": 1})
        assert w.noted.told == [
            ("prefill", "p0"),
            ("prefilled", 4, True),
            ("attempt", "d0"),
            ("end", "ok"),
        ]
        assert w.fleet.new_tokens == [8, 0]
        assert w.is_at_rest()


@in_loop
async def test_what_is_cached_is_the_prefill_engine_s() -> None:
    cached = WHOLE.replace(b"8}", b'8,"prompt_tokens_details":{"cached_tokens":4}}')
    async with world([answer(cached)], [returned()]) as w:
        await w.ask()

        tokens = w.director.stats.tokens
        assert (tokens["p0"].prompt, tokens["p0"].delivered) == (8, 4)
        assert "d0" not in tokens
        record = w.journeys[0].record
        assert record.usage == Usage(8, 0, 4)
        assert record.prefill_target is not None


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": TEXT}),
        ("/v1/responses", {"input": TEXT}),
        ("/v1/messages", {}),
    ],
)
@in_loop
async def test_every_path_has_two_legs(path: str, fields: dict[str, Any]) -> None:
    async with world([answer(WHOLE)], [returned()]) as w:
        got = await w.ask(path, **fields)

        assert (got.status, got.body) == (200, WHOLE)
        assert sent(w.decode[0])["kv_transfer_params"] == REFERENCE


@in_loop
async def test_a_request_that_one_engine_answers_alone_has_one_leg() -> None:
    async with world([answer(WHOLE)], [returned()]) as w:
        got = await w.ask(n=2)

        assert (got.status, w.prefill[0].seen, w.prefills) == (200, [], {})
        assert "kv_transfer_params" not in sent(w.decode[0])


# ------------------------------------------------------------------- the prefill engine fails


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (returned(None), "no-parameters"),
        (returned({"do_remote_prefill": True}), "malformed"),
        (returned({**REFERENCE, "remote_host": "10.1.2.3"}), "malformed"),
        (returned(usage={**USAGE, "prompt_tokens": 9}), "other-prompt"),
        (answer(b"not json"), "malformed"),
        (answer(b"bad", status=b"400 Bad Request"), "refused"),
        (answer(b"oops", status=SERVER_ERROR), "failed"),
        (answer(b"busy", status=b"503 Service Unavailable"), "failed"),
        (raw(close=True), "failed"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", close=True), "failed"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n{"), "too-large"),
    ],
)
@in_loop
async def test_without_a_reference_the_answering_engine_computes(
    script: Script, outcome: str
) -> None:
    async with world([answer(WHOLE)], [script]) as w:
        got = await w.ask()

        assert (got.status, got.body) == (200, WHOLE)
        assert got.values(b"x-inferway-prefill-engine") == []
        assert "kv_transfer_params" not in sent(w.decode[0])
        assert w.prefills == {outcome: 1}
        assert w.fleet.new_tokens == [8, 8]
        assert ("prefilled", None, False) in w.noted.told or outcome in (
            *("no-parameters", "malformed", "other-prompt"),
        )
        assert w.is_at_rest()


@pytest.mark.parametrize(
    "bad", [raw(close=True), answer(b"busy", status=b"503 Service Unavailable")]
)
@in_loop
async def test_another_engine_computes_the_prompt(bad: Script) -> None:
    async with world([answer(WHOLE)], [bad, returned()]) as w:
        got = await w.ask()

        assert got.values(b"x-inferway-prefill-engine") == [b"p1"]
        assert sent(w.decode[0])["kv_transfer_params"] == REFERENCE
        assert w.prefills == {"failed": 1, "ok": 1}
        assert w.policy.standing.failures == {"p0": 1}
        assert w.fleet.suspected[0] == "p0"
        assert w.is_at_rest()


@in_loop
async def test_no_more_engines_are_tried_than_may_be() -> None:
    async with world([answer(WHOLE)], [raw(close=True), returned()], attempts=1) as w:
        got = await w.ask()

        assert (got.status, w.prefill[1].seen, w.prefills) == (200, [], {"failed": 1})


@in_loop
async def test_a_prefill_engine_that_hangs_is_given_up() -> None:
    async with world([answer(WHOLE)], [raw()], timeouts=TimeoutSettings(first_byte=0.05)) as w:
        got = await w.ask()

        assert (got.status, w.prefills) == (200, {"timed-out": 1})
        await wait_until(lambda: w.prefill[0].open == 0)


@in_loop
async def test_a_reference_is_not_used_when_its_lease_is_nearly_over() -> None:
    async with world([answer(WHOLE)], [returned()], lease=5.0) as w:
        got = await w.ask()

        assert (got.status, w.prefills) == (200, {"lease": 1})
        assert "kv_transfer_params" not in sent(w.decode[0])


@in_loop
async def test_an_engine_without_room_computes_nothing_for_others() -> None:
    async with world([answer(WHOLE)], [returned()], in_flight=1) as w:
        assert w.queue is not None
        w.queue.limiter.move("", "p0")  # somebody else is there

        got = await w.ask()

        assert (got.status, w.prefill[0].seen, w.prefills) == (200, [], {})
        w.queue.limiter.free("p0")
        assert w.is_at_rest()


@in_loop
async def test_both_engines_are_held_for_as_long_as_they_work() -> None:
    held: list[dict[str, int]] = []

    async def noting(seen: Seen, talk: Talk) -> None:
        assert w.queue is not None
        held.append(dict(w.queue.limiter.engines))
        await (returned() if len(held) == 1 else answer(WHOLE))(seen, talk)

    async with world([noting], [noting], in_flight=1) as w:
        assert (await w.ask()).status == 200

        assert held == [{"d0": 1, "p0": 1}, {"d0": 1}]
        assert w.is_at_rest()


# --------------------------------------------------------------------- the decode leg fails


@pytest.mark.parametrize(
    "script",
    [
        answer(b"oops", status=SERVER_ERROR),
        answer(b"busy", status=b"503 Service Unavailable"),
        streamed(ROLE, ERROR, DONE),
        streamed(ROLE + ERROR),
        raw(SSE_HEAD, chunk(ROLE), close=True),
        raw(SSE_HEAD, chunk(b'event: error\ndata: {"type":"error"}\n\n'), LAST_CHUNK),
        raw(close=True),
    ],
)
@in_loop
async def test_a_decode_leg_that_failed_is_sent_again_without_blocks(script: Script) -> None:
    good = streamed(ROLE, TOKEN, DONE)
    async with world([one_after_the_other(script, good)], [returned()]) as w:
        got = await w.ask(stream=True)

        assert (got.status, got.body) == (200, ROLE + TOKEN + DONE)
        assert got.values(b"x-inferway-prefill-engine") == []
        first, second = sent(w.decode[0], 0), sent(w.decode[0], 1)
        assert first.pop("kv_transfer_params") == REFERENCE
        assert first == second
        assert len(w.prefill[0].seen) == 1
        assert w.decodes == {"recomputed": 1}
        assert w.is_at_rest()


@in_loop
async def test_a_lost_decode_engine_is_replaced_and_the_other_computes() -> None:
    async with world([raw(close=True), answer(WHOLE)], [returned()]) as w:
        got = await w.ask()

        assert (got.status, got.values(b"x-inferway-engine")) == (200, [b"d1"])
        assert "kv_transfer_params" not in sent(w.decode[1])
        assert len(w.decode[0].seen) == 1
        assert w.is_at_rest()


@in_loop
async def test_a_reference_is_not_sent_again_on_a_fresh_connection() -> None:
    lost = one_after_the_other(answer(WHOLE), raw(close=True), answer(WHOLE))
    async with world([lost], [returned()]) as w:
        await w.ask()
        got = await w.ask()  # on the connection that was kept alive

        assert got.status == 200
        bodies = [sent(w.decode[0], number) for number in range(3)]
        assert ["kv_transfer_params" in body for body in bodies] == [True, True, False]


@in_loop
async def test_an_error_of_the_client_s_is_passed_on() -> None:
    bad = answer(b"bad", status=b"400 Bad Request")
    async with world([bad], [bad]) as w:
        got = await w.ask()

        assert (got.status, got.body, len(w.decode[0].seen)) == (400, b"bad", 1)
        assert w.prefills == {"refused": 1}


@in_loop
async def test_a_stream_s_head_waits_for_content_and_no_longer() -> None:
    go_on = asyncio.Event()

    async def script(_: Seen, talk: Talk) -> None:
        await talk.write(SSE_HEAD + chunk(ROLE + TOKEN))
        await go_on.wait()
        await talk.write(chunk(ERROR) + LAST_CHUNK)

    async with world([script], [returned()]) as w:
        await w.client.send(post(json.dumps({**BODY, "stream": True}).encode()))

        assert (await w.client.head()).status == 200
        assert await w.client.chunk() == ROLE + TOKEN
        go_on.set()
        assert await w.client.chunk() == ERROR  # as one engine alone would have said
        await wait_until(w.is_at_rest)


@in_loop
async def test_an_empty_stream_passes_as_it_is() -> None:
    async with world([streamed(ROLE, DONE)], [returned()]) as w:
        assert (await w.ask(stream=True)).body == ROLE + DONE


# ------------------------------------------------------------------------- the client goes away


@in_loop
async def test_a_client_that_goes_takes_the_prefill_leg_with_it() -> None:
    async with world([answer(WHOLE)], [raw()]) as w:
        await w.client.send(post(json.dumps(BODY).encode()))
        await wait_until(lambda: bool(w.prefill[0].seen))
        w.client.writer.transport.abort()

        await wait_until(lambda: w.prefill[0].open == 0 and w.is_at_rest())
        assert (w.decode[0].seen, w.prefills) == ([], {"client-gone": 1})
        assert w.noted.told[-1] == ("end", "client_gone")


# ------------------------------------------------------------------------------- both at once


@in_loop
async def test_sglang_s_engines_meet_in_a_room() -> None:
    meet = KvConnector.SGLANG
    async with world([answer(WHOLE)], [answer(b"{}")], connector=meet, bootstrap="p:8998") as w:
        got = await w.ask()

        assert (got.status, got.body) == (200, WHOLE)
        await wait_until(lambda: w.prefills == {"ok": 1})
        one, two = sent(w.prefill[0]), sent(w.decode[0])
        assert one == two
        assert (one["bootstrap_host"], one["bootstrap_port"]) == ("p", 8998)
        assert 0 <= one["bootstrap_room"] < 2**63
        assert w.is_at_rest()


@asynccontextmanager
async def mooncake(decode: Script, prefill: Script) -> AsyncIterator[tuple[World, Engine]]:
    told = answer(b'{"0": {"engine_id": "mc-1", "worker_addr": {}}}')
    async with running(told) as server:
        at = server.url.removeprefix("http://")
        async with world([decode], [prefill], connector=KvConnector.MOONCAKE, bootstrap=at) as w:
            yield w, server


@in_loop
async def test_mooncake_s_engines_are_paired_by_an_id_of_ours() -> None:
    async with mooncake(answer(WHOLE), answer(b"{}")) as (w, server):
        for _ in range(2):
            assert (await w.ask()).body == WHOLE
        await wait_until(lambda: w.prefills == {"ok": 2})

        assert [each.line for each in server.seen] == [b"GET /query HTTP/1.1"]
        one, two = (sent(each)["kv_transfer_params"] for each in (w.prefill[0], w.decode[0]))
        assert one["do_remote_decode"] is True
        assert two["transfer_id"] == one["transfer_id"]
        assert two["remote_engine_id"] == "mc-1"
        assert two["remote_bootstrap_addr"] == server.url
        assert sent(w.decode[0], 1)["kv_transfer_params"]["transfer_id"] != one["transfer_id"]


@in_loop
async def test_a_decode_leg_that_waits_for_a_dead_engine_is_sent_again() -> None:
    hanging = one_after_the_other(raw(), answer(WHOLE))
    async with mooncake(hanging, raw(close=True)) as (w, server):
        got = await w.ask()

        assert (got.status, got.body) == (200, WHOLE)
        assert "kv_transfer_params" not in sent(w.decode[0], 1)
        assert (w.prefills, w.decodes) == ({"failed": 1}, {"recomputed": 1})
        await w.ask()  # the id is asked for anew
        assert len(server.seen) == 2
        assert w.is_at_rest()


@in_loop
async def test_without_a_bootstrap_server_one_engine_answers() -> None:
    async with world(
        [answer(WHOLE)], [answer(b"{}")], connector=KvConnector.MOONCAKE, bootstrap="127.0.0.1:1"
    ) as w:
        got = await w.ask()

        assert (got.status, w.prefill[0].seen, w.prefills) == (200, [], {"no-bootstrap": 1})
        assert w.is_at_rest()
