"""How engines hand KV blocks to each other: told, or given by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.fleet.servers import serving

from inferway.config import EngineSettings
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.kv_transfer import (
    KvTransferFacts,
    ask_kv_transfer,
    kv_transfer_of,
    names_of,
    parse_metrics,
    parse_server_info,
    side_channel_finding,
)
from inferway.model import KvConnector, KvTransfer

V32 = (0, 32)
NIXL_METRICS = 'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="m"} 0.0\n'
TAKING = 'vllm:num_requests_kv_fetch_by_stage{engine="0",stage="in_progress"} 0.0\n'


def server_info(
    connector: str = "NixlConnector",
    role: str = "kv_both",
    environment: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    **more: Any,
) -> bytes:
    """As vLLM 0.32 writes it, with a little of what else is there."""
    transfer = {
        "kv_connector": connector,
        "engine_id": "0ea8fff3-dbe8-48fd-b67c-4cccaff90cff",
        "kv_role": role,
        "kv_port": 14579,
        "kv_connector_extra_config": extra or {},
        "kv_load_failure_policy": "fail",
        **more,
    }
    page = {
        "vllm_config": {
            "model_config": {"model": "/m", "dtype": "torch.bfloat16"},
            "cache_config": {"block_size": 32, "cache_dtype": "auto"},
            "kv_transfer_config": transfer,
        },
        "vllm_env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.5", **(environment or {})},
        "system_env": {"is_debug_build": "False"},
    }
    return json.dumps(page).encode()


def told(raw: bytes) -> KvTransferFacts:
    found = parse_server_info(raw)
    assert found is not None
    return found


def facts(of: KvTransferFacts | None = None, **fields: Any) -> EngineFacts:
    fields = {"block_size": 16, "version": "0.32.0", **fields}
    models = (ModelCard("m", "/m", None, None, "vllm"),)
    return EngineFacts(models, (), findings=(), kv_transfer=of, **fields)


def transfer(of: EngineFacts, url: str = "http://10.0.0.5:8000", **settings: Any) -> KvTransfer:
    found = kv_transfer_of(EngineSettings(url=url, **settings), of, 30.0)
    assert found is not None
    return found


NIXL = KvTransferFacts(KvConnector.NIXL)


def test_a_development_server_tells_connector_lease_policy_and_side_channel() -> None:
    found = told(server_info(role="kv_consumer", extra={"kv_lease_duration": 60}))

    assert found == KvTransferFacts(
        KvConnector.NIXL,
        kv_role="kv_consumer",
        lease_seconds=60.0,
        recomputes=False,
        dtype="bfloat16, cache auto",
        host="10.0.0.5",
        in_full=True,
    )


@pytest.mark.parametrize(
    ("named", "connector"),
    [
        ("NixlConnector", KvConnector.NIXL),
        ("NixlPullConnector", KvConnector.NIXL),
        ("NixlPushConnector", KvConnector.NIXL_PUSH),
        ("MooncakeConnector", KvConnector.MOONCAKE),
    ],
)
def test_connectors_have_their_own_names_in_vllm(named: str, connector: KvConnector) -> None:
    assert told(server_info(named)).connector is connector


def test_of_several_connectors_the_one_that_hands_over_counts() -> None:
    parts = [
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
        {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"kv_lease_duration": 7},
        },
    ]

    raw = server_info("MultiConnector", extra={"connectors": parts})
    found = told(server_info("MultiConnector", "kv_producer", extra={"connectors": parts}))

    assert (found.connector, found.lease_seconds) == (KvConnector.NIXL, 7.0)
    assert not found.takes  # the whole frees blocks too early for those of others
    assert told(raw).takes


@pytest.mark.parametrize(
    "raw",
    [
        server_info("OffloadingConnector"),
        server_info(extra={"kv_lease_duration": "soon"}),
        b'{"vllm_config": "text"}',
        b'{"vllm_config": {"kv_transfer_config": null}}',
        b'{"disaggregation_mode": "null"}',
        b"{}",
        b"[]",
        b"\xff",
        b" " * 2**20 + server_info(),
    ],
)
def test_what_is_another_page_or_connector_tells_nothing(raw: bytes) -> None:
    assert parse_server_info(raw) is None


def test_no_lease_that_is_none_is_believed() -> None:
    leases = [told(server_info(extra={"kv_lease_duration": n})).lease_seconds for n in (0, -1, 1e9)]

    assert leases == [None, None, None]


@pytest.mark.parametrize(
    ("connector", "role", "may"),
    [
        ("NixlConnector", "kv_both", "both"),
        ("NixlConnector", "kv_consumer", "both"),  # the role is per request
        ("NixlConnector", "kv_producer", "prefill"),  # blocks of others are not safe in it
        ("MooncakeConnector", "kv_both", "both"),
        ("MooncakeConnector", "kv_consumer", "decode"),
        ("MooncakeConnector", "kv_producer", "prefill"),
    ],
)
def test_the_role_of_vllm_is_what_its_code_does_with_it(
    connector: str, role: str, may: str
) -> None:
    assert transfer(facts(told(server_info(connector, role)))).role == may


def test_sglang_tells_its_mode_and_bootstrap_port() -> None:
    page = {
        "disaggregation_mode": "prefill",
        "disaggregation_bootstrap_port": 8998,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "api_key": "s3cret",
    }
    found = told(json.dumps(page).encode())

    hands = transfer(facts(found), url="http://[fd00::5]:30000")

    assert (hands.connector, hands.role) == (KvConnector.SGLANG, "prefill")
    assert hands.bootstrap == "[fd00::5]:8998"
    assert "s3cret" not in repr((found, hands))


def test_metrics_show_nixl_and_whether_it_takes_blocks() -> None:
    producer, consumer = NIXL_METRICS, NIXL_METRICS + TAKING

    assert parse_metrics("vllm:num_requests_running 1\n", V32) is None
    assert parse_metrics(consumer, V32) == NIXL
    assert parse_metrics(producer, V32) == KvTransferFacts(
        KvConnector.NIXL, takes=False, kv_role="kv_producer"
    )
    assert parse_metrics(producer, (0, 20)) == NIXL  # it might not have had the other family
    assert parse_metrics(producer, None) == NIXL


@pytest.mark.parametrize(
    ("label", "may"),
    [
        ("prefill", "prefill"),
        ("encode-prefill", "prefill"),
        ("decode", "decode"),
        ("prefill-decode", "both"),
        ("both", "both"),
        ("encode-prefill-decode", "both"),
        ("encode", "none"),
    ],
)
def test_an_operators_role_wins_over_what_is_told(label: str, may: str) -> None:
    of = facts(msgspec.structs.replace(NIXL, takes=False))

    assert transfer(of, labels={"llm-d.ai/role": label}).role == may


def test_role_is_short_for_the_label() -> None:
    settings = EngineSettings(url="http://h:1", role="decode", labels={"zone": "a"})

    assert settings.all_labels == {"zone": "a", "llm-d.ai/role": "decode"}
    assert transfer(facts(NIXL), role="decode").role == "decode"


def test_by_hand_is_what_an_engine_does_not_tell() -> None:
    nobody = kv_transfer_of(EngineSettings(url="http://h:1"), facts(), 30.0)
    mooncake = transfer(facts(), kv_connector="mooncake", kv_bootstrap="10.0.0.5:8998")
    # metrics cannot tell pushing from pulling
    push = transfer(facts(parse_metrics(NIXL_METRICS, None)), kv_connector="nixl-push")

    assert nobody is None
    assert (mooncake.connector, mooncake.bootstrap) == (KvConnector.MOONCAKE, "10.0.0.5:8998")
    assert (push.connector, push.role) == (KvConnector.NIXL_PUSH, "both")


def test_a_lease_that_is_not_told_is_the_settings() -> None:
    settings = EngineSettings(url="http://h:1")
    of = msgspec.structs.replace(NIXL, lease_seconds=8.0)

    leases = [kv_transfer_of(settings, facts(each), 12.0) for each in (NIXL, of)]

    assert [each and each.lease_seconds for each in leases] == [12.0, 8.0]


@pytest.mark.parametrize(
    "other",
    [
        facts(NIXL, block_size=32),
        facts(NIXL, block_size=None),
        facts(NIXL, version="0.31.0"),
        facts(msgspec.structs.replace(NIXL, dtype="float16, cache auto")),
        facts(msgspec.structs.replace(NIXL, connector=KvConnector.NIXL_PUSH)),
        facts(msgspec.structs.replace(NIXL, takes=False)),
    ],
)
def test_engines_that_differ_hand_nothing_to_each_other(other: EngineFacts) -> None:
    giver = transfer(facts(NIXL))

    assert giver.hands_to(transfer(facts(NIXL)))
    assert not giver.hands_to(transfer(other))
    assert not giver.hands_to(None)


def test_a_side_channel_is_at_the_host_of_the_url_by_whatever_name() -> None:
    of = msgspec.structs.replace(NIXL, hosts=("engine-0", "10.0.0.5"), host="10.0.0.5")
    settings = EngineSettings(url="http://engine-0:8000")

    assert side_channel_finding(settings, facts(of)) is None
    assert transfer(facts(of), url=settings.url).hosts == ("engine-0", "10.0.0.5")


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "127.0.0.1"])
def test_a_side_channel_that_other_machines_do_not_reach_is_a_finding(host: str) -> None:
    of = msgspec.structs.replace(NIXL, hosts=("10.0.0.5",), host=host)

    found = side_channel_finding(EngineSettings(url="http://10.0.0.5:8000"), facts(of))

    assert found is not None
    assert f"{host!r}, which other machines do not reach" in found
    assert "start it with VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.5" in found
    assert host not in transfer(facts(of)).hosts


def test_another_host_counts_only_if_it_is_given_by_hand() -> None:
    of = msgspec.structs.replace(NIXL, hosts=("10.0.0.5",), host="192.168.0.5")
    plain = EngineSettings(url="http://10.0.0.5:8000")
    given = EngineSettings(url=plain.url, kv_host="192.168.0.5")

    found = side_channel_finding(plain, facts(of))

    assert found is not None
    assert "--engine URL,kv_host=192.168.0.5" in found
    assert side_channel_finding(given, facts(of)) is None
    assert "192.168.0.5" in transfer(facts(of), kv_host="192.168.0.5").hosts
    assert "192.168.0.5" not in transfer(facts(of)).hosts


async def test_loopback_has_three_names_and_an_address_one() -> None:
    assert await names_of("localhost") == ("127.0.0.1", "::1", "localhost")
    assert await names_of("10.0.0.5") == ("10.0.0.5",)
    assert await names_of("no.such.host.invalid") == ("no.such.host.invalid",)


async def asked(
    status: int, page: bytes = b"", metrics: str = "", before: KvTransferFacts | None = None
) -> KvTransferFacts | None:
    """What is found of an engine that answers so; 0: it breaks the connection."""

    async def answer(request: web.Request) -> web.Response:
        assert request.path_qs == "/server_info?config_format=json"
        if not status:
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=status or 200, body=page)

    async with serving(answer) as url, EngineClient() as client:
        return await ask_kv_transfer(client, url, [], metrics, V32, before)


LOCAL = ("127.0.0.1", "::1", "localhost")


async def test_an_engine_out_of_development_is_known_by_its_metrics() -> None:
    assert await asked(404) is None
    assert await asked(404, metrics=NIXL_METRICS + TAKING) == KvTransferFacts(
        KvConnector.NIXL, hosts=LOCAL
    )


async def test_a_restart_with_other_flags_renews_what_is_known() -> None:
    before = await asked(200, server_info())
    after = await asked(200, server_info("NixlPushConnector"), before=before)

    assert before is not None
    assert after == msgspec.structs.replace(before, connector=KvConnector.NIXL_PUSH)
    assert await asked(404, before=before) is None


async def test_what_was_told_stands_while_the_engine_is_too_busy_to_tell_it_again() -> None:
    before = await asked(200, server_info())

    assert before is not None
    assert await asked(0, metrics=NIXL_METRICS, before=before) == before
