"""Two simulated engines, one that computes prompts and one that decodes them, over HTTP. What real
ones answered is in tests/data/kv_transfer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from tests.sim.doubles import ByteModel, all_events, believed

from inferway.errors import ConfigError
from inferway_sim.config import LatencyModel, SimulatorConfig, TransferConfig
from inferway_sim.engine import SimulatedEngine

Json = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
ALICE = "Alice keeps a secret in her garden, under the third stone"
BORIS = "Boris has no idea of gardens, and he asks about the weather"


class Pair:
    """A prefill engine, a decode engine, and a client of both."""

    def __init__(self, first: SimulatedEngine, second: SimulatedEngine) -> None:
        self.prefill, self.decode = first, second
        self._client = aiohttp.ClientSession()

    async def ask(self, engine: SimulatedEngine, path: str, body: Json, id: str = "") -> Json:
        status, answer = await self.answer(engine, path, body, id)
        assert status == 200, answer
        return answer

    async def answer(
        self, engine: SimulatedEngine, path: str, body: Json, id: str = ""
    ) -> tuple[int, Json]:
        headers = {"X-Request-Id": id} if id else {}
        async with self._client.post(engine.url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def text(self, engine: SimulatedEngine, path: str, body: Json) -> str:
        async with self._client.post(engine.url + path, json=body) as response:
            assert response.status == 200
            return await response.text()

    async def get(self, engine: SimulatedEngine, path: str) -> tuple[int, bytes]:
        async with self._client.get(engine.url + path) as response:
            return response.status, await response.read()

    async def reference(self, text: str, **fields: Any) -> Json:
        """What the prefill engine returns for a prompt."""
        body = completion(text, max_tokens=1, kv_transfer_params=PREFILL, **fields)
        found = (await self.ask(self.prefill, COMPLETIONS, body))["kv_transfer_params"]
        assert isinstance(found, dict)
        return found

    async def decoded(self, text: str, reference: Json | None, **fields: Any) -> str:
        body = completion(text, kv_transfer_params=reference, **fields)
        answer = await self.ask(self.decode, COMPLETIONS, body)
        return str(answer["choices"][0]["text"])

    async def metric(self, engine: SimulatedEngine, line: str) -> float:
        _, page = await self.get(engine, "/metrics")
        (found,) = [row for row in page.decode().splitlines() if row.startswith(line + "{")]
        return float(found.rpartition(" ")[2])

    async def until_told(self) -> None:
        """The prefill engine has heard that its blocks were fetched."""
        assert self.prefill.transfer is not None
        while self.prefill.transfer.leases:
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self._client.close()


def completion(text: str, **fields: Any) -> Json:
    return {"model": "m", "prompt": text, "max_tokens": 200, **fields}


def engine(transfer: TransferConfig | None, **settings: Any) -> SimulatedEngine:
    fields = {"mode": "echo", "kv_transfer": transfer, **settings}
    return SimulatedEngine(SimulatorConfig("m", **fields), ByteModel())


def handing(
    scenario: Callable[[Pair], Awaitable[Any]],
    transfer: TransferConfig | None = None,
    prefill: TransferConfig | None = None,
    **settings: Any,
) -> Any:
    """Run `scenario` with two engines; `transfer` is the decode engine's connector, `prefill` the
    other's if it is another."""
    transfer = transfer or TransferConfig()

    async def run() -> Any:
        async with (
            engine(prefill or transfer, **settings) as first,
            engine(transfer, **settings) as second,
        ):
            pair = Pair(first, second)
            try:
                return await scenario(pair)
            finally:
                await pair.close()

    return asyncio.run(run())


RECOMPUTE = TransferConfig(load_failure_policy="recompute")


