"""`inferway` where it cannot run."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


def test_on_windows_one_sentence_says_that_it_is_not_supported() -> None:
    start = "import sys; sys.platform = 'win32'; import inferway.cli"

    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith("inferway: Windows is not supported")
    assert done.stderr.count("\n") == 1


# Gets a signal when it is about to import a module.
_SIGNALLED = """
import os, sys
number, module = int(sys.argv.pop()), sys.argv.pop()
class Signals:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Signals())
from inferway.cli import main
main()
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [("serve", "click"), ("serve", "uvloop"), ("epp", "uvloop"), ("simulate", "uvloop")],
)
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_during_the_start_ends_it_without_a_word(
    command: str, module: str, number: signal.Signals, status: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED, command, module, str(int(number))],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
