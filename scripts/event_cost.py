"""What an engine's events cost beside another version of the gateway: CPU time and bytecode.

python scripts/event_cost.py OTHER_CHECKOUT [ROUNDS]

Both versions take the same batches by turns, each in a process of its own. *Follower* is the way
from a batch's bytes to index operations, *index* is `apply` of these. A batch has one event; with
removals, and while sixteen requests are decoded, it has sixteen, of one block each. A *step* of a
full engine makes room for the blocks that it stores: a batch has a removal of each of so many
blocks, and one event that stores as many. Shown is the least of all rounds, batch by batch, for
what else runs on the machine only ever adds to it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

BLOCK_SIZE = 16
PROMPT_BLOCKS = 128
BLOCKS = 8_192  # of a round
TRACED = 64  # batches whose bytecode is counted
VOCABULARY = 128_000


def stored_fields(hashes: list[Any], parent: Any, tokens: list[int]) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def as_map(hashes: list[int], parent: int | None, tokens: list[int]) -> Any:
    group = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    return stored_fields(hashes, parent, tokens) | group


def as_map_with_extra_keys(hashes: list[int], parent: int | None, tokens: list[int]) -> Any:
    """Of vLLM 0.32, which names what else is hashed with each block: here nothing."""
    return as_map(hashes, parent, tokens) | {"extra_keys": [None] * len(hashes)}


def as_map_of_bytes(hashes: list[int], parent: int | None, tokens: list[int]) -> Any:
    full = [bytes(24) + block_hash.to_bytes(8, "big") for block_hash in hashes]
    before = None if parent is None else bytes(24) + parent.to_bytes(8, "big")
    return as_map(full, before, tokens)  # type: ignore[arg-type]


def as_array(hashes: list[int], parent: int | None, tokens: list[int]) -> Any:
    """Of SGLang: signed hashes, and no more than seven fields."""
    signed = [_signed(block_hash) for block_hash in hashes]
    fields = stored_fields(signed, None if parent is None else _signed(parent), tokens)
    return list(fields.values())[:-1]


def _signed(block_hash: int) -> int:
    return block_hash - (1 << 64) if block_hash >> 63 else block_hash


FORMS: dict[str, Callable[[list[int], int | None, list[int]], Any]] = {
    "vLLM": as_map,
    "vLLM 0.32": as_map_with_extra_keys,
    "vLLM, hashes as bytes": as_map_of_bytes,
    "SGLang": as_array,
}


def chains(size: int, seed: int) -> Iterator[tuple[list[int], int | None, list[int]]]:
    numbers = random.Random(seed)
    for start in range(0, BLOCKS, size):
        if not start % PROMPT_BLOCKS:
            parent: int | None = None
        hashes = [numbers.getrandbits(64) for _ in range(size)]
        yield hashes, parent, [numbers.randrange(VOCABULARY) for _ in range(size * BLOCK_SIZE)]
        parent = hashes[-1]


def zmq_batches(form: str, size: int, seed: int) -> list[bytes]:
    import msgspec

    encode = msgspec.msgpack.encode
    made = [FORMS[form](*each) for each in chains(size, seed)]
    return [encode([1700000000.5, [event], 0]) for event in made]


def removals(seed: int) -> list[bytes]:
    import msgspec

    gone = [as_removals(hashes) for hashes, _, _ in chains(16, seed)]
    return [msgspec.msgpack.encode([1700000000.5, events, 0]) for events in reversed(gone)]


def as_removals(hashes: list[int]) -> list[dict[str, Any]]:
    return [
        {"type": "BlockRemoved", "block_hashes": [each], "medium": "GPU", "group_idx": 0}
        for each in reversed(hashes)
    ]


def steps(size: int, seed: int) -> list[bytes]:
    """Of vLLM 0.32, which is full of the blocks of `zmq_batches(..., size, seed)`."""
    import msgspec

    gone = [as_removals(hashes) for hashes, _, _ in chains(size, seed)]
    new = [as_map_with_extra_keys(*each) for each in chains(size, seed + BLOCKS)]
    return [
        msgspec.msgpack.encode([1700000000.5, [*removed, stored], 0])
        for removed, stored in zip(reversed(gone), new, strict=True)
    ]


def decoding(seed: int) -> list[bytes]:
    """Of vLLM 0.32, while sixteen requests generate: a batch has the next block of each."""
    import msgspec

    each = [islice(chains(1, 16 * seed + number), BLOCKS // 16) for number in range(16)]
    return [
        msgspec.msgpack.encode([1700000000.5, [as_map_with_extra_keys(*one) for one in step], 0])
        for step in zip(*each, strict=True)
    ]


def tensorrt_batches(size: int, seed: int) -> list[bytes]:
    made = []
    for number, (hashes, parent, tokens) in enumerate(chains(size, seed)):
        blocks = [
            {
                "block_hash": block_hash,
                "tokens": [
                    {"token_id": token, "token_extra_id": 0}
                    for token in tokens[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
                ],
                "cache_level": 0,
            }
            for i, block_hash in enumerate(hashes)
        ]
        data = {"type": "stored", "parent_hash": parent, "blocks": blocks}
        made.append(json.dumps({"event_id": number, "data": data}).encode())
    return made


class Follower:
    """The gateway's way of one engine's events, without the sockets."""

    def __init__(self, form: str) -> None:
        from inferway.kv.events.adapters import sglang, tensorrt_llm
        from inferway.kv.events.apply import EngineBlocks
        from inferway.kv.events.dialect_finder import DialectFinder, DialectState
        from inferway.kv.events.event_applier import EventApplier
        from inferway.kv.index.memory import MemoryIndex

        adapter = sglang.open_batch
        if form == "TensorRT-LLM":
            adapter = tensorrt_llm.TensorRTEvents(BLOCK_SIZE).open_batch
        self.index = MemoryIndex()
        blocks = EngineBlocks(0, BLOCK_SIZE, holdings=self.index)
        finder = DialectFinder()
        finder.state = DialectState.NONE  # random hashes are none that we know
        blocks.verify_hashes(finder)
        self.applier = EventApplier(blocks, adapter=adapter, holdings=self.index)
        for steps in (self.applier.resume(), self.applier.replay_ended(True)):
            for _ in steps:
                pass

    def apply(self, payloads: list[bytes], first: int) -> None:
        for seq, payload in enumerate(payloads, first):
            for step in self.applier.live(seq, payload):
                assert isinstance(step, list)  # and no replay: nothing is missing
                self.index.apply(step)

    def timed(self, payloads: list[bytes], first: int) -> tuple[list[int], list[int], int]:
        """Return each batch's nanoseconds in the follower and in the index, and how many steps
        there were."""
        live, clock = self.applier.live, time.perf_counter_ns
        apply: Any = self.index.apply  # of what is no replay: nothing is missing
        taken, index, num_steps = [], [], 0
        for seq, payload in enumerate(payloads, first):
            in_index = 0
            began = clock()
            for step in live(seq, payload):
                before = clock()
                apply(step)
                in_index += clock() - before
                num_steps += 1
            taken.append(clock() - began - in_index)
            index.append(in_index)
        return taken, index, num_steps

    def opcodes(self, payloads: list[bytes], first: int) -> int:
        """Return how many bytecode instructions the follower takes for these."""
        count = 0

        def traced(frame: Any, event: str, _: Any) -> Any:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return traced

        for seq, payload in enumerate(payloads, first):
            sys.settrace(traced)
            steps: Iterator[Any] = iter(self.applier.live(seq, payload))
            step = next(steps, None)
            sys.settrace(None)
            while step is not None:
                self.index.apply(step)
                sys.settrace(traced)
                step = next(steps, None)
                sys.settrace(None)
        return count


def made(form: str, size: int, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Return the batches that are measured, and those that come before them."""
    if form == "TensorRT-LLM":
        return tensorrt_batches(size, seed), []
    if form == "decoding":
        return decoding(seed), []
    if form == "removals":
        return removals(seed), zmq_batches("vLLM", 16, seed)
    if form == "step":
        return steps(size, seed), zmq_batches("vLLM 0.32", size, seed)
    return zmq_batches(form, size, seed), []


