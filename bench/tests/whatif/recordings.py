"""Recordings whose truth is known: what a simulated fleet did with drawn chats, as a gateway would
have recorded it."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import ChatSpec, Workload, chats
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.whatif.replay import Asked, EngineFacts, Recording
from inferway_console.records.files import (
    FORMAT,
    PREFIX,
    SUFFIX,
    Blocks,
    FileHeader,
    FleetLine,
    RequestLine,
)
from inferway_console.records.record import RequestRecord

NO_COSTS: Mapping[str, float] = MappingProxyType({})
BEGAN = 1_700_000_000.0
MODEL = "llama"
TRUE = EngineSpec(
    step_seconds=0.01, decode_seconds=0.0005, prefill_seconds=0.0002, request_seconds=0.012,
    cache_tokens=60_032,
)  # fmt: skip
FLEET = FleetSpec(4, num_slow=0, engine=TRUE)
SPEC = ChatSpec(
    num_requests=800, system_prompts=6, system_tokens=(600, 0.3), message_tokens=(150, 0.6),
    answer_tokens=(40, 0.4), mean_turns=5.0, think_seconds=10.0, most_tokens=8_000,
)  # fmt: skip


def drawn(seed: int = 1, spec: ChatSpec = SPEC) -> Workload:
    """Chats whose answers are sent back."""
    return chats(seed, spec)


def recording(
    workload: Workload, policy: str = "expected-ttft", fleet: FleetSpec = FLEET, rate: float = 5.0,
    changed: Mapping[str, object] = MappingProxyType({}),
) -> Recording:  # fmt: skip
    """What a gateway with this policy would have recorded; `changed` fields are the same in all
    records."""
    outcome = simulate(workload, rate, fleet, policy_named(policy), 1)
    asked = []
    for number in outcome.arrived.argsort(kind="stable").tolist():
        request = workload.requests[number]
        fields: dict[str, object] = {
            "id": f"r{number}",
            "at": BEGAN + float(outcome.arrived[number]),
            "model": MODEL,
            "streamed": True,
            "prompt_tokens": request.prompt_tokens,
            "prompt_blocks": len(request.blocks),
            "block_size": workload.block_tokens,
            "picked_by": policy,
            "chosen": f"engine-{outcome.engine[number]}",
            "delivered_tokens": int(outcome.cached_tokens[number]),
            "usage_prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "ttft_ms": float(outcome.ttft[number]) * 1e3,
            "total_ms": float(outcome.latency[number]) * 1e3,
            "status": 200,
            "outcome": "ok",
        }
        record = RequestRecord(**{**fields, **changed})  # type: ignore[arg-type]
        asked.append(Asked(record, request.blocks))
    blocks = fleet.engine.cache_tokens // workload.block_tokens
    engines = {f"engine-{i}": EngineFacts(MODEL, blocks) for i in range(fleet.num_engines)}
    return Recording(asked, engines)


def written(recorded: Recording, directory: Path, costs: Mapping[str, float] = NO_COSTS) -> Path:
    """Write a recording as `inferway serve --record` does. Return the file."""
    path = directory / f"{PREFIX}1{SUFFIX}"
    ids: dict[int, int] = {}
    encode = msgspec.json.encode
    with gzip.open(path, "wb") as file:
        file.write(encode(FileHeader(FORMAT, BEGAN, "0", (128,), "salt")) + b"\n")
        for name, facts in recorded.engines.items():
            line = FleetLine(
                BEGAN, "joined", name, "up", (facts.model,), (name,), 128, facts.cache_blocks,
                costs=dict(costs),
            )  # fmt: skip
            file.write(encode(line) + b"\n")
        for each in recorded.requests:
            known = next((i for i, b in enumerate(each.blocks) if b not in ids), len(each.blocks))
            after = ids[each.blocks[known - 1]] if known else -1
            new = each.blocks[known:]
            ids.update({block: len(ids) + i for i, block in enumerate(new)})
            raw = b"".join(block.to_bytes(8, "little") for block in new)
            blocks = Blocks(after, b64encode(raw).decode())
            file.write(encode(RequestLine(each.record, blocks)) + b"\n")
    return path
