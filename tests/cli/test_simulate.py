"""The flags of `inferway simulate` -> its configuration."""

from __future__ import annotations

from inferway.cli.simulate import DEFAULT_NAME, make_config, simulate
from inferway.prompts.files.prepare import PACKAGED_SMOLLM2
from inferway.simulator.config import TransferConfig


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
