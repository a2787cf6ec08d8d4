"""Odd bodies: a gateway refuses none that an engine of its own answers, but for what is refused on
purpose; and vLLM's request classes give the verdicts that the unit tests compare ours with."""

from __future__ import annotations

import lzma
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.fleet import client
from tests.fleet.conftest import ROOT
from tests.fleet.engine import RealEngine
from tests.fleet.odd_bodies import CHAT, COMPLETION, RESPONSES, odd_bodies
from tests.fleet.record_verdicts import VERDICTS
from tests.openai_api.test_vllm_verdicts import ACCIDENTS


def test_the_gateway_refuses_nothing_that_an_engine_answers(
    gateway: str, engines: Sequence[RealEngine]
) -> None:
    by_mistake, num_answered = [], 0
    for odd in odd_bodies():
        if odd.path not in (CHAT, COMPLETION, RESPONSES):
            continue
        ours = client.post(gateway + odd.path, odd.raw)
        num_answered += ours.status == 200
        if ours.status >= 400 and "x-inferway-engine" not in ours.headers:
            theirs = client.post(engines[0].url + odd.path, odd.raw)
            if theirs.status == 200 and not re.search(ACCIDENTS, ours.raw.decode()):
                by_mistake.append((odd.path, odd.name, ours.raw))

    assert by_mistake == []
    assert num_answered > 500


def test_vllm_gives_the_recorded_verdicts(vllm: Path, tmp_path: Path) -> None:
    file = tmp_path / "verdicts"
    command = [vllm.parent / "python", "-m", "tests.fleet.record_verdicts", file]

    subprocess.run(command, cwd=ROOT, check=True, timeout=300)

    assert lzma.decompress(file.read_bytes()) == lzma.decompress(VERDICTS.read_bytes())
