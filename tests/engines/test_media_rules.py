"""vLLM's own processors write pictures of fresh chats into prompts as the gateway's rules do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.engines.tiny_vision import FAMILIES
from tests.engines.vllm_code import VllmCode
from tests.prompts.media.recorded import faults, read_rows

NUM_CHATS = 3


@pytest.fixture
def with_torchvision(vllm: Path, torchvision: Path) -> VllmCode:
    """vLLM's Python, with the torchvision that its processors of pictures need."""
    return VllmCode(vllm.with_name("python"), torchvision)


def test_vllm_writes_pictures_as_the_rules_say(with_torchvision: VllmCode, tmp_path: Path) -> None:
    seed, file = random.randrange(2**32), tmp_path / "rows"

    with_torchvision.run(["-m", "tests.engines.record_media", str(file), str(seed), str(NUM_CHATS)])

    rows = read_rows(file)
    assert set(rows) == set(FAMILIES)
    for name, of_family in rows.items():
        assert faults(name, seed, of_family, tmp_path / name) == [], (name, seed)
