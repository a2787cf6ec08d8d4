"""A subscriber's view of the gateway's published events."""

from __future__ import annotations

import asyncio
from collections import Counter

import zmq
import zmq.asyncio


class PublishedTopics:
    """A subscriber of its own: counts what the gateway publishes, by topic."""

    def __init__(self, endpoint: str) -> None:
        self.counts: Counter[str] = Counter()
        self._socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            topic, _, _ = await self._socket.recv_multipart()
            self.counts[topic.decode()] += 1

    async def close(self) -> None:
        """Waits until it has ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close(linger=0)