def test_a_prompt_computed_on_one_engine_is_decoded_on_the_other() -> None:
    async def scenario(pair: Pair) -> Any:
        reference = await pair.reference(ALICE)
        answer = await pair.ask(
            pair.decode, COMPLETIONS, completion(ALICE, kv_transfer_params=reference)
        )
        sources = [
            await pair.metric(pair.decode, f"vllm:{name}_total")
            for name in ("external_prefix_cache_hits", "prefix_cache_hits")
        ]
        await pair.until_told()
        held = pair.decode.cached_blocks()
        told = believed(await all_events(pair.decode))
        return answer, sources, pair.prefill.cached_blocks() <= held, told == held

    answer, sources, is_there, is_told = handing(scenario)

    assert answer["choices"][0]["text"] == ALICE
    assert answer["kv_transfer_params"] is None
    assert sources == [len(ALICE), 0]
    assert is_there
    assert is_told


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": ALICE}], "max_tokens": 1}),
        (COMPLETIONS, {"prompt": ALICE, "max_tokens": 1}),
        (RESPONSES, {"input": ALICE, "max_output_tokens": 1}),
        (MESSAGES, {"messages": [{"role": "user", "content": ALICE}], "max_tokens": 1}),
    ],
)
def test_the_reference_is_in_the_answer_of_each_path(path: str, body: Json) -> None:
    async def scenario(pair: Pair) -> Any:
        body_with = {"model": "m", **body, "kv_transfer_params": PREFILL}
        return await pair.ask(pair.prefill, path, body_with, "wanted")

    found = handing(scenario)["kv_transfer_params"]

    assert list(found) == [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
        "remote_prefill_cached_tokens",
    ]
    assert "wanted" in found["remote_request_id"]
    assert len(found["remote_block_ids"][0]) == -(-found["remote_num_tokens"] // 16)


def test_nobody_gives_a_reference_who_was_not_asked_or_has_no_connector() -> None:
    async def scenario(pair: Pair) -> Any:
        body = completion(ALICE, max_tokens=1)
        plain = await pair.ask(pair.prefill, COMPLETIONS, body)
        streamed = await pair.text(
            pair.prefill, COMPLETIONS, {**body, "stream": True, "kv_transfer_params": PREFILL}
        )
        async with engine(None) as alone:
            without = await pair.ask(alone, COMPLETIONS, {**body, "kv_transfer_params": PREFILL})
        return plain["kv_transfer_params"], "remote_engine_id" in streamed, without

    plain, is_streamed, without = handing(scenario)

    assert plain is None
    assert not is_streamed
    assert without["kv_transfer_params"] is None


def test_cached_tokens_of_a_decode_leg_are_the_prefill_engines() -> None:
    async def scenario(pair: Pair) -> Any:
        await pair.ask(pair.prefill, COMPLETIONS, completion(ALICE))
        reference = await pair.reference(ALICE)
        body = completion(ALICE, kv_transfer_params=reference)
        answer = await pair.ask(pair.decode, COMPLETIONS, body)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert handing(scenario) == (len(ALICE) - 1) // 16 * 16


def test_only_blocks_that_are_missing_are_fetched() -> None:
    async def scenario(pair: Pair) -> Any:
        await pair.ask(pair.decode, COMPLETIONS, completion(ALICE[:40], max_tokens=1))
        text = await pair.decoded(ALICE, await pair.reference(ALICE))
        return text, await pair.metric(pair.decode, "vllm:external_prefix_cache_hits_total")

    text, num_fetched = handing(scenario)

    assert text == ALICE
    assert num_fetched == len(ALICE) - 32


def test_blocks_are_kept_until_they_are_fetched() -> None:
    async def scenario(pair: Pair) -> Any:
        usage = "vllm:kv_cache_usage_perc"
        reference = await pair.reference(ALICE)
        kept = await pair.metric(pair.prefill, usage)
        await pair.decoded(ALICE, reference)
        await pair.until_told()
        return kept, await pair.metric(pair.prefill, usage)

    kept, later = handing(scenario)

    assert kept > 0
    assert later == 0


def test_a_reference_used_after_its_lease_gives_the_answer_to_what_lies_there_now() -> None:
    """And keeps it for later prompts, as vLLM does."""

    async def scenario(pair: Pair) -> Any:
        reference = await pair.reference(ALICE)
        assert pair.prefill.transfer is not None
        pair.prefill.transfer.end_leases()
        await pair.ask(pair.prefill, COMPLETIONS, completion((BORIS * 5)[:255], max_tokens=1))
        wrong = await pair.decoded(ALICE, reference)
        later = await pair.decoded(ALICE, None)
        late = "vllm:nixl_num_notifications_after_expiry_total"
        while not await pair.metric(pair.prefill, late):
            pass
        return wrong, later, await pair.metric(pair.prefill, "vllm:nixl_num_kv_expired_reqs_total")

    wrong, later, num_expired = handing(scenario, kv_cache_size=17, max_model_len=256)

    assert "Boris" in wrong
    assert "Alice" not in wrong
    assert "weather" in later
    assert num_expired == 1


def test_a_reference_of_another_prompt_gives_that_prompts_answer() -> None:
    async def scenario(pair: Pair) -> Any:
        reference = await pair.reference(BORIS)
        used = await pair.decoded(BORIS, reference)
        unknown = {**reference, "remote_request_id": "nobody"}
        return used, await pair.decoded(ALICE, unknown, cache_salt="a tenant's")

    used, foreign = handing(scenario)

    assert used == BORIS
    assert foreign.startswith(BORIS[:-3])


def test_a_prompt_that_differs_in_its_last_token_alone_is_answered_right() -> None:
    async def scenario(pair: Pair) -> Any:
        return await pair.decoded(ALICE[:-1] + "?", await pair.reference(ALICE))

    assert handing(scenario) == ALICE[:-1] + "?"


Break = Callable[[Pair, Json], Awaitable[Json]]


async def _stopped(pair: Pair, reference: Json) -> Json:
    await pair.prefill.stop()
    return reference


async def _closed(pair: Pair, reference: Json) -> Json:
    assert pair.prefill.side_channel is not None
    await pair.prefill.side_channel.stop()
    return reference


async def _restarted(_: Pair, reference: Json) -> Json:
    return {**reference, "remote_engine_id": "00000000-0000"}


async def _out_of_range(_: Pair, reference: Json) -> Json:
    return {**reference, "remote_block_ids": [[1_000_000] * 10]}


async def _refused(pair: Pair, reference: Json) -> Json:
    assert pair.prefill.transfer is not None
    pair.prefill.transfer.refuses_reads = True
    return reference


BROKEN: list[Break] = [_stopped, _closed, _restarted, _out_of_range, _refused]


@pytest.mark.parametrize("break_it", BROKEN)
def test_blocks_that_cannot_be_had_are_an_error(break_it: Break) -> None:
    async def scenario(pair: Pair) -> Any:
        reference = await break_it(pair, await pair.reference(ALICE))
        body = completion(ALICE, kv_transfer_params=reference)
        failed = await pair.answer(pair.decode, COMPLETIONS, body)
        return failed, await pair.decoded(ALICE, None)

    failed, again = handing(scenario)

    error = {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert failed == (500, {"error": error})
    assert again == ALICE


@pytest.mark.parametrize("break_it", BROKEN)
def test_with_recompute_they_are_computed(break_it: Break) -> None:
    async def scenario(pair: Pair) -> Any:
        reference = await break_it(pair, await pair.reference(ALICE))
        text = await pair.decoded(ALICE, reference)
        return text, await pair.metric(pair.decode, "vllm:nixl_num_failed_transfers_total")

    assert handing(scenario, RECOMPUTE) == (ALICE, 1)


def test_a_decode_leg_at_the_prefill_engine_itself_is_an_error() -> None:
    async def scenario(pair: Pair) -> Any:
        body = completion(ALICE, kv_transfer_params=await pair.reference(ALICE))
        return (await pair.answer(pair.prefill, COMPLETIONS, body))[0]

    assert handing(scenario) == 500


def test_engines_of_unequal_block_sizes_do_not_shake_hands() -> None:
    async def scenario(pair: Pair) -> Any:
        async with engine(TransferConfig(), block_size=8, kv_cache_size=2048) as other:
            body = completion(ALICE, kv_transfer_params=await pair.reference(ALICE))
            return (await pair.answer(other, COMPLETIONS, body))[0]

    assert handing(scenario) == 500


@pytest.mark.parametrize(
    ("path", "body", "begins"),
    [
        (CHAT, {"messages": [{"role": "user", "content": ALICE}]}, '"role":"assistant"'),
        (COMPLETIONS, {"prompt": ALICE}, '"error"'),
    ],
)
def test_a_stream_whose_blocks_cannot_be_had_ends_with_an_error(
    path: str, body: Json, begins: str
) -> None:
    async def scenario(pair: Pair) -> Any:
        prefill = {"model": "m", **body, "max_tokens": 1, "kv_transfer_params": PREFILL}
        reference = (await pair.ask(pair.prefill, path, prefill))["kv_transfer_params"]
        await pair.prefill.stop()
        decode = {"model": "m", **body, "stream": True, "kv_transfer_params": reference}
        return await pair.text(pair.decode, path, decode)

    *opening, error, done, end = handing(scenario).split("\n\n")

    assert begins in "".join([*opening, error])
    assert len(opening) == (path == CHAT)
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500
    assert (done, end) == ("data: [DONE]", "")


def test_messages_end_with_an_error_event_and_responses_break_off() -> None:
    async def scenario(pair: Pair) -> Any:
        await pair.prefill.stop()
        reference = {
            "do_remote_prefill": True,
            "remote_block_ids": [list(range(1, 20))],
            "remote_engine_id": "gone",
            "remote_request_id": "gone",
            "remote_host": "127.0.0.1",
            "remote_port": 1,
        }
        fields = {"model": "m", "stream": True, "kv_transfer_params": reference}
        chat = {"messages": [{"role": "user", "content": ALICE}], "max_tokens": 9}
        messages = await pair.text(pair.decode, MESSAGES, {**fields, **chat})
        with pytest.raises(aiohttp.ClientPayloadError):
            await pair.text(pair.decode, RESPONSES, {**fields, "input": ALICE})
        return messages

    opening, error, end = handing(scenario).split("\n\n")

    assert opening.startswith("event: message_start")
    assert error.startswith("event: error")
    assert end == ""


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_block_ids": "all"},
        {"do_remote_prefill": True, "remote_block_ids": [[1]]},
    ],
    ids=["alone", "malformed", "fewer blocks than the prompt"],
)
def test_parameters_that_kill_the_core_of_vllm_kill_it_here(params: Json) -> None:
    async def scenario(pair: Pair) -> Any:
        full = {**(await pair.reference(ALICE)), "remote_block_ids": None, **params}
        body = completion(ALICE, kv_transfer_params=full)
        answers = [
            await pair.answer(pair.decode, COMPLETIONS, body),
            await pair.answer(pair.decode, COMPLETIONS, completion(BORIS)),
        ]
        return answers, (await pair.get(pair.decode, "/health"))[0]

    answers, health = handing(scenario)

    assert [status for status, _ in answers] == [500, 500]
    assert health == 503


