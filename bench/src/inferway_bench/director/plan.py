"""How much is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from inferway_bench.flags import data_flag


class DirectorPlan(msgspec.Struct, frozen=True):
    """Lengths in tokens."""

    chats: int = 12  # that grow turn by turn
    longest: int = 32_000
    turn_chars: int = 1_500  # of a turn, at most
    probes: int = 40  # chats whose next turn is measured beside much and little that was seen
    probe_tokens: int = 4_000
    others: int = 2_000  # chats that were seen before; beside it, a tenth of them
    other_tokens: int = 2_000
    engines: int = 8
    block_size: int = 16
    many_endpoints: int = 1_000  # among which a choice is measured alone
    repeats: int = 400  # of each such choice
    seed: int = 3
    data: Annotated[Path | None, data_flag("chat")] = None

    @property
    def few_others(self) -> int:
        return self.others // 10
