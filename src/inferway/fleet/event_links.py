"""The connection whose events count as the engine's, among several.

A socket that the gateway has connected has one connection at a time. To a socket that the gateway
has bound, the engine may connect, a restarted engine while its former connection is not lost yet,
and strangers. The newest connection that has published a batch is believed; a silent connection is
believed only if no other one has published.
"""

from __future__ import annotations

from enum import Enum, auto

from inferway.fleet.zmtp import ZmtpConnection


class Published(Enum):
    """What happens to a batch that a connection has published."""

    BELIEVED = auto()
    FROM_NOW_ON = auto()  # believed, and the connection is from now on
    IGNORED = auto()  # another connection is believed


class EventLinks:
    """The connections of one event source, and the `believed` one. No I/O."""

    def __init__(self) -> None:
        self.believed: ZmtpConnection | None = None
        self.is_contested = False  # more than one connection publishes: one is not the engine's
        self._up: list[ZmtpConnection] = []  # the newest is last
        self._heard: list[ZmtpConnection] = []  # connections that have published

    def opened(self, connection: ZmtpConnection) -> bool:
        """Note that a connection is up. Return whether it is the believed one."""
        self._up.append(connection)
        if self.believed is None:
            self.believed = connection
        return self.believed is connection

    def published(self, connection: ZmtpConnection) -> Published:
        """Note that a connection has published a batch. Return what happens to the batch."""
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
        """Note that a connection has ended. If it was the believed one, another connection that is
        up takes its place, one that has published before silent ones."""
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
