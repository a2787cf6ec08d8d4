"""Run a command as the terminal's foreground job, so that Ctrl-C reaches it alone.

Under `make`, Ctrl-C reaches make too, which then dies of it (status 130) even if the command
ended cleanly. Here the command gets a process group of its own and the terminal, and make sees
the command's own exit status. Without a terminal, or in the background, the command simply
takes our place. Only the standard library: this runs before anything is installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def open_terminal() -> int | None:
    """The controlling terminal, if there is one and this process is in its foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
        return terminal if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except OSError:
        return None


def run_in_foreground(command: list[str], terminal: int) -> int:
    """Run `command` in front; its exit status, 128 + signal if a signal ended it."""

    def take_terminal() -> None:  # in the child, before it can say that it runs
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(terminal, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)

    ours = os.getpgrp()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is a child to pass them to
    child = subprocess.Popen(command, process_group=0, preexec_fn=take_terminal)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # taking the terminal back must not stop us

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child.pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        os.tcsetpgrp(terminal, ours)
        if not os.WIFSTOPPED(status):
            for number in PASSED_ON:
                signal.signal(number, signal.SIG_IGN)  # the status is the child's
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode if child.returncode >= 0 else 128 - child.returncode
        os.kill(0, signal.SIGSTOP)  # Ctrl-Z: make stops as well, and all resume together
        os.tcsetpgrp(terminal, child.pid)
        os.killpg(child.pid, signal.SIGCONT)


def main() -> None:
    command = sys.argv[1:]
    terminal = open_terminal()
    if terminal is None:
        os.execvp(command[0], command)
    sys.exit(run_in_foreground(command, terminal))


if __name__ == "__main__":
    main()
