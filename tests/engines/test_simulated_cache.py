"""The simulated cache finds, has room for, stores and publishes what vLLM's own does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

from tests.engines.conftest import ROOT

STEPS = 320  # of each case; all cases take two minutes


def test_the_simulated_cache_of_groups_is_vllms(vllm: Path, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("xxhash")
    assert spec is not None
    assert spec.origin is not None
    # vLLM's environment lacks it, and must not get anything else of ours.
    (tmp_path / "xxhash").symlink_to(Path(spec.origin).parent)
    paths = [ROOT / "src", ROOT / "structured" / "src", tmp_path]
    program = ROOT / "tests" / "engines" / "simulated_cache.py"

    done = subprocess.run(
        [vllm.with_name("python"), program, "--steps", str(STEPS), "--keep-going"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal  ") > 70
