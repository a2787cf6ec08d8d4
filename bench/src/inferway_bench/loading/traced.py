"""Traces -> sessions: text of the lengths that the trace says, equal where its blocks are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.loading.words import block, text
from inferway_bench.loading.workload import MadeTurns, Session, Turn
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.processes import BenchError


def shortened(workload: Workload, most_tokens: int) -> Workload:
    """Return the workload without its longer prompts, and without what follows them. Raises
    BenchError if nothing is left."""
    place: dict[int, int] = {}
    kept: list[SimRequest] = []
    for index, request in enumerate(workload.requests):
        follows = request.follows if request.follows is None else place.get(request.follows)
        is_orphan = request.follows is not None and follows is None
        if request.prompt_tokens <= most_tokens and not is_orphan:
            place[index] = len(kept)
            kept.append(msgspec.structs.replace(request, follows=follows))
    if not kept:
        shortest = min(request.prompt_tokens for request in workload.requests)
        raise BenchError(
            f"--max-prompt-tokens {most_tokens}: leaves nothing of the trace; its shortest prompt "
            f"has {shortest} tokens"
        )
    about = (
        f"{workload.about}; {len(kept):,} of {len(workload.requests):,} requests, those of up to "
        f"{most_tokens:,} tokens"
    )
    return Workload(workload.name, about, workload.block_tokens, kept, workload.grain)


def traced(
    workload: Workload, at: NDArray[np.float64], seed: str, force_length: bool = True
) -> Iterator[Session]:
    """Yield sessions in the order of `at`, the seconds at which requests come that follow none.
    Requests that follow each other are one session, and each of its turns brings its whole prompt.
    """
    following = _following(workload.requests)
    firsts = [i for i, r in enumerate(workload.requests) if r.follows is None]
    for number, first in enumerate(sorted(firsts, key=lambda i: float(at[i]))):
        turns = _turns(workload, _chain(following, first), seed, force_length)
        yield Session(number, turns, (float(at[first]),))


def _turns(
    workload: Workload, chain: Sequence[int], seed: str, force_length: bool
) -> Sequence[Turn]:
    def make(turn: int) -> Turn:
        request = workload.requests[chain[turn]]
        fields: dict[str, object] = {
            "messages": [{"role": "user", "content": prompt(workload, chain[turn], seed)}],
            "max_tokens": request.output_tokens,
        }
        if force_length:
            fields["ignore_eos"] = True
        return Turn(fields=fields, think=request.think)

    return MadeTurns(len(chain), make)


def prompt(workload: Workload, index: int, seed: str) -> str:
    """Return as many words as the request has tokens: those of its blocks, and some that no other
    request has."""
    request = workload.requests[index]
    each = workload.block_tokens
    parts = [block(each, f"{seed} {name}") for name in request.blocks]
    rest = request.prompt_tokens - each * len(request.blocks)
    return "".join([*parts, text(max(0, rest), f"{seed} rest {index}")])


def _following(requests: Sequence[SimRequest]) -> dict[int, int]:
    return {r.follows: i for i, r in enumerate(requests) if r.follows is not None}


def _chain(following: dict[int, int], first: int) -> list[int]:
    chain = [first]
    while chain[-1] in following:
        chain.append(following[chain[-1]])
    return chain