def test_a_dying_core_takes_its_other_requests_along() -> None:
    slow = LatencyModel(inter_token_latency=1000.0)

    async def scenario(pair: Pair) -> Any:
        other = asyncio.ensure_future(pair.answer(pair.decode, COMPLETIONS, completion(BORIS)))
        while pair.decode.num_requests < 1:
            await asyncio.sleep(0)
        body = completion(ALICE, kv_transfer_params={"do_remote_prefill": True})
        await pair.answer(pair.decode, COMPLETIONS, body)
        return (await other)[0]

    assert handing(scenario, latency=slow) == 500


def test_a_request_with_a_field_missing_waits_until_its_client_leaves() -> None:
    async def scenario(pair: Pair) -> Any:
        reference = await pair.reference(ALICE)
        del reference["remote_host"]
        waiting = asyncio.ensure_future(pair.decoded(ALICE, reference))
        while await pair.metric(pair.decode, "vllm:num_requests_waiting") < 1:
            pass
        before = await pair.decoded(BORIS, None)
        waiting.cancel()
        while pair.decode.num_requests:
            await asyncio.sleep(0)
        return before, await pair.metric(pair.decode, "vllm:kv_cache_usage_perc")

    assert handing(scenario) == (BORIS, 0)


def test_a_rejected_decode_leg_frees_the_blocks() -> None:
    async def scenario(pair: Pair) -> Any:
        reference = await pair.reference(ALICE)
        body = completion("x" * 9000, kv_transfer_params=reference)
        status, _ = await pair.answer(pair.decode, COMPLETIONS, body)
        await pair.until_told()
        return status

    assert handing(scenario) == 400


