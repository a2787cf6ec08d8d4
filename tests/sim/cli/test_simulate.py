"""The flags of `inferway simulate` -> its configuration."""

from __future__ import annotations

from inferway_sim.cli.simulate import DEFAULT_NAME, make_config, simulate
from inferway_sim.config import TransferConfig
from inferway_sim.kv_groups.spec import KvGroup, KvGroups, SpeculativeDecoding
from inferway_sim.prepare import PACKAGED_SMOLLM2


def transfer(*words: str) -> TransferConfig | None:
    return make_config(
        simulate.make_context("simulate", ["--model", "m", *words]).params
    ).kv_transfer


def test_without_a_connector_an_engine_hands_blocks_to_nobody() -> None:
    assert transfer() is None


def test_with_a_connector_the_defaults_are_vllms() -> None:
    assert transfer("--kv-transfer", "nixl") == TransferConfig()


def test_each_flag_of_a_transfer_is_heeded() -> None:
    words = (
        "--kv-transfer sglang --kv-role producer --kv-transfer-port 9001 --host 127.0.0.2 "
        "--kv-lease 10s --kv-transfer-overhead 2ms --kv-transfer-time-per-block 1ms "
        "--kv-load-failure-policy recompute"
    )

    assert transfer(*words.split()) == TransferConfig(
        connector="sglang",
        role="producer",
        lease_seconds=10.0,
        overhead=0.002,
        time_per_block=0.001,
        load_failure_policy="recompute",
        host="127.0.0.2",
        port=9001,
    )


def test_smollm2_by_its_name_needs_no_hub() -> None:
    named = make_config(simulate.make_context("simulate", ["--model", DEFAULT_NAME]).params)
    unnamed = make_config(simulate.make_context("simulate", []).params)

    assert named == unnamed
    assert (named.model, named.served_model_names) == (str(PACKAGED_SMOLLM2), (DEFAULT_NAME,))


def groups(*words: str) -> KvGroups | None:
    return make_config(simulate.make_context("simulate", ["--model", "m", *words]).params).kv_groups


def test_without_groups_and_speculation_an_engine_has_the_plain_cache() -> None:
    assert groups() is None


def test_each_flag_of_groups_and_speculation_is_heeded() -> None:
    words = (
        "--kv-groups full:64,mamba:align:64 --prefix-cache-retention-interval 128 "
        "--prefix-match-unit 16 --speculation mtp --num-speculative-tokens 2 "
        "--speculation-acceptance 0.25 --hash-lookahead-tokens 2 --max-num-batched-tokens 512 "
        "--vllm-version 0.33"
    )

    assert groups(*words.split()) == KvGroups(
        (KvGroup("full", 64), KvGroup("mamba", 64)),
        retention_interval=128,
        match_unit=16,
        speculation=SpeculativeDecoding("mtp", 2, 2, 0.25),
        max_num_batched_tokens=512,
        version="0.33",
    )


def test_speculation_alone_has_one_group_of_full_attention() -> None:
    assert groups("--speculation", "eagle", "--block-size", "32") == KvGroups(
        (KvGroup("full", 32),), speculation=SpeculativeDecoding("eagle", 1)
    )


def test_none_as_the_retention_interval_keeps_all() -> None:
    found = groups("--kv-groups", "full,window:64", "--prefix-cache-retention-interval", "none")

    assert found is not None
    assert found.retention_interval is None


def test_the_longest_prompt_is_as_long_as_the_groups_blocks_allow() -> None:
    words = "--model m --kv-groups full,mamba:align --kv-cache-size 101 --max-num-batched-tokens 16"
    config = make_config(simulate.make_context("simulate", words.split()).params)

    assert config.max_model_len == 98 * 16
