"""`python -m inferway.cli.worker LINK MEMORY`: a worker, as the hub starts it. LINK is the file
descriptor of the socket where the hub tells it the rest, MEMORY that of the columns that all
processes share.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys

import uvloop

from inferway.cli.logs import set_up
from inferway.cluster.bus.link import Link
from inferway.cluster.bus.messages import Begin
from inferway.cluster.worker import Worker
from inferway.errors import ConfigError
from inferway.serving import serve

# The hub says it for all.
_QUIET = ("inferway.http.listening",)

log = logging.getLogger("inferway")


async def _run(end: socket.socket, memory: int) -> None:
    link = Link()
    await link.open(end)
    begin = await link.first()
    if not isinstance(begin, Begin):
        sys.exit(1)  # the hub ended before it had said anything
    settings = begin.settings
    set_up(settings.log_level, settings.access_log, settings.log_format)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    await serve(lambda: Worker(begin, link, memory))


def main() -> None:
    link, memory = map(int, sys.argv[1:])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the hub's to listen to
    try:
        uvloop.run(_run(socket.socket(fileno=link), memory))
    except ConfigError as e:
        log.error("a worker could not start: %s", e)
        sys.exit(2)


if __name__ == "__main__":
    main()
