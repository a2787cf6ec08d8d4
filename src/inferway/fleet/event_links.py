"""Which of several connections an engine's events are believed from.

Where we connect, there is one at a time. To a socket that is bound anybody may connect: the engine,
another life of it whose last connection is not lost yet, and strangers. So the place belongs to the
newest that has published something; one that is silent has it only where nobody else is.
"""

from __future__ import annotations

from enum import Enum, auto

from inferway.fleet.zmtp import ZmtpConnection


class Published(Enum):
    """What becomes of something that a connection has published."""

    BELIEVED = auto()
    FROM_NOW_ON = auto()  # it has the place now
    IGNORED = auto()  # another one has it


class EventLinks:
    """`believed`: whose events count. No I/O."""

    def __init__(self) -> None:
        self.believed: ZmtpConnection | None = None
        self.is_contested = False  # more than one publishes: nobody knows which is the engine
        self._up: list[ZmtpConnection] = []  # the newest is last
        self._heard: list[ZmtpConnection] = []  # that have published, the first to do so first

    def opened(self, connection: ZmtpConnection) -> bool:
        """Note that it is up. Return whether it is believed."""
        self._up.append(connection)
        if self.believed is None:
            self.believed = connection
        return self.believed is connection

    def published(self, connection: ZmtpConnection) -> Published:
        """Note that it has published something. Return whether that is believed."""
        is_first = connection not in self._heard
        if is_first:
            self._heard.append(connection)
        if connection is self.believed:
            return Published.BELIEVED
        if is_first and self._goes_before(connection, self.believed):
            self.believed = connection
            return Published.FROM_NOW_ON
        self.is_contested = True
        return Published.IGNORED

    def closed(self, connection: ZmtpConnection) -> None:
        """Note that it has ended. If it was believed, another one is that is up, if there is
        one."""
        self._up = [each for each in self._up if each is not connection]
        self._heard = [each for each in self._heard if each is not connection]
        self.is_contested = self.is_contested and len(self._heard) > 1
        if self.believed is connection:
            left = [each for each in self._up if each in self._heard] or self._up
            self.believed = left[-1] if left else None

    def _goes_before(self, one: ZmtpConnection, other: ZmtpConnection | None) -> bool:
        if other is None or other not in self._heard:
            return True
        return self._up.index(one) > self._up.index(other)
