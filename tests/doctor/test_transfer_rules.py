"""What is said of engines that hand KV blocks to each other."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

from inferway.config import EngineSettings
from inferway.doctor.facts import EngineReport, GatewayReport
from inferway.doctor.gateway import ask_gateway
from inferway.doctor.rules import CheckResult, Level
from inferway.doctor.transfer_rules import judge_legs, judge_transfers
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.kv_transfer import KvTransferFacts
from inferway.model import KvConnector
from inferway.telemetry.traffic_counts import TrafficCounts

from .servers import serving

NIXL = KvTransferFacts(
    KvConnector.NIXL,
    kv_role="kv_consumer",
    lease_seconds=30.0,
    recomputes=True,
    dtype="bfloat16, cache auto",
    in_full=True,
)


def nixl(**fields: Any) -> KvTransferFacts:
    return msgspec.structs.replace(NIXL, **fields)


def engine(
    number: int = 1,
    told: KvTransferFacts | None = NIXL,
    block_size: int = 16,
    version: str = "0.32.0",
    root: str = "/m",
    **settings: Any,
) -> EngineReport:
    models = (ModelCard("m", root, None, None, "vllm"),)
    facts = EngineFacts(models, (), block_size, (), version, kv_transfer=told)
    url = f"http://10.0.0.{number}:8000"
    return EngineReport(EngineSettings(url=url, name=f"e{number}", **settings), 200, told=facts)


def trouble(*engines: EngineReport) -> list[CheckResult]:
    return [found for found in judge_transfers(engines) if found.level is not Level.OK]


def only(*engines: EngineReport) -> CheckResult:
    (found,) = trouble(*engines)
    return found


def test_engines_without_connector_and_role_are_not_spoken_of() -> None:
    assert list(judge_transfers([engine(told=None), EngineReport(EngineSettings(url="u"))])) == []


def test_two_equal_engines_are_fine_and_told() -> None:
    found = list(judge_transfers([engine(1), engine(2)]))

    said = "hands over KV blocks by nixl, role both, with leases of 30 s"
    assert found == [CheckResult(Level.OK, f"engine e{n}", said) for n in (1, 2)]


def test_kv_both_is_a_note() -> None:
    (first, _) = judge_transfers([engine(told=nixl(kv_role="kv_both")), engine(2)])

    assert first.level is Level.OK
    assert "deprecated" in first.evidence


@pytest.mark.parametrize(
    ("other", "evidence", "cure"),
    [
        (engine(2, block_size=32), "block size 16 here, 32 there", "the same --block-size"),
        (engine(2, version="0.31.0"), "version 0.32.0 here, 0.31.0 there", "the same version"),
        (engine(2, root="/n"), "model /m here, /n there", "the same model"),
        (
            engine(2, nixl(dtype="float16, cache auto")),
            "dtype bfloat16, cache auto here, float16, cache auto there",
            "the same --dtype",
        ),
        (
            engine(2, nixl(dtype="")),
            "dtype bfloat16, cache auto here, unknown there",
            "VLLM_SERVER_DEV_MODE=1",
        ),
        (
            engine(2, nixl(connector=KvConnector.NIXL_PUSH)),
            "connector nixl here, nixl-push there",
            "the same kv_connector",
        ),
    ],
)
def test_engines_that_differ_are_told_in_what(
    other: EngineReport, evidence: str, cure: str
) -> None:
    first, second = trouble(engine(1), other)

    assert (first.level, first.subject) == (Level.FAIL, "engine e1")
    assert first.evidence == f"it can neither hand KV blocks to e2 nor take them: {evidence}"
    assert cure in first.cure
    assert second.subject == "engine e2"


def test_an_engine_with_a_connector_alone_is_told() -> None:
    found = only(engine(1), engine(2, told=None))

    assert found.level is Level.WARN
    assert "no other engine of its model has one for the other leg" in found.evidence
    assert '--kv-transfer-config \'{"kv_connector":"NixlConnector"' in found.cure


def test_a_role_without_a_connector_is_told() -> None:
    found = only(engine(1, told=None, role="decode"), engine(2, told=None))

    assert found.evidence.startswith("its role is 'decode', and no connector is known")
    assert '"kv_role":"kv_consumer"' in found.cure


def test_roles_that_leave_nobody_to_decode_fail() -> None:
    found = trouble(engine(1, role="prefill"), engine(2, labels={"llm-d.ai/role": "prefill"}))

    assert found[0] == CheckResult(
        Level.FAIL,
        "fleet",
        "model m: roles leave nobody to decode: prefill",
        "give one of its engines the role decode or both, or no role",
    )


def test_roles_that_leave_nobody_to_prefill_are_a_warning() -> None:
    found = trouble(engine(1, role="decode"), engine(2, role="decode"))

    assert (found[0].level, found[0].subject) == (Level.WARN, "fleet")
    assert "nobody to prefill for others: decode" in found[0].evidence


@pytest.mark.parametrize(
    ("recomputes", "evidence"),
    [(False, "kv_load_failure_policy is 'fail'"), (None, "cannot be seen from here")],
)
def test_an_engine_that_fails_with_its_prefill_engine_is_told(
    recomputes: bool | None, evidence: str
) -> None:
    found = only(engine(1, nixl(recomputes=recomputes)), engine(2))

    assert found.level is Level.WARN
    assert evidence in found.evidence
    assert '"kv_load_failure_policy":"recompute"' in found.cure


def test_one_that_only_prefills_loads_nothing_that_could_fail() -> None:
    assert trouble(engine(1, nixl(recomputes=False), role="prefill"), engine(2)) == []


def test_a_decode_role_for_a_kv_producer_fails() -> None:
    found = only(engine(1, nixl(takes=False, kv_role="kv_producer"), role="decode"), engine(2))

    assert found.level is Level.FAIL
    assert "kv_role 'kv_producer': it frees blocks while a step may still write" in found.evidence
    assert "kv_role 'kv_consumer'" in found.cure


def test_a_side_channel_that_others_do_not_reach_is_told() -> None:
    found = only(engine(1, nixl(host="localhost", hosts=("10.0.0.1",))), engine(2))

    assert "VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.1" in found.evidence


def test_leases_that_leave_no_time_to_queue_a_request_are_told() -> None:
    found = only(engine(1, nixl(lease_seconds=6.0)), engine(2))

    assert "last 6 s, less a margin of 5 s: others have 1 s" in found.evidence
    assert '"kv_lease_duration"' in found.cure


def test_a_gateways_prefill_legs_are_read_and_judged_by_outcome() -> None:
    page = (
        "# TYPE inferway_prefill_legs_total counter\n"
        'inferway_prefill_legs_total{engine="h:8001",outcome="ok"} 1.0e+06\n'
        'inferway_prefill_legs_total{engine="h:8002",outcome="no-parameters"} 3.0\n'
    )

    async def traffic(_: web.Request) -> web.Response:
        return web.json_response(TrafficCounts(by_prompt=7).told())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=page)

    async def run() -> GatewayReport | None:
        app = web.Application()
        app.router.add_get("/admin/traffic", traffic)
        app.router.add_get("/metrics", metrics)
        async with serving(app) as url:
            return await ask_gateway(url)

    told = asyncio.run(run())

    assert told is not None
    fine, kept_nothing = judge_legs(told)
    assert "1000000 of 1000003 prompts" in fine.evidence
    assert kept_nothing.level is Level.WARN
    assert "3 prefill legs of engine h:8002 ended as 'no-parameters'" in kept_nothing.evidence


def test_a_gateway_without_prefill_legs_is_not_spoken_of() -> None:
    assert list(judge_legs(GatewayReport("http://h:1"))) == []
