"""Odd bodies: a gateway refuses none that an engine of its own answers, but for what is refused on
purpose; and vLLM's request classes give the verdicts that the unit tests compare ours with."""

from __future__ import annotations

import lzma
import random
from collections.abc import Sequence
from pathlib import Path

from tests.engines import client
from tests.engines.engine import RealEngine
from tests.engines.odd_bodies import CHAT, COMPLETION, RESPONSES, odd_bodies
from tests.engines.record_verdicts import VERDICTS
from tests.engines.vllm_code import VllmCode

NUM_ASKED = 400  # of 1,616, for which two engines take about a minute

# What the gateway says -> why it refuses what an engine answers (docs/api.md).
ON_PURPOSE = {
    "expected `int | null`, got `str`": "an accident of pydantic's parser: '0-1', '0__1'",
    "holds a number out of range": "a schema with NaN, which is none",
}


def test_the_gateway_refuses_nothing_that_an_engine_answers(
    gateway: str, engines: Sequence[RealEngine]
) -> None:
    by_mistake, num_answered = [], 0
    bodies = [odd for odd in odd_bodies() if odd.path in (CHAT, COMPLETION, RESPONSES)]
    for odd in random.Random(22).sample(bodies, NUM_ASKED):
        ours = client.post(gateway + odd.path, odd.raw)
        num_answered += ours.status == 200
        if ours.status >= 400 and "x-inferway-engine" not in ours.headers:
            theirs = client.post(engines[0].url + odd.path, odd.raw)
            said = ours.raw.decode()
            if theirs.status == 200 and not any(words in said for words in ON_PURPOSE):
                by_mistake.append((odd.path, odd.name, ours.raw))

    assert by_mistake == []
    assert num_answered > NUM_ASKED // 4


def test_vllm_gives_the_recorded_verdicts(vllm_code: VllmCode, tmp_path: Path) -> None:
    file = tmp_path / "verdicts"

    vllm_code.run(["-m", "tests.engines.record_verdicts", str(file)])

    assert lzma.decompress(file.read_bytes()) == lzma.decompress(VERDICTS.read_bytes())
