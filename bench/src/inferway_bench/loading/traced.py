"""Traces -> sessions: text of the lengths that the trace says, equal where its blocks are. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.loading.generated import block, text
from inferway_bench.loading.workload import Session, Turn
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
    requests = workload.requests
    following = {r.follows: i for i, r in enumerate(requests) if r.follows is not None}

    def turns(index: int | None) -> Iterator[Turn]:
        while index is not None:
            request = requests[index]
            fields: dict[str, object] = {"max_tokens": request.output_tokens}
            if force_length:
                fields["ignore_eos"] = True
            yield Turn((), fields, request.think, prompt=partial(_message, workload, index, seed))
            index = following.get(index)

    firsts = [i for i, r in enumerate(requests) if r.follows is None]
    for number, first in enumerate(sorted(firsts, key=lambda i: float(at[i]))):
        yield Session(number, list(turns(first)), (float(at[first]),))


def _message(workload: Workload, index: int, seed: str) -> dict[str, object]:
    """As many words as the request has tokens: those of its blocks, and some that no other has."""
    request, each = workload.requests[index], workload.block_tokens
    parts = [block(each, f"{seed} {name}") for name in request.blocks]
    rest = request.prompt_tokens - each * len(request.blocks)
    parts.append(text(max(0, rest), f"{seed} rest {index}"))
    return {"messages": [{"role": "user", "content": "".join(parts)}]}
