"""Whether simulated engines answer both legs in the form that real ones did (vLLM 0.32 with NIXL;
tests/data/kv_transfer)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sim.doubles import ByteModel
from tests.sim.test_kv_transfer import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Pair

from inferway_sim.config import SimulatorConfig, TransferConfig
from inferway_sim.engine import SimulatedEngine

Json = dict[str, Any]

DATA = Path(__file__).parents[1] / "data" / "kv_transfer"
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def recorded(name: str, path: str, engine: str) -> Json:
    """The first case of that name."""
    lines = (DATA / "legs.jsonl").read_text().splitlines()
    cases = [json.loads(line) for line in lines]
    return next(c for c in cases if (c["name"], c["path"], c["engine"]) == (name, path, engine))


def simulated(scenario: Callable[[Pair], Awaitable[Any]]) -> Any:
    """Run `scenario` with two engines like the recorded ones."""

    def engine(role: Any) -> SimulatedEngine:
        config = SimulatorConfig(
            "smollm2", block_size=32, kv_cache_size=1024, kv_transfer=TransferConfig(role=role)
        )
        return SimulatedEngine(config, ByteModel())

    async def run() -> Any:
        async with engine("producer") as first, engine("consumer") as second:
            pair = Pair(first, second)
            try:
                return await scenario(pair)
            finally:
                await pair.close()

    return asyncio.run(run())


def shape(value: Any) -> Any:
    """What the keys are, in order, and the types of their values."""
    if isinstance(value, dict):
        return [(key, shape(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return type(value)


def data_of(stream: str) -> list[Any]:
    """The data of a stream's events that are JSON."""
    found = re.findall(r"^data: (\{.*\})$", stream, re.MULTILINE)
    return [json.loads(data) for data in found]


@pytest.mark.parametrize("path", PATHS)
def test_a_prefill_leg_is_answered_in_the_form_of_a_real_engine(path: str) -> None:
    real = recorded("prefill leg", path, "prefill")

    answer = simulated(lambda pair: pair.ask(pair.prefill, path, real["body"]))

    assert list(answer) == list(real["answer"])
    assert shape(answer["kv_transfer_params"]) == shape(real["answer"]["kv_transfer_params"])
    assert list(answer["usage"]) == list(real["answer"]["usage"])


@pytest.mark.parametrize("path", PATHS)
def test_a_decode_leg_is_answered_in_the_form_of_a_real_engine(path: str) -> None:
    real = recorded("decode leg", path, "decode")
    prefill = recorded("prefill leg", path, "prefill")

    async def scenario(pair: Pair) -> Any:
        leg = await pair.ask(pair.prefill, path, {**real["body"], **_asks(prefill["body"])})
        body = {**real["body"], "kv_transfer_params": leg["kv_transfer_params"]}
        return await pair.ask(pair.decode, path, body)

    answer = simulated(scenario)

    assert list(answer) == list(real["answer"])
    assert answer.get("kv_transfer_params") is None is real["answer"].get("kv_transfer_params")


@pytest.mark.parametrize("path", PATHS)
def test_a_failed_load_is_answered_as_a_real_engine_does(path: str) -> None:
    real = recorded("another engine id", path, "decode-fail")

    answer = simulated(lambda pair: pair.answer(pair.decode, path, real["body"]))

    assert answer == (real["status"], real["answer"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_failed_load_of_a_stream_is_told_as_a_real_engine_does(path: str) -> None:
    real = recorded("another engine id, streamed", path, "decode-fail")

    stream = simulated(lambda pair: pair.text(pair.decode, path, real["body"]))

    *opening, error = data_of(stream)
    *real_opening, real_error = data_of(real["answer"])
    assert error == real_error
    assert shape(opening) == shape(real_opening)
    assert stream.endswith("\n\ndata: [DONE]\n\n")


def test_a_failed_load_of_streamed_messages_is_told_as_a_real_engine_does() -> None:
    real = recorded("another engine id, streamed", MESSAGES, "decode-fail")

    stream = simulated(lambda pair: pair.text(pair.decode, MESSAGES, real["body"]))

    assert shape(data_of(stream)) == shape(data_of(real["answer"]))
    assert [e["type"] for e in data_of(stream)] == [e["type"] for e in data_of(real["answer"])]


@pytest.mark.parametrize("engine", ["prefill", "decode"])
def test_what_an_engine_tells_of_its_configuration_a_real_one_tells_too(engine: str) -> None:
    real = json.loads((DATA / f"server_info.{engine}.json").read_text())

    async def scenario(pair: Pair) -> Any:
        one = pair.prefill if engine == "prefill" else pair.decode
        return (await pair.get(one, "/server_info?config_format=json"))[1]

    told = json.loads(simulated(scenario))

    for section, fields in told["vllm_config"].items():
        real_fields = real["vllm_config"][section]
        assert {
            key: shape(fields[key]) for key in fields if key != "kv_connector_extra_config"
        } == {
            key: shape(real_fields[key]) for key in fields if key != "kv_connector_extra_config"
        }, section
    assert (
        told["vllm_config"]["kv_transfer_config"].keys()
        == real["vllm_config"]["kv_transfer_config"].keys()
    )
    assert told["vllm_env"].keys() - {"VLLM_SERVER_DEV_MODE"} == real["vllm_env"].keys()


@pytest.mark.parametrize("engine", ["prefill", "decode"])
def test_an_engine_has_the_metrics_of_transfers_that_a_real_one_has(engine: str) -> None:
    real = (DATA / f"metrics_before.{engine}.txt").read_text()

    async def scenario(pair: Pair) -> Any:
        one = pair.prefill if engine == "prefill" else pair.decode
        return (await pair.get(one, "/metrics"))[1]

    assert _samples(real) <= _samples(simulated(scenario).decode())


def _asks(body: Json) -> Json:
    """Of a prefill leg's body: what makes it one."""
    return {key: body[key] for key in body if key in ("max_tokens", "max_output_tokens")} | {
        "kv_transfer_params": body["kv_transfer_params"]
    }


def _samples(page: str) -> set[tuple[str, ...]]:
    """The names of a page's samples, with their labels."""
    found = re.findall(r"^(\S+)\{(.*)\} \S+$", page, re.MULTILINE)
    return {(name, *sorted(labels.split(","))) for name, labels in found}
