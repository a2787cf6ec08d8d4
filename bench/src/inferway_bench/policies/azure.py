"""Azure's trace of a conversation service (2023): when requests came and how long they were.

It names no blocks, so prompts are private: nothing is reused, and what policies differ in is load.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from inferway_bench.policies.requests import SimRequest, Workload

HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"
BLOCK_TOKENS = 128
MOST_BLOCKS = 1 << 16  # of a prompt


def azure(lines: Sequence[bytes], most: int | None = None) -> Workload:
    """`lines` as they stand in the file, its head first."""
    rows = [line.decode().split(",") for line in lines[1:] if line][:most]
    requests = []
    first = _seconds(rows[0][0])
    for number, (time, prompt, answer) in enumerate(rows):
        requests.append(
            SimRequest(
                blocks=private_blocks(number, int(prompt)),
                prompt_tokens=max(1, int(prompt)),
                output_tokens=max(1, int(answer)),
                session=number,
                start=_seconds(time) - first,
            )
        )
    about = (
        "Azure's conversation trace (2023): times and lengths; it names no blocks, so prompts are "
        "private and nothing can be reused"
    )
    return Workload("azure", about, BLOCK_TOKENS, requests)


def private_blocks(number: int, tokens: int) -> tuple[int, ...]:
    """The whole blocks of a prompt that nobody shares."""
    first = number * MOST_BLOCKS
    return tuple(range(first, first + tokens // BLOCK_TOKENS))


def _seconds(time: str) -> float:
    """2023-11-16 18:15:46.6805900"""
    whole, _, fraction = time.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
