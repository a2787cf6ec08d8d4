"""vLLM's own validators and backends give the verdicts that the unit tests compare ours with."""

from __future__ import annotations

import lzma
from pathlib import Path

from tests.engines.record_shapes import SHAPES
from tests.engines.vllm_code import VllmCode


def test_vllm_gives_the_recorded_verdicts(vllm_code: VllmCode, tmp_path: Path) -> None:
    file = tmp_path / "shapes"

    vllm_code.run(["-m", "tests.engines.record_shapes", str(file)], seconds=600)

    assert lzma.decompress(file.read_bytes()) == lzma.decompress(SHAPES.read_bytes())
