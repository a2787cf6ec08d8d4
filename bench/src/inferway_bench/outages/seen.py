"""What clients saw of their answers. Pure.

whole     a 200, to its end
failed    an error, or an answer that ended in the middle
stuck     no end yet when the client gave up
hurt      failed, stuck, or longer under way than twice the longest before the trouble, and seconds
          more

A silence is a time without an event of a stream, or before an answer that is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from inferway_bench.loading.answers import Answer, read_answer
from inferway_bench.loading.samples import Sample

HURT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer. Times in seconds; `sent` since the beginning of the trial."""

    sent: float
    took: float
    silence: float  # the longest
    error: str | None  # None: it is whole

    @property
    def is_stuck(self) -> bool:
        return self.error == "timeout"


def seen(answer: Answer, began: float) -> Seen:
    """Read an answer that was asked for; `began`: when the trial did."""
    sent = answer.ended if answer.sent is None else answer.sent
    sample = Sample(session=0, turn=0, intended=sent)
    read_answer(answer, sample)
    events = [piece.at for piece in answer.pieces if b"data:" in piece.data]
    times = [sent, *(events if answer.is_stream else []), answer.ended]
    silence = max(after - before for before, after in pairwise(times))
    return Seen(sent - began, answer.ended - sent, silence, sample.error)


def figures(all_seen: Sequence[Seen], trouble_at: float) -> dict[str, float]:
    """Return what clients saw that asked one router; the trouble began at that time."""
    whole = [each for each in all_seen if each.error is None]
    before = [each for each in whole if each.sent + each.took < trouble_at]
    usual = max((each.took for each in before), default=0.0)
    hurt = [
        each for each in all_seen if each.error is not None or each.took > 2 * usual + HURT_SECONDS
    ]
    return {
        "requests": len(all_seen),
        "failed": sum(each.error is not None and not each.is_stuck for each in all_seen),
        "stuck": sum(each.is_stuck for each in all_seen),
        "hurt": len(hurt),
        "silence_s": round(max((each.silence for each in all_seen), default=0.0), 2),
        "longest_s": round(max((each.took for each in whole), default=0.0), 2),
        "usual_s": round(usual, 2),
    }
