"""`python -m inferway.cli.follower LINK`: a follower, as the hub starts it. LINK is the file
descriptor of the socket where the hub tells it the rest.

When the hub has ended, a follower ends, too.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

import uvloop

from inferway.cli.logs import set_up
from inferway.http.listening import raise_file_limit
from inferway.prompts.freed_memory import give_back_large
from inferway.signals import ENDING, listen
from inferway.tasks import happens_within
from inferway.workers.follower_messages import BeginFollowing, FollowerMessage
from inferway.workers.following import Following
from inferway.workers.link import Link

LOOK_SECONDS = 1.0  # whether the hub reads

log = logging.getLogger("inferway")


async def _run(end: socket.socket) -> None:
    raise_file_limit()
    give_back_large()

    def heard(message: FollowerMessage) -> None:
        if isinstance(message, BeginFollowing):
            settings = message.settings
            set_up(settings.log_level, None, settings.log_format)
        following.heard(message)

    link = Link(heard, lambda: following.ended.set(), FollowerMessage)
    following = Following(link.send)
    listen(asyncio.get_running_loop(), following.ended.set, *ENDING)
    await link.open(end)
    try:
        await _ended(following, link)
    finally:
        await following.close()
        link.close()


async def _ended(following: Following, link: Link) -> None:
    """Return when the follower shall end, or what it says is not read."""
    while not await happens_within(following.ended, LOOK_SECONDS):
        if link.is_stuck:
            log.error("the hub does not read what this follower says; it ends, and begins anew")
            return


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the hub's to listen to
    uvloop.run(_run(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