def timed(form: str, size: int, seed: int = 1) -> dict[str, Any]:
    """Return the nanoseconds of each batch, and instructions a block."""
    measured, before = made(form, size, seed)
    follower = Follower(form)
    follower.apply(before, 0)
    taken, index, steps = follower.timed(measured, len(before))
    traced = Follower(form)
    traced.apply(before, 0)
    some = measured[:TRACED]
    opcodes = traced.opcodes(some, len(before)) / len(some) / (BLOCKS / len(measured))
    return {
        "follower": taken,
        "index": index,
        "bytecode": opcodes,
        "steps": steps / len(measured),
    }


def work() -> None:
    """A process that measures what it is asked for, line by line."""
    gc.disable()
    for line in sys.stdin:
        print(json.dumps(timed(*json.loads(line))), flush=True)


def started(checkout: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join(str(checkout / each / "src") for each in ("", "structured", "bench"))
    return subprocess.Popen(
        [sys.executable, __file__, "--work"],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def asked(worker: subprocess.Popen[str], *what: object) -> dict[str, Any]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(what) + "\n")
    worker.stdin.flush()
    found: dict[str, Any] = json.loads(worker.stdout.readline())
    return found


def least(rounds: list[dict[str, Any]], part: str) -> float:
    """Return the microseconds of a block, of each batch its least."""
    times: Iterator[tuple[int, ...]] = zip(*[each[part] for each in rounds], strict=True)
    return sum(map(min, times)) / 1000 / BLOCKS


def compare(other: Path, rounds: int) -> None:
    """Print a row for each form and size."""
    here = Path(__file__).parent.parent
    workers = [started(other), started(here)]
    cases = [(form, size) for form in (*FORMS, "TensorRT-LLM") for size in (1, 16, 64)]
    print("a block, other and this: follower, µs | index, µs | bytecode | steps of a batch")
    wanted = sys.argv[3:]
    cases += [("decoding", 1), ("removals", 1), ("step", 8), ("step", 64)]
    for form, size in cases:
        if wanted and f"{form}:{size}" not in wanted:
            continue
        found: list[list[dict[str, Any]]] = [[], []]
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                found[which].append(asked(workers[which], form, size))
        (other_us, us), (other_index, index) = (
            [least(mine, part) for mine in found] for part in ("follower", "index")
        )
        (other_codes, codes), (other_steps, steps) = (
            [mine[0][part] for mine in found] for part in ("bytecode", "steps")
        )
        print(
            f"{form:22}{size:3}: {other_us:6.2f} {us:6.2f}  {us / other_us:.2f} | "
            f"{other_index:5.2f} {index:5.2f} "
            f"{index / other_index:.2f} | {other_codes:5.0f} {codes:5.0f}  "
            f"{codes / other_codes:.2f} | {other_steps:.0f} {steps:.0f}",
            flush=True,
        )
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work()
    else:
        compare(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15)
