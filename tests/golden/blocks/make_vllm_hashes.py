# mypy: ignore-errors
"""Writes vllm_hashes.json. Run by hand with a Python that has vLLM:

PYTHONHASHSEED=... is set by the script itself, per case.
/path/to/vllm-venv/bin/python tests/golden/blocks/make_vllm_hashes.py
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as kv

import vllm

BLOCK_SIZE = 16
TOKENS = [(i * 7919 + 11) % 151_936 for i in range(3 * BLOCK_SIZE)] + [0, 255, 256, 65_536]
LORA = SimpleNamespace(lora_name="alice", lora_path="/adapters/alice")
PICTURES = [
    SimpleNamespace(identifier="a" * 64, mm_position=SimpleNamespace(offset=4, length=6)),
    SimpleNamespace(identifier="b" * 64, mm_position=SimpleNamespace(offset=12, length=20)),
]
CASES = {
    "plain": {},
    "lora": {"lora_request": LORA},
    "salt": {"cache_salt": "tenant ü"},
    "lora_salt": {"lora_request": LORA, "cache_salt": "s"},
    "pictures": {"mm_features": PICTURES, "lora_request": LORA, "cache_salt": "s"},
}


def request(fields):
    return SimpleNamespace(
        block_hashes=[],
        num_tokens=len(TOKENS),
        all_token_ids=TOKENS,
        mm_features=fields.get("mm_features", []),
        lora_request=fields.get("lora_request"),
        cache_salt=fields.get("cache_salt"),
        prompt_embeds=None,
    )


def hashed(algorithm, seed):
    os.environ.pop("PYTHONHASHSEED", None)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    hash_fn = get_hash_fn_by_name(algorithm)
    kv.init_none_hash(hash_fn)
    hasher = kv.get_request_block_hasher(BLOCK_SIZE, hash_fn)
    cases = {}
    for name, fields in CASES.items():
        extras = []
        at = 0
        for start in range(0, 3 * BLOCK_SIZE, BLOCK_SIZE):
            keys, at = kv.generate_block_hash_extra_keys(
                request(fields), start, start + BLOCK_SIZE, at
            )
            extras.append(keys)
        hashes = hasher(request(fields))
        cases[name] = {
            "hashes": [h.hex() for h in hashes],
            "wire": [kv.maybe_convert_block_hash(h) for h in hashes],
            "hash_extras": extras,
            "event_extras": kv.to_event_extra_keys(extras),
        }
    return {
        "algorithm": algorithm,
        "seed": seed,
        "none_hash": kv.NONE_HASH.hex(),
        "cases": cases,
    }


runs = [
    hashed(algorithm, seed)
    for algorithm in ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
    for seed in (None, "0", "42")
    if seed is not None or algorithm.startswith("sha256")
]
golden = {
    "source": f"vllm {vllm.__version__}, {Path(__file__).name}",
    "block_size": BLOCK_SIZE,
    "token_ids": TOKENS,
    "runs": runs,
}
Path(__file__).with_name("vllm_hashes.json").write_text(json.dumps(golden, indent=1) + "\n")
