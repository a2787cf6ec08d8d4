"""The whole path: client -> gateway -> simulated engines, and their events back."""

from __future__ import annotations

import asyncio
import logging
import socket

import msgspec
import pytest
import zmq
import zmq.asyncio
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.config import EngineSettings
from inferway.fleet.silent_zero import PATIENCE
from inferway_sim.config import EventsConfig, LatencyModel
from inferway_sim.engine import SimulatedEngine


async def all_known(fleet: Fleet) -> None:
    """Until the index knows as many blocks as the engines hold."""

    async def same() -> bool:
        known = [fleet.gateway.index.num_blocks(holder) for holder in range(len(fleet.engines))]
        return known == [len(engine.cached_blocks()) for engine in fleet.engines]

    await until(same)


async def test_a_growing_chat_stays_where_its_prefix_is(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(3)
    turns, engines = [LONG], set()
    for _ in range(5):
        answer = await fleet.chat(*turns)
        engines.add(answer.engine)
        turns += [answer.body["choices"][0]["message"]["content"], "and then?"]
        await all_known(fleet)

    assert len(engines) == 1


async def test_what_we_believe_is_what_the_engine_delivers(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    for question in ("one?", "two?", "three?", "one?"):
        answer = await fleet.chat(LONG + question)
        await all_known(fleet)

        assert answer.expected_tokens == answer.cached_tokens

    engine = answer.engine
    matched = await fleet.metric("inferway_matched_tokens_total", engine=engine)
    delivered = await fleet.metric("inferway_delivered_tokens_total", engine=engine)
    checked = await fleet.metric("inferway_checked_tokens_total", engine=engine)
    assert matched == checked == delivered > 0


async def test_unrelated_chats_spread(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)

    # All at once: one after the other they would wait nowhere, and need not spread.
    chats = [fleet.chat(f"topic {i}: {LONG}") for i in range(30)]
    engines = [answer.engine for answer in await asyncio.gather(*chats)]

    assert min(engines.count(engine.url[7:]) for engine in fleet.engines) >= 5


async def test_an_alias_shares_the_cache_and_is_answered_by_its_real_name(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(2)
    first = await fleet.chat(LONG)
    await all_known(fleet)

    second = await fleet.chat(LONG, model="alias")

    assert second.engine == first.engine
    assert second.matched > 0
    assert second.body["model"] == "smollm2"


async def test_an_adapter_uses_its_parents_tokenizer_and_its_own_blocks(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([simulated(lora_modules={"tuned": "/adapters/tuned"})] * 2)
    base = await fleet.chat(LONG)
    tuned = await fleet.chat(LONG, model="tuned")
    await all_known(fleet)

    assert tuned.matched == 0
    assert max((await fleet.scores(LONG)).values()) > 0
    again = await fleet.chat(LONG, model="tuned")
    assert (again.engine, again.expected_tokens) == (tuned.engine, again.cached_tokens)
    assert base.status == 200


async def test_a_cache_salt_separates_tenants_on_both_sides(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await fleet.chat(LONG, cache_salt="tenant-1")
    await all_known(fleet)

    same = await fleet.chat(LONG, cache_salt="tenant-1")
    other = await fleet.chat(LONG, cache_salt="tenant-2")

    assert same.expected_tokens == same.cached_tokens > 0
    assert other.expected_tokens == other.cached_tokens == 0


async def test_engines_of_different_block_sizes_serve_one_model(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(block_size=16), simulated(block_size=64)])
    first = await fleet.chat(LONG)
    await all_known(fleet)

    second = await fleet.chat(LONG)

    assert second.engine == first.engine
    assert second.matched > 0


async def test_older_engines_that_send_events_as_arrays_are_understood(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([simulated(events=EventsConfig(format="array"))])
    await fleet.chat(LONG)
    await all_known(fleet)

    answer = await fleet.chat(LONG)

    assert answer.expected_tokens == answer.cached_tokens > 0


async def test_a_gateway_that_starts_late_learns_the_past_from_the_replay(
    start_fleet: StartFleet,
) -> None:
    first = await start_fleet(1)
    await first.chat(LONG)
    engine = first.engines[0]

    late = await start_fleet([], more=[EngineSettings(url=engine.url)])

    async def knows() -> bool:
        return late.gateway.index.num_blocks(0) == len(engine.cached_blocks()) > 0

    await until(knows)


async def test_a_reset_cache_empties_the_engines_entries(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    answer = await fleet.chat(LONG)
    await all_known(fleet)

    async def reset() -> bool:  # refused, as by vLLM, while something runs: the probe, perhaps
        async with fleet.http.post(f"http://{answer.engine}/reset_prefix_cache") as response:
            assert response.status == 200
            return bool((await response.json())["success"])

    await until(reset)
    # as in vLLM, an engine's events leave with its next step
    ping = {"model": "smollm2", "prompt": "ping", "max_tokens": 1}
    async with fleet.http.post(f"http://{answer.engine}/v1/completions", json=ping) as response:
        assert response.status == 200

    async def forgotten() -> bool:
        return set((await fleet.scores(LONG)).values()) == {0}

    await until(forgotten)


async def test_an_engine_that_goes_away_is_routed_around(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    fleet = await start_fleet(2)
    gone = fleet.engines[0]
    await gone.stop()

    answers = [await fleet.chat(f"{i} {LONG}") for i in range(4)]

    assert {a.status for a in answers} == {200}
    assert {a.engine for a in answers} == {fleet.engines[1].url.removeprefix("http://")}

    async def marked() -> bool:
        return await fleet.metric("inferway_engine_up", engine=gone.url[7:]) == 0

    await until(marked)
    assert any("cannot be reached" in message for message in caplog.messages)


async def test_an_engine_that_comes_back_with_other_sockets_is_listened_to_again(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    await fleet.chat(LONG)
    await all_known(fleet)
    old = fleet.engines[0]
    await old.stop()
    fleet.engines[0] = await fleet.start_engine(simulated(port=int(old.url.rsplit(":", 1)[1])))

    async def answers_again() -> bool:
        return (await fleet.chat("other", LONG, "text")).status == 200

    await until(answers_again)
    await all_known(fleet)

    # the default system prompt's first block is all that both chats have in common
    assert max((await fleet.scores(LONG)).values()) == 1
    assert max((await fleet.scores("other", LONG, "text")).values()) > 1


async def test_no_engine_at_all_is_a_503_that_says_so(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await fleet.engines[0].stop()

    async def gone() -> bool:
        return await fleet.metric("inferway_engine_up") == 0

    await until(gone)
    answer = await fleet.chat("hello")

    assert answer.status == 503
    assert answer.body["error"]["code"] == "no_engine_available"
    assert (await fleet.get("/ready")).status == 503


async def test_ready_gives_reasons(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(events=EventsConfig(endpoint=None))])

    answer = await fleet.get("/ready")

    [engine] = answer.body["engines"]
    assert answer.status == 200
    assert "it publishes no KV events" in engine["problems"][0]


async def test_a_stream_arrives_byte_for_byte(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 12,
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    async def read(base: str) -> bytes:
        async with fleet.http.post(f"{base}/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            return await response.read()

    direct, routed = await read(fleet.engines[0].url), await read(fleet.url)

    assert routed.endswith(b"data: [DONE]\n\n")
    assert routed.count(b"data: ") == direct.count(b"data: ")
    assert b'"cached_tokens":' in routed.replace(b" ", b"")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", b"{", 400, None),
        ("/v1/chat/completions", b"[]", 400, None),
        ("/v1/chat/completions", b'{"messages":[]}', 400, "messages"),
        ("/v1/chat/completions", b'{"model":"smollm2"}', 400, "messages"),
        ("/v1/chat/completions", b'{"model":"smollm2","messages":[]}', 400, "messages"),
        ("/v1/chat/completions", b'{"model":1,"messages":[]}', 400, "model"),
        (
            "/v1/chat/completions",
            b'{"model":"nope","messages":[{"role":"user","content":"x"}]}',
            404,
            "model",
        ),
        ("/v1/completions", b'{"model":"smollm2"}', 400, "prompt"),
        ("/v1/completions", b'{"model":"smollm2","prompt":[1,"a"]}', 400, "prompt"),
        (
            "/v1/completions",
            msgspec.json.encode({"model": "smollm2", "prompt": "word " * 9000}),
            400,
            "prompt",
        ),
        ("/score_completions", b'{"model":"smollm2"}', 400, "prompt"),
    ],
)
async def test_bad_input_is_answered_here_and_reaches_no_engine(
    start_fleet: StartFleet, path: str, body: bytes, status: int, param: str | None
) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.post(path, body)

    assert answer.status == status
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}
    assert answer.body["error"]["param"] == param
    assert await fleet.metric("inferway_upstream_sent_total") == 0


async def test_what_we_cannot_render_goes_by_load_and_is_counted(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    messages = [{"role": "user", "content": image}]

    await fleet.post(
        "/v1/chat/completions",
        {"model": "smollm2", "messages": messages, "truncate_prompt_tokens": 8},
    )

    assert await fleet.metric("inferway_decisions_total", reason="media") == 1
    assert await fleet.metric("inferway_upstream_sent_total") == 1


async def test_other_paths_and_methods_are_named(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    assert (await fleet.get("/sleep")).status == 404
    answer = await fleet.get("/v1/chat/completions")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_decisions_and_events_are_published_without_text(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, publish="tcp://127.0.0.1:*")
    assert fleet.gateway.publish_endpoint is not None
    seen: dict[bytes, list[object]] = {}
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.connect(fleet.gateway.publish_endpoint)

        async def all_three() -> bool:
            await fleet.chat(LONG)
            await fleet.post(
                "/v1/completions", {"model": "smollm2", "prompt": "x" + LONG, "max_tokens": 1}
            )
            while await subscriber.poll(50):
                topic, _, payload = await subscriber.recv_multipart()
                seen.setdefault(topic, []).append(msgspec.msgpack.decode(payload))
            return len(seen) == 3

        await until(all_three)

    assert set(seen) == {b"kv.smollm2", b"kv.chat.smollm2", b"kv.events.smollm2"}
    [*_, chat] = seen[b"kv.chat.smollm2"]
    assert isinstance(chat, dict)
    assert not {"messages", "prompt", "rendered_template"} & chat.keys()
    assert LONG[:20] not in str(seen)


async def test_silent_zero_is_said_once_with_its_cause(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    fleet = await start_fleet([simulated(events=EventsConfig(endpoint=None))])

    for i in range(PATIENCE + 5):
        await fleet.chat(f"{LONG} {i}", max_tokens=1)

    [warning] = [m for m in caplog.messages if "nothing hits" in m]
    assert "Likely cause: no events" in warning


async def test_sockets_and_block_size_given_by_hand_are_used(start_fleet: StartFleet) -> None:
    def by_hand(engine: SimulatedEngine) -> EngineSettings:
        return EngineSettings(
            url=engine.url,
            name="mine",
            events=engine.events_endpoint,
            replay=engine.replay_endpoint,
            block_size=16,
        )

    fleet = await start_fleet(1, by_hand=by_hand)
    await fleet.chat(LONG)
    await all_known(fleet)

    answer = await fleet.chat(LONG)

    assert (answer.engine, answer.expected_tokens) == ("mine", answer.cached_tokens)


async def test_a_client_that_leaves_frees_the_engine(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(latency=LatencyModel(inter_token_latency=0.2))])
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": 500,
        "stream": True,
        "ignore_eos": True,
    }
    async with fleet.http.post(f"{fleet.url}/v1/chat/completions", json=body) as response:
        await response.content.readany()
        assert fleet.engines[0].num_requests == 1
        response.close()

    async def free() -> bool:
        return fleet.engines[0].num_requests == 0

    await until(free)
    assert await fleet.metric("inferway_requests_total", outcome="client_gone") == 1
    assert await fleet.metric("inferway_engine_in_flight") == 0


async def test_clients_that_had_gone_before_they_were_read_reach_no_engine(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    body = msgspec.json.encode({"model": "smollm2", "prompt": LONG})
    asked = b"POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: %d\r\n\r\n%b" % (
        *(len(body), body),
    )

    def leave() -> None:  # before the loop has had a turn
        with socket.create_connection(("127.0.0.1", fleet.gateway.port)) as sock:
            sock.sendall(asked)

    async def gone(number: int) -> bool:
        return await fleet.metric("inferway_http_answers_total", status="499") == number

    leave()  # after the first of them, the others are looked for
    await until(lambda: gone(1))
    sent = await fleet.metric("inferway_upstream_sent_total")
    for _ in range(20):
        leave()
    await until(lambda: gone(21))

    assert await fleet.metric("inferway_upstream_sent_total") == sent
    of = {"status": "499", "outcome": "client_gone"}
    assert await fleet.metric("inferway_requests_total", model="smollm2", **of) == 1
    assert await fleet.metric("inferway_requests_total", model="other", **of) == 20  # never read
    assert await fleet.metric("inferway_engine_in_flight") == 0
    assert (await fleet.chat("hello")).status == 200


async def test_many_at_once_all_get_their_own_answer(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([simulated(mode="echo")] * 3)

    answers = await asyncio.gather(
        *(fleet.chat(f"nonce {i} {LONG[:40]}", max_tokens=60) for i in range(60))
    )

    texts = [a.body["choices"][0]["message"]["content"] for a in answers]
    assert all(text.startswith(f"nonce {i} ") for i, text in enumerate(texts))
