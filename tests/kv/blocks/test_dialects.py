"""Our block hashes are vLLM's: golden values made by vLLM's own functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferway.kv.blocks.dialects import (
    ALGORITHMS,
    DEFAULT_SEED,
    Dialect,
    HashExtra,
    LoraAdapter,
    cbor,
    published_extras,
    wire_hash,
)

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden/blocks/vllm_hashes.json").read_text()
)
TOKENS: list[int] = GOLDEN["token_ids"]
SIZE: int = GOLDEN["block_size"]
RUNS = [pytest.param(run, id=f"{run['algorithm']}-{run['seed']}") for run in GOLDEN["runs"]]


def dialect(run: dict[str, Any]) -> Dialect:
    return Dialect(run["algorithm"], DEFAULT_SEED if run["seed"] is None else run["seed"])


def tuples(extras: list[list[Any]] | None) -> tuple[HashExtra, ...] | None:
    return None if extras is None else tuple(tuple(extra) for extra in extras)


def test_the_golden_file_covers_every_algorithm() -> None:
    assert {run["algorithm"] for run in GOLDEN["runs"]} == set(ALGORITHMS)


@pytest.mark.parametrize("run", RUNS)
def test_the_root_is_the_hash_of_the_seed(run: dict[str, Any]) -> None:
    assert dialect(run).none_hash.hex() == run["none_hash"]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("case", ["plain", "lora", "salt", "lora_salt", "pictures"])
def test_block_hashes_are_those_of_vllm(run: dict[str, Any], case: str) -> None:
    golden = run["cases"][case]
    hashes: list[bytes] = []
    for i, extras in enumerate(golden["hash_extras"]):
        tokens = TOKENS[i * SIZE : (i + 1) * SIZE]
        parent = hashes[-1] if hashes else None
        hashes.append(dialect(run).block_hash(parent, tokens, tuples(extras)))

    assert [h.hex() for h in hashes] == golden["hashes"]
    assert [wire_hash(h) for h in hashes] == golden["wire"]


@pytest.mark.parametrize("run", RUNS)
def test_a_prompt_with_adapter_and_salt_hashes_as_in_vllm(run: dict[str, Any]) -> None:
    lora = LoraAdapter("alice", "/adapters/alice")

    hashes = list(dialect(run).block_hashes(TOKENS, SIZE, lora=lora, cache_salt="s"))

    assert [h.hex() for h in hashes] == run["cases"]["lora_salt"]["hashes"]


@pytest.mark.parametrize("case", ["lora", "salt", "lora_salt", "pictures"])
def test_extras_are_published_as_vllm_publishes_them(case: str) -> None:
    golden = GOLDEN["runs"][0]["cases"][case]

    published = [published_extras(tuples(extras)) for extras in golden["hash_extras"]]

    assert published == golden["event_extras"]


def test_a_block_that_is_not_full_has_no_hash() -> None:
    assert len(list(Dialect().block_hashes(TOKENS[: SIZE + SIZE - 1], SIZE))) == 1


def test_an_unknown_algorithm_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no block hash 'md5'; known: sha256, sha256_cbor"):
        Dialect("md5")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65_536, "1a00010000"),
        (2**32, "1b0000000100000000"),
        (-1, "20"),
        (-500, "3901f3"),
        (None, "f6"),
        (b"\x01", "4101"),
        ("ü", "62c3bc"),
        ((1, [2, 3]), "8201820203"),
    ],
)
def test_cbor_is_canonical(value: object, encoded: str) -> None:
    """Examples of RFC 8949, appendix A."""
    assert cbor(value).hex() == encoded


@pytest.mark.parametrize("value", [1.5, True, {}, 2**64])
def test_cbor_refuses_what_is_no_part_of_a_block(value: object) -> None:
    with pytest.raises(TypeError, match="cbor: "):
        cbor(value)
