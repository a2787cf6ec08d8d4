"""How much is measured."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """What a run does."""

    compile_seconds: float = 20.0  # a compile that takes longer is a failure
    outlines_seconds: float = 10.0  # the same, for what takes longer most often
    memory_gib: int = 12  # of a worker's address space
    max_tokens: int = 4_000  # instances that are longer are left out
    batch_rows: int = 128
    batch_repeats: int = 200
    max_schemas: int | None = None


QUICK = Plan(compile_seconds=2.0, outlines_seconds=1.0, batch_repeats=20, max_schemas=20)
