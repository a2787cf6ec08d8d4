"""Requests whose prompt one engine computes for another, and all that can go wrong with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.http.clients import connected, post
from tests.http.two_leg_worlds import (
    BODY,
    DONE,
    ERROR,
    REFERENCE,
    ROLE,
    SERVER_ERROR,
    TOKEN,
    USAGE,
    WHOLE,
    World,
    one_after_the_other,
    returned,
    sent,
    streamed,
    world,
)
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

from inferway.config import TimeoutSettings
from inferway.model import KvConnector
from inferway.openai_api.usage import Usage

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
async def test_a_decode_leg_that_failed_is_sent_again_without_blocks(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
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
        assert caplog.text.count("did not answer with the blocks of another one") == 1
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


UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


def pairing(body: dict[str, Any]) -> object:
    """What both legs have in common, and no others."""
    return body.get("bootstrap_room") or body["kv_transfer_params"]["transfer_id"]


@in_loop
@pytest.mark.parametrize("meet", [KvConnector.SGLANG, KvConnector.MOONCAKE])
@pytest.mark.parametrize("dying", [raw(close=True), raw(UNAVAILABLE)])
async def test_both_legs_are_sent_again_if_the_first_prefill_engine_is_lost(
    meet: KvConnector, dying: Script
) -> None:
    told = answer(b'{"0": {"engine_id": "mc-1", "worker_addr": {}}}')
    hanging = one_after_the_other(raw(), answer(WHOLE))
    async with running(told) as server:
        at = server.url.removeprefix("http://")
        two = [dying, answer(b"{}")]
        async with world([hanging], two, connector=meet, bootstrap=at) as w:
            got = await w.ask()

            assert (got.status, got.body) == (200, WHOLE)
            await wait_until(lambda: w.prefills == {"failed": 1, "ok": 1})
            assert w.decodes == {"other-engine": 1, "ok": 1}
            before, after = (pairing(sent(w.decode[0], number)) for number in range(2))
            assert pairing(sent(w.prefill[1])) == after != before
            assert w.is_at_rest()


@in_loop
async def test_a_decode_leg_that_answers_needs_no_other_prefill_engine() -> None:
    lost_late = asyncio.Event()

    async def dying(seen: Seen, talk: Talk) -> None:
        del seen
        await lost_late.wait()
        talk.reset()

    meet = KvConnector.SGLANG
    decode = streamed(ROLE, TOKEN, DONE)
    async with world([decode], [dying, answer(b"{}")], connector=meet, bootstrap="p:8998") as w:
        got = await w.ask(stream=True)
        lost_late.set()

        assert got.body == ROLE + TOKEN + DONE
        await wait_until(w.is_at_rest)
        assert w.prefill[1].seen == []


@in_loop
async def test_without_a_bootstrap_server_one_engine_answers() -> None:
    async with world(
        [answer(WHOLE)], [answer(b"{}")], connector=KvConnector.MOONCAKE, bootstrap="127.0.0.1:1"
    ) as w:
        got = await w.ask()

        assert (got.status, w.prefill[0].seen, w.prefills) == (200, [], {"no-bootstrap": 1})
        assert w.is_at_rest()


# ------------------------------------------------------- whatever happens, to many requests at once

PREFILL_FAULTS = ["", "", "", "none", "malformed", "500", "503", "closes", "half"]
DECODE_FAULTS = ["", "", "", "500", "503", "role", "closes", "half"]


class Believing:
    """Engines that believe references as vLLM does: who sends another prompt's gets its answer. An
    engine that computes the prompt itself never fails."""

    def __init__(self, prefill: list[str], decode: list[str]) -> None:
        self.left = {"prefill": prefill, "decode": decode}
        self.used: set[str] = set()

    async def __call__(self, seen: Seen, talk: Talk) -> None:
        body = json.loads(seen.body)
        params = body.get("kv_transfer_params") or {}
        prompt = body["messages"][0]["content"]
        if params.get("do_remote_decode"):
            await self._prefill(prompt, talk, seen)
        elif params.get("do_remote_prefill"):
            reference = params["remote_request_id"]
            told = "served twice" if reference in self.used else reference
            self.used.add(reference)
            await self._decode(told, self._fault("decode"))(seen, talk)
        else:
            await self._decode(prompt, "")(seen, talk)

    def _fault(self, leg: str) -> str:
        left = self.left[leg]
        return left.pop() if left else ""

    async def _prefill(self, prompt: str, talk: Talk, seen: Seen) -> None:
        fault = self._fault("prefill")
        reference: dict[str, Any] | None = {**REFERENCE, "remote_request_id": prompt}
        if fault == "malformed":
            del reference["remote_port"]  # type: ignore[union-attr]
        elif fault == "none":
            reference = None
        scripts = {
            "500": answer(b"oops", status=SERVER_ERROR),
            "503": answer(b"busy", status=b"503 Service Unavailable"),
            "closes": raw(close=True),
            "half": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", close=True),
        }
        usage = {**USAGE, "prompt_tokens": len(prompt)}
        await scripts.get(fault, returned(reference, usage))(seen, talk)

    def _decode(self, told: str, fault: str) -> Script:
        text = json.dumps({"choices": [{"index": 0, "delta": {"content": told}}]}).encode()
        scripts = {
            "500": answer(b"oops", status=SERVER_ERROR),
            "503": answer(b"busy", status=b"503 Service Unavailable"),
            "role": streamed(ROLE, ERROR, DONE),
            "closes": raw(close=True),
            "half": raw(SSE_HEAD, chunk(ROLE), close=True),
        }
        return scripts.get(fault, streamed(ROLE, b"data: %b\n\n" % text, DONE))


@settings(max_examples=30)
@given(
    prefill=st.lists(st.sampled_from(PREFILL_FAULTS), max_size=10),
    decode=st.lists(st.sampled_from(DECODE_FAULTS), max_size=10),
)
def test_each_client_gets_the_answer_to_its_own_prompt(
    prefill: list[str], decode: list[str]
) -> None:
    async def turns(w: World, number: int) -> None:
        async with connected(w.server) as client:
            for turn in range(2):
                prompt = f"prompt {number} {turn}"
                messages = [{"role": "user", "content": prompt}]
                body = json.dumps({**BODY, "messages": messages, "stream": True}).encode()
                got = await client.ask(post(body))
                if got.status == 502:  # two engines have closed their connections
                    assert b'"code":"engines_lost"' in got.body
                    continue
                assert got.status == 200
                assert json.dumps(prompt).encode() in got.body

    async def run() -> None:
        engines = Believing(prefill, decode)
        async with AsyncExitStack() as stack:
            w = await stack.enter_async_context(world([engines, engines], [engines, engines]))
            async with asyncio.timeout(20):
                await asyncio.gather(*[turns(w, number) for number in range(4)])
            assert w.is_at_rest()

    uvloop.run(run())