def test_a_client_that_leaves_a_prefill_leg_keeps_no_blocks() -> None:
    async def scenario(pair: Pair) -> Any:
        body = completion(ALICE, max_tokens=1, kv_transfer_params=PREFILL)
        leg = asyncio.ensure_future(pair.answer(pair.prefill, COMPLETIONS, body))
        while not pair.prefill.num_requests:
            await asyncio.sleep(0)
        leg.cancel()
        while pair.prefill.num_requests:
            await asyncio.sleep(0)
        return await pair.metric(pair.prefill, "vllm:kv_cache_usage_perc")

    assert handing(scenario, latency=LatencyModel(time_to_first_token=1000.0)) == 0


def test_a_reference_can_be_altered_or_left_out() -> None:
    async def scenario(pair: Pair) -> Any:
        assert pair.prefill.transfer is not None
        pair.prefill.transfer.alter_reference = lambda _reference: None
        body = completion(ALICE, max_tokens=1, kv_transfer_params=PREFILL)
        return (await pair.ask(pair.prefill, COMPLETIONS, body))["kv_transfer_params"]

    assert handing(scenario) is None


def test_an_engine_tells_its_connector() -> None:
    async def scenario(pair: Pair) -> Any:
        _, page = await pair.get(pair.decode, "/server_info?config_format=json")
        assert pair.decode.transfer is not None
        return json.loads(page), pair.decode.transfer

    info, transfer = handing(scenario, RECOMPUTE)

    told = info["vllm_config"]["kv_transfer_config"]
    assert told["kv_connector"] == "NixlConnector"
    assert (told["engine_id"], told["kv_load_failure_policy"]) == (transfer.engine_id, "recompute")
    assert info["vllm_env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == transfer.port
    assert info["vllm_config"]["cache_config"]["block_size"] == 16


def test_with_push_both_legs_meet_by_the_request_id() -> None:
    push = TransferConfig("nixl-push")

    async def scenario(pair: Pair) -> Any:
        before = await pair.reference(BORIS)
        known = {key: before[key] for key in before if key != "remote_block_ids"}
        decode = pair.ask(
            pair.decode, COMPLETIONS, completion(ALICE, kv_transfer_params=known), "both"
        )
        first = asyncio.ensure_future(decode)
        while pair.decode.num_requests < 1:
            await asyncio.sleep(0)
        leg = completion(ALICE, max_tokens=1, kv_transfer_params=PREFILL)
        await pair.ask(pair.prefill, COMPLETIONS, leg, "both")
        return before, (await first)["choices"][0]["text"]

    reference, text = handing(scenario, push)

    assert reference["transfer_mode"] == "push"
    assert "remote_blocks_expiry_time" not in reference
    assert text == ALICE


def test_mooncake_hands_over_by_transfer_id_and_its_bootstrap_server_tells_the_engine() -> None:
    mooncake = TransferConfig("mooncake")

    async def scenario(pair: Pair) -> Any:
        assert pair.prefill.transfer is not None
        bootstrap = f"http://127.0.0.1:{pair.prefill.transfer.port}"
        async with aiohttp.request("GET", f"{bootstrap}/query") as response:
            engine_id = (await response.json())["0"]["engine_id"]
        give = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "xfer-1"}
        take = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": "xfer-1",
            "remote_bootstrap_addr": bootstrap,
            "remote_engine_id": engine_id,
        }
        leg = completion(ALICE, max_tokens=1, kv_transfer_params=give)
        prefill, text = await asyncio.gather(
            pair.ask(pair.prefill, COMPLETIONS, leg), pair.decoded(ALICE, take)
        )
        return prefill["kv_transfer_params"], text

    assert handing(scenario, mooncake) == (None, ALICE)


