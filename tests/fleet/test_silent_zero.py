"""Traffic works, nothing hits: the alarm says so once, with the likeliest cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferway.fleet.silent_zero import PATIENCE, SilentZeroAlarm
from inferway.fleet.stream_figures import StreamEvidence

OURS = np.arange(32, dtype=np.uint32)
THEIRS = np.concatenate([np.arange(5), np.arange(100, 111)]).astype(np.uint32)
HEALTHY = StreamEvidence(
    engine="e:1",
    connected=True,
    batches=10,
    stored_blocks=40,
    skipped=0,
    block_size=16,
    block_size_seen=16,
    topic="",
    first_tokens=THEIRS,
)


def warnings(
    alarm: SilentZeroAlarm,
    stream: StreamEvidence,
    *,
    times: int = PATIENCE,
    blocks: int = 2,
    same_prompt: bool = True,
) -> list[str]:
    said = [
        alarm.observe(
            prompt_blocks=blocks,
            first_key=(7 if same_prompt else i) if blocks else None,
            first_tokens=OURS if blocks else None,
            streams=lambda: [stream],
        )
        for i in range(times)
    ]
    return [warning for warning in said if warning is not None]


@pytest.mark.parametrize(
    ("stream", "cause"),
    [
        (replace(HEALTHY, connected=False), "no events"),
        (replace(HEALTHY, batches=0, stored_blocks=0), "no events"),
        (replace(HEALTHY, stored_blocks=0, topic="other"), "topic"),
        (replace(HEALTHY, stored_blocks=0, skipped=9), "event form"),
        (replace(HEALTHY, block_size_seen=32), "block size"),
        (HEALTHY, "template"),
        (replace(HEALTHY, first_tokens=None), "model name"),
    ],
)
def test_fifty_misses_give_one_warning_with_the_cause(stream: StreamEvidence, cause: str) -> None:
    [warning] = warnings(SilentZeroAlarm("m"), stream, times=3 * PATIENCE)

    assert f"model 'm': nothing hits. Likely cause: {cause}." in warning


def test_the_template_warning_says_how_far_the_tokens_agree() -> None:
    [warning] = warnings(SilentZeroAlarm("m"), HEALTHY)

    assert "agree in 5 tokens" in warning


def test_prompts_shorter_than_a_block_are_a_cause_of_their_own() -> None:
    [warning] = warnings(SilentZeroAlarm("m"), HEALTHY, blocks=0)

    assert "Likely cause: prompts too short." in warning
    assert "16 tokens" in warning


def test_traffic_without_repetition_is_not_blamed_on_anything_else() -> None:
    [warning] = warnings(SilentZeroAlarm("m"), HEALTHY, same_prompt=False)

    assert "Likely cause: prompts share no first block." in warning


def test_a_match_starts_the_count_again() -> None:
    alarm = SilentZeroAlarm("m")
    warnings(alarm, HEALTHY, times=PATIENCE - 1)
    alarm.matched()

    assert warnings(alarm, HEALTHY, times=PATIENCE - 1) == []
