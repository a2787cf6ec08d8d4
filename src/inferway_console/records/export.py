"""Records -> the forms that other programs read, and a summary in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec
import numpy as np

from inferway_console.records.files import FleetLine
from inferway_console.records.reader import Recorded
from inferway_console.records.record import RequestRecord

MOONCAKE_BLOCK = 512  # tokens


class MooncakeRequest(msgspec.Struct, frozen=True):
    """A line of Mooncake's traces (FAST'25: kvcache-ai/Mooncake, mooncake_trace.jsonl)."""

    timestamp: int  # milliseconds since the first request
    input_length: int  # tokens
    output_length: int
    hash_ids: list[int]  # of blocks of 512 tokens; the last one may have fewer


class ExportedRequest(msgspec.Struct, frozen=True):
    """A line of the plain form: the record, and the ids of its prompt's blocks."""

    record: RequestRecord
    blocks: Sequence[int] | None


@dataclass(slots=True)
class Mooncake:
    """Makes Mooncake's trace of what was recorded. Blocks of 16 tokens are joined, 32 to one: an id
    stands for all tokens up to its block's end, so that of the last of the 32 is the id of all. Of
    an incomplete block at the end the id is its own, unless it ends where a block of 16 does."""

    left_out: int = 0  # requests whose prompt, or whose answer's length, is not known
    _ids: dict[tuple[int, int], int] = field(default_factory=dict)
    _next: count[int] = field(default_factory=count)

    def requests(self, recorded: Iterable[Recorded | FleetLine]) -> list[MooncakeRequest]:
        """Return the requests in the order in which they came."""
        found = []
        for each in recorded:
            if isinstance(each, FleetLine):
                continue
            length = prompt_tokens(each.record)
            size, output = each.record.block_size, each.record.output_tokens
            if each.blocks is None or not size or length <= 0 or output < 0:
                self.left_out += 1
            elif MOONCAKE_BLOCK % size:
                self.left_out += 1  # they cannot be joined
            else:
                ids = self._joined(each.blocks, MOONCAKE_BLOCK // size, size, length)
                found.append((each.record.at, length, output, ids))
        found.sort(key=lambda request: request[0])
        start = found[0][0] if found else 0.0
        return [
            MooncakeRequest(round((at - start) * 1000), length, output, ids)
            for at, length, output, ids in found
        ]

    def _joined(self, blocks: Sequence[int], each: int, size: int, length: int) -> list[int]:
        whole = length // MOONCAKE_BLOCK
        ids = [self._id(each, blocks[end]) for end in range(each - 1, len(blocks), each)][:whole]
        ids += [next(self._next) for _ in range(whole - len(ids))]  # of blocks that we do not know
        if length % MOONCAKE_BLOCK:
            is_known = length % size == 0 and len(blocks) * size == length
            ids.append(self._id(0, blocks[-1]) if is_known else next(self._next))
        return ids

    def _id(self, each: int, block: int) -> int:
        found = self._ids.get((each, block))
        if found is None:
            found = self._ids[each, block] = next(self._next)
        return found


def prompt_tokens(record: RequestRecord) -> int:
    """Return the tokens of the prompt, as the engine has counted them, else as we have; -1 if
    neither is known."""
    return record.usage_prompt_tokens if record.usage_prompt_tokens > 0 else record.prompt_tokens


def summary(recorded: Iterable[Recorded | FleetLine]) -> Iterator[str]:
    """Yield what was recorded, a line each."""
    records: list[RequestRecord] = []
    engines: set[str] = set()
    for each in recorded:
        if isinstance(each, Recorded):
            records.append(each.record)
        else:
            engines.add(each.engine)
    if not records:
        yield "no request was recorded"
        return
    first, last = min(r.at for r in records), max(r.at for r in records)
    seconds, number = last - first, len(engines)
    yield f"{len(records):,} requests in {seconds:,.0f} s, {number} engines and endpoints"
    yield from _counted("models", Counter(record.model or "unknown" for record in records))
    yield from _counted("outcomes", Counter(record.outcome for record in records))
    yield from _counted("reasons", Counter(record.reason or "not decided" for record in records))
    ttft = [record.ttft_ms for record in records if record.ttft_ms >= 0]
    if ttft:
        quantiles = np.percentile(ttft, [50, 90, 99]).tolist()
        yield "TTFT: " + ", ".join(
            f"p{q} {value:,.1f} ms" for q, value in zip((50, 90, 99), quantiles, strict=True)
        )
    yield from _reuse(records)
    kinds = Counter(miss.kind for record in records for miss in record.missed)
    yield from _counted("missed, by kind", kinds)


def _reuse(records: Sequence[RequestRecord]) -> Iterator[str]:
    told = [r for r in records if r.delivered_tokens >= 0 and r.prompt_tokens > 0]
    if not told:
        return
    prompt = sum(record.prompt_tokens for record in told)
    reachable = sum(record.reachable_blocks * record.block_size for record in told)
    chosen = sum(record.chosen_blocks * record.block_size for record in told)
    delivered = sum(record.delivered_tokens for record in told)
    unknown = sum(max(0, r.delivered_tokens - r.reachable_blocks * r.block_size) for r in told)
    more = f" (of them {unknown / prompt:.1%} not known to be there)" if unknown else ""
    yield (
        f"prompt tokens reachable {reachable / prompt:.1%}, chosen {chosen / prompt:.1%}, delivered"
        f" {delivered / prompt:.1%}{more} of {prompt:,} ({len(told):,} requests whose engines have"
        " told)"
    )


def _counted(what: str, counts: Counter[str]) -> Iterator[str]:
    if counts:
        yield f"{what}: " + ", ".join(f"{name} {number:,}" for name, number in counts.most_common())
