"""`python -m inferway.cli.worker LINK MEMORY`: a worker, as the hub starts it. LINK is the file
descriptor of the socket where the hub tells it the rest, MEMORY that of the columns that all
processes share.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

import uvloop

from inferway.cli.logs import set_up
from inferway.errors import ConfigError
from inferway.serving import serve
from inferway.workers.link import Link
from inferway.workers.messages import Begin, Message
from inferway.workers.worker import Worker

# The hub says it for all.
_QUIET = ("inferway.http.listening",)

log = logging.getLogger("inferway")


async def _run(end: socket.socket, memory: int) -> None:
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[Begin] = loop.create_future()
    waiting: list[Message] = []
    worker: Worker | None = None
    is_lost = False

    def heard(message: Message) -> None:
        if worker is not None:
            worker.heard(message)
        elif isinstance(message, Begin):
            begun.set_result(message)
        else:
            waiting.append(message)

    def lost() -> None:
        nonlocal is_lost
        is_lost = True
        if worker is not None:
            worker.hub_has_gone()
        elif not begun.done():
            begun.cancel()

    link = Link(heard, lost)
    await link.open(end)
    begin = await begun
    settings = begin.settings
    set_up(settings.log_level, settings.access_log, settings.log_format)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)

    def make() -> Worker:
        nonlocal worker
        worker = Worker(begin, link, memory)
        for message in waiting:
            worker.heard(message)
        waiting.clear()
        if is_lost:
            worker.hub_has_gone()
        return worker

    await serve(make)


def main() -> None:
    link, memory = map(int, sys.argv[1:])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the hub's to listen to
    try:
        uvloop.run(_run(socket.socket(fileno=link), memory))
    except ConfigError as e:
        log.error("a worker could not start: %s", e)
        sys.exit(2)
    except asyncio.CancelledError:  # the hub ended before it had said anything
        sys.exit(1)


if __name__ == "__main__":
    main()
