"""Records what vLLM's publisher writes of groups of KV caches, and what vLLM reuses:

    VLLM_PYTHON tests/golden/events/record_vllm_groups.py

run at the root of the repository, with the sources of another version first in PYTHONPATH if it is
not the installed one's (tests/engines/cache_oracle.py). It writes vllm_groups_VERSION.json beside
itself: of each case the payloads of a short history, and its look-ups: (payloads published before,
tokens of the prompt, tokens reused)."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from msgspec.structs import asdict
from tests.engines.cache_oracle import (
    CASES,
    HAS_LOOKAHEAD,
    Case,
    History,
    Tally,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

import vllm

LOOK_UPS = 14
RECORDED = (
    "full",
    "full+window",
    "full 64+window 32+window 16",
    "full+mamba align",
    "full+mamba align, hash finer",
    "full+local",
    "windows alone",
    "full, eagle",
    "full, look-ahead 2",
    "full+mamba align, look-ahead 1",
)


def recorded(case: Case) -> dict[str, Any]:
    payloads: list[bytes] = []
    look_ups: list[tuple[int, list[int], int]] = []

    def look_up(ids: list[int], hit: int) -> None:
        look_ups.append((len(payloads), ids, hit))

    History(case, 5, Tally(), payloads.append, look_up).run(LOOK_UPS)
    facts = asdict(case.facts)
    encoded = [base64.b64encode(payload).decode() for payload in payloads]
    return {"facts": facts, "payloads": encoded, "look_ups": look_ups}


def main() -> None:
    init_none_hash(sha256)
    found = {}
    for name in RECORDED:
        case = CASES[name]
        if case.lookahead and not HAS_LOOKAHEAD:
            continue
        found[name] = recorded(case)
    file = Path(__file__).parent / f"vllm_groups_{vllm.__version__}.json"
    file.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
