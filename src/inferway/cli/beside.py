"""`python -m inferway.cli.beside ...`: a command of `inferway`, run by a gateway beside itself.

It has the lowest priority, is the first to go where memory runs out, and ends, with all that it has
started, when its standard input does: the gateway holds the other end, and has ended then.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

LOWEST_PRIORITY = 19
_FIRST_TO_GO = "1000"  # /proc/self/oom_score_adj


def _end_with_the_gateway() -> None:
    with suppress(OSError):
        while os.read(0, 64):
            pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the command. It leads a process group of its own."""
    os.nice(LOWEST_PRIORITY)
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    threading.Thread(target=_end_with_the_gateway, daemon=True).start()
    from inferway.cli import main as command

    command(prog_name="inferway")


if __name__ == "__main__":
    main()
