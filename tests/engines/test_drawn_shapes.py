"""vLLM's own validators and backends give the verdicts that the unit tests compare ours with."""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path

from tests.engines.conftest import ROOT
from tests.engines.record_shapes import SHAPES


def test_vllm_gives_the_recorded_verdicts(vllm: Path, tmp_path: Path) -> None:
    file = tmp_path / "shapes"
    command = [str(vllm.with_name("python")), "-m", "tests.engines.record_shapes", str(file)]

    subprocess.run(command, cwd=ROOT, check=True, timeout=600)

    assert lzma.decompress(file.read_bytes()) == lzma.decompress(SHAPES.read_bytes())
