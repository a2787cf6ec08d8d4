"""`inferway` where it cannot run."""

from __future__ import annotations

import subprocess
import sys


def test_on_windows_one_sentence_says_that_it_is_not_supported() -> None:
    start = "import sys; sys.platform = 'win32'; import inferway.cli"

    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith("inferway: Windows is not supported")
    assert done.stderr.count("\n") == 1
