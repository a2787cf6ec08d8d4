"""The blocks of a prompt as a row of characters for each candidate: what it held, and where that
ended."""

from __future__ import annotations

import locale
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters of a picture."""

    tiers: str  # GPU, CPU, others
    missing: str
    end: str

    def of_tier(self, tier: int) -> str:
        return self.tiers[min(tier, len(self.tiers) - 1)]


BLOCKS = Marks("█▓▒", "·", "|")
ASCII = Marks("#+-", ".", "|")


def marks_for(encoding: str | None, *, ascii_only: bool) -> Marks:
    """Return the marks that a terminal of this encoding shows."""
    name = (encoding or "").lower().replace("-", "").replace("_", "")
    return BLOCKS if name == "utf8" and not ascii_only else ASCII


def terminal_marks(*, ascii_only: bool) -> Marks:
    """Return the marks for this process' standard output."""
    return marks_for(sys.stdout.encoding or locale.getpreferredencoding(), ascii_only=ascii_only)


def legend(marks: Marks) -> str:
    gpu, cpu, other = (marks.of_tier(tier) for tier in range(3))
    return (
        f"{gpu} held on GPU  {cpu} CPU  {other} other tiers  {marks.missing} not held"
        f"  {marks.end} end of the prompt"
    )


def row(runs: Sequence[tuple[int, int]], num_blocks: int, width: int, marks: Marks) -> str:
    """Return one candidate's row: as many characters as the prompt has blocks, or `width` of them
    if that is fewer. A character that stands for several blocks shows the worst of them, so that a
    prefix never looks longer than it is; but what is held is never quite invisible. `runs`: tier
    and number of blocks, from the first on."""
    length = max(1, min(num_blocks, width)) if num_blocks else 0
    tiers: list[int | None] = []
    for tier, number in runs:
        tiers += [tier] * number
    tiers = tiers[:num_blocks] + [None] * max(0, num_blocks - len(tiers))
    cells = []
    for cell in range(length):
        part = tiers[cell * num_blocks // length : (cell + 1) * num_blocks // length]
        cells.append(marks.missing if None in part else marks.of_tier(max(t or 0 for t in part)))
    if cells and tiers[0] is not None and cells[0] == marks.missing:
        cells[0] = marks.of_tier(tiers[0])
    return "".join(cells) + marks.end
