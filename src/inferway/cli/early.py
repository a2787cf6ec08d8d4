"""Settings that hold before a command's flags have been read. Imports next to nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from itertools import pairwise

from inferway.signals import ENDING, ignore_at_exit

_SERVERS = ("epp", "serve", "simulate")  # commands that run until a signal ends them
_LOG_FORMAT, _LOG_FORMAT_VARIABLE = "--log-format", "INFERWAY_LOG_FORMAT"


def asks_for_json(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether the command line, or else the environment, asks for standard error as JSON."""
    said = environ.get(_LOG_FORMAT_VARIABLE, "")
    for word, following in pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        if flag == _LOG_FORMAT:
            said = value if equals else following
    return said == "json"


def end_by_signals(words: Sequence[str]) -> None:
    """While a server starts, SIGINT and SIGTERM end the process at once, with the status that a
    shell gives it, and nothing is printed; until its event loop listens to them. Also as process 1
    of a container, which the kernel keeps from signals that it does not listen to."""
    if not words or words[0] not in _SERVERS:
        return
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
            signal.signal(number, _end)
    ignore_at_exit(*ENDING)


def _end(number: int, frame: object) -> None:
    del frame
    os._exit(128 + number)