SGLANG_P = TransferConfig("sglang", "producer")
SGLANG_D = TransferConfig("sglang", "consumer")


def test_sglang_meets_in_a_room() -> None:
    async def scenario(pair: Pair) -> Any:
        assert pair.prefill.transfer is not None
        room = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": pair.prefill.transfer.port,
            "bootstrap_room": 2**62,
        }
        body = completion(ALICE, **room)
        _, decode = await asyncio.gather(
            pair.ask(pair.prefill, COMPLETIONS, body), pair.ask(pair.decode, COMPLETIONS, body)
        )
        without, _ = await pair.answer(pair.decode, COMPLETIONS, completion(ALICE))
        return decode["choices"][0]["text"], without

    assert handing(scenario, SGLANG_D, SGLANG_P) == (ALICE, 400)


def test_a_decode_leg_whose_other_leg_never_comes_fails_after_its_timeout() -> None:
    async def scenario(pair: Pair) -> Any:
        assert pair.prefill.transfer is not None
        room = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": pair.prefill.transfer.port,
            "bootstrap_room": 7,
        }
        return (await pair.answer(pair.decode, COMPLETIONS, completion(ALICE, **room)))[0]

    impatient = TransferConfig("sglang", "consumer", peer_timeout=0.05)

    assert handing(scenario, impatient, SGLANG_P) == 500


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"connector": "sglang"}, "choose --kv-role producer or --kv-role consumer"),
        ({"lease_seconds": 0}, "kv-lease: expected more than 0, got 0"),
        ({"overhead": -1}, "expected at least 0, got -1"),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings: Json, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransferConfig(**settings)


def test_a_side_channel_port_that_is_taken_is_named() -> None:
    async def scenario(pair: Pair) -> Any:
        assert pair.prefill.transfer is not None
        taken = TransferConfig(port=pair.prefill.transfer.port)
        with pytest.raises(ConfigError, match="choose another with --kv-transfer-port"):
            await engine(taken).start()

    handing(scenario)
