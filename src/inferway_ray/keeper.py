"""Runs a program until standard input ends: `python -m inferway_ray.keeper SECONDS COMMAND…`.

A replica can end in ways that give it no time to end its program: killed by Ray, or by the kernel.
Its end of the pipe is closed then all the same, and the program is asked to end, and after so many
seconds killed with all that it has started. If the keeper itself is killed, Linux asks the program
to end. The exit status is the program's.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ENDING = (signal.SIGINT, signal.SIGTERM)


def _end_with_parent() -> None:
    """Let the child end with its parent, before it is the program."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> int:
    seconds, command = float(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until there is a program to end
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a group of its own, for what it leaves behind
            preexec_fn=_end_with_parent,
        )
    except OSError as e:
        print(f"{command[0]!r} cannot be run: {e.strerror}", file=sys.stderr, flush=True)
        return 127

    def end(*_: object) -> None:
        with suppress(ProcessLookupError):
            program.terminate()
        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        end()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the replica decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    threading.Thread(target=wait_for_end, daemon=True).start()
    status = program.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left to be ended
    kill()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
