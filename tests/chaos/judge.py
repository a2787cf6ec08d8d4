"""What the gateway believes, held against what is true."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.world import Line, World

from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import CPU, FULL_ATTENTION, GPU, Index
from inferway.kv.index.reading import HeldBlocks


class WrongBelief(AssertionError):
    """What must never be."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one rank of an engine."""

    state: StreamState
    true_blocks: int
    known_blocks: int


async def judge(world: World, index: Index | None = None) -> list[Verdict]:
    """Raises WrongBelief. Exact: all that is true is believed, and nothing else. Partial:
    nothing else is. Both for every prompt ever seen, and for every block one by one. `index`: in
    place of the world's own."""
    return [await _judge(world, line, index or world.index) for line in world.lines]


async def _judge(world: World, line: Line, index: Index) -> Verdict:
    state, engine, holder = line.state, line.engine, line.holder
    true = engine.on_gpu() | engine.on_cpu()
    known = index.num_blocks(holder)
    verdict = Verdict(state, len(true), known)
    if state not in (StreamState.EXACT, StreamState.PARTIAL):
        raise WrongBelief(f"engine {holder} is {state} when all is calm")
    exact = state is StreamState.EXACT
    if known > len(true) or (exact and known != len(true)):
        raise WrongBelief(f"engine {holder} is {state}: {known} blocks, in truth {len(true)}")
    for prompt in dict.fromkeys(world.prompts):
        found = await index.match(world.keys(prompt))
        believed, reusable = found.blocks.get(holder, 0), engine.reusable(prompt)
        if believed > reusable or (exact and believed != reusable):
            raise WrongBelief(
                f"engine {holder} is {state}: of {prompt} it would reuse {reusable} blocks, "
                f"not {believed}"
            )
    if isinstance(index, HeldBlocks):
        _judge_blocks(world, index, line, exact)
    return verdict


def _judge_blocks(world: World, index: HeldBlocks, line: Line, exact: bool) -> None:
    engine = line.engine
    hashes = {
        key: block_hash
        for prompt in dict.fromkeys(world.prompts)
        for key, block_hash in zip(world.keys(prompt), engine.blocks_of(prompt), strict=True)
    }
    places = {
        (GPU, FULL_ATTENTION): engine.on_gpu(),
        (CPU, FULL_ATTENTION): engine.on_cpu(),
        (GPU, 2): engine.in_second_group(),
    }
    for (tier, group), true in places.items():
        held = index.held(line.holder, list(hashes), tier, group)
        believed = {hashes[key] for key in held}
        if wrong := believed - true:
            raise WrongBelief(
                f"engine {line.holder}: {len(wrong)} blocks are not in tier {tier}, group {group}"
            )
        if exact and group == FULL_ATTENTION and believed != true:
            raise WrongBelief(
                f"engine {line.holder} is exact without {len(true - believed)} blocks"
            )
