"""A ZeroMQ PUB socket: sends each message to the subscribers of a prefix of its topic.

Any client that reaches the port may subscribe. ZeroMQ's own library keeps every subscription that a
client sends, and does not give the memory back when the client has gone. This socket bounds the
number and the size of a connection's subscriptions, and the bytes that a connection may leave
unread; messages beyond these bytes are lost for that connection. As with any PUB socket, a message
is not kept for later subscribers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inferway.fleet.zmtp import (
    MOST_ACCEPTED,
    Owner,
    ZmtpConnection,
    accept,
    encoded,
    keep_connected,
)
from inferway.loop_turns import LoopTurns
from inferway.tasks import Tasks

MOST_SUBSCRIPTIONS = 128  # of a connection
MOST_TOPIC_BYTES = 1024  # of a subscription
MOST_UNREAD_BYTES = 4 * 1024 * 1024  # of a connection: then it loses messages
LINGER_SECONDS = 0.2  # for what was sent to be read, when the socket closes
SAY_SECONDS = 60.0  # between two log lines about closed connections

_SUBSCRIBES, _CANCELS = b"\1", b"\0"  # the first byte of a subscriber's message


@dataclass(slots=True)
class _Subscriber:
    """The prefixes of topics that a connection has subscribed to."""

    topics: set[bytes] = field(default_factory=set)
    wanted: tuple[bytes, ...] = ()  # the same, as `bytes.startswith` takes them


class PubSocket(Owner):
    """`bind` or `connect` it, then `send`; `close` ends it."""

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        *,
        most_unread: int = MOST_UNREAD_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`what`: the name of the published messages in the log."""
        self.lost = 0  # messages not sent to a subscriber that did not read
        self._log = log
        self._what = what
        self._most_unread = most_unread
        self._clock = clock
        self._said_at: float | None = None
        self._turns = LoopTurns()
        self._subscribers: dict[ZmtpConnection, _Subscriber] = {}
        self._tasks = Tasks(log, f"{what} are no longer published, by a fault of the gateway")

    def bind(
        self,
        listening: socket.socket,
        admits: Callable[[str], bool] = lambda _: True,
        most: int = MOST_ACCEPTED,
    ) -> None:
        """Accept subscribers at a socket that listens, as `zmtp.accept` does."""
        self._tasks.spawn(accept(listening, self._connection, admits, most))

    def connect(self, endpoint: str) -> None:
        """Connect to a subscriber that is bound, again and again."""
        self._tasks.spawn(keep_connected(endpoint, self, self._connection))

    def subscribers(self, topic: bytes) -> int:
        """Return how many connections have subscribed to the topic."""
        return sum(topic.startswith(each.wanted) for each in self._subscribers.values())

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message, whose first frame is its topic, to the topic's subscribers. A subscriber
        with too many unread bytes does not get it."""
        topic, message = frames[0], b""
        for connection, subscriber in self._subscribers.items():
            if topic.startswith(subscriber.wanted):
                message = message or encoded(frames)
                self.lost += not connection.send(message, self._most_unread)

    async def close(self) -> None:
        """Close the connections when subscribers have read all messages, or after
        LINGER_SECONDS."""
        connections = list(self._subscribers)
        for connection in connections:
            connection.end()
        if connections:
            await asyncio.wait([each.down for each in connections], timeout=LINGER_SECONDS)
        await self._tasks.close()

    def _connection(self) -> ZmtpConnection:
        return ZmtpConnection(
            *("PUB", self),
            heartbeat_seconds=None,  # not every subscriber answers one
            message_bytes=1 + MOST_TOPIC_BYTES,
            turns=self._turns,
        )

    # what its connections tell

    def connected(self, connection: ZmtpConnection) -> None:
        self._subscribers[connection] = _Subscriber()

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        """Take subscriptions and their cancellations, and ignore other messages."""
        subscriber = self._subscribers.get(connection)
        if subscriber is None:
            return
        topics = subscriber.topics
        for said in messages:
            kind, topic = said[0][:1], said[0][1:]
            if len(said) == 1 and kind == _SUBSCRIBES:
                topics.add(topic)
            elif len(said) == 1 and kind == _CANCELS:
                topics.discard(topic)
        if len(topics) > MOST_SUBSCRIPTIONS:
            del self._subscribers[connection]
            connection.close()
            self._say(f"it has more than {MOST_SUBSCRIPTIONS} subscriptions", connection.address)
            return
        subscriber.wanted = tuple(topics)

    def disconnected(self, connection: ZmtpConnection) -> None:
        self._subscribers.pop(connection, None)

    def refused(self, fault: str) -> None:
        self._say(fault)

    def _say(self, fault: str, address: str = "") -> None:
        now = self._clock()
        if self._said_at is not None and now - self._said_at < SAY_SECONDS:
            return
        self._said_at = now
        self._log.warning(
            "%s: the connection of a subscriber%s is closed: %s (said once in %g s at most)",
            *(self._what, address and f" at {address}", fault, SAY_SECONDS),
        )
