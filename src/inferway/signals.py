"""Signals that a process listens to until it has gone.

A handler of asyncio goes with its event loop, and one of Python with the interpreter, a while
before the process does: the next signal would have its default action, and end a process that is
about to end well. Imports next to nothing: it is wanted before anything else.
"""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

ENDING = (signal.SIGINT, signal.SIGTERM)


def listen(loop: AbstractEventLoop, heard: Callable[[], None], *numbers: signal.Signals) -> None:
    """Have the loop call `heard` at each of these signals. Once it is closed they do nothing, until
    the process has gone. Call it in the main thread."""

    def on_signal(*_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(heard)

    for number in numbers:
        signal.signal(number, on_signal)
        signal.siginterrupt(number, False)
    ignore_at_exit(*numbers)


def interrupt_once() -> None:
    """Have the first SIGINT or SIGTERM raise KeyboardInterrupt, and those after it do nothing, so
    that what is restored then is restored. One that is ignored stays so."""

    def on_signal(*_: object) -> None:
        _ignore(ENDING)
        raise KeyboardInterrupt

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
            signal.signal(number, on_signal)
    ignore_at_exit(*ENDING)


def ignore_at_exit(*numbers: signal.Signals) -> None:
    """Have these signals do nothing from when the interpreter ends: all that it leaves as it is
    then is a signal that is ignored."""
    atexit.register(_ignore, numbers)


def _ignore(numbers: tuple[signal.Signals, ...]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
