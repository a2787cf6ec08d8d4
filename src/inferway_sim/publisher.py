"""A ZMQ socket that publishes KV events, and one that repeats them on request.

As vLLM 0.32 (distributed/kv_events.py) does it:
* a message is `topic | sequence number, 8 bytes big endian, from 0 | payload`;
* the publishing socket binds if its endpoint has a `*` or `::` or is ipc or inproc, and else
  connects; the replay socket always binds;
* a replay request is `"" | first sequence number`; each kept batch is answered by
  `"" | topic | sequence number | payload`, then comes `"" | "" | -1 | ""`.

A ROUTER drops what a reader does not take fast enough (1,000 messages each side). So a long replay
can have holes, before its end marker or instead of it; seen with vLLM's own publisher too.

Unlike vLLM's, a host `*` stands for the engine's own, so that a simulated engine on a laptop does
not show prompts to the network; and of a port 0 or `*` the free one that was bound is announced.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress

import msgspec
import zmq
import zmq.asyncio

from inferway.errors import ConfigError
from inferway.tasks import happens_within
from inferway_sim.config import EventsConfig

log = logging.getLogger("inferway.simulate")

_LINGER_MS = 200
_TERMINATE_SECONDS = 5.0
_REPLAY_BURST = 64
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class EventSourceEntry(msgspec.Struct):
    """An entry of `GET /kv_event_sources`: vLLM's publisher configuration, with endpoints as
    bound."""

    endpoint: str
    replay_endpoint: str | None
    buffer_steps: int
    hwm: int
    topic: str
    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    max_queue_size: int = 100_000


class EventPublisher:
    """Owns the sockets and the batches kept for replay. `start` before `publish`, and `stop` in
    the end, also if `start` failed."""

    def __init__(self, config: EventsConfig, endpoint: str, host: str) -> None:
        self._config = config
        self._host = host
        self._topic = config.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._next_seq = 0
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._replay: zmq.asyncio.Socket | None = None
        self._replaying: asyncio.Task[None] | None = None
        self.source = EventSourceEntry(
            endpoint, config.replay_endpoint, config.buffer_steps, config.hwm, config.topic
        )

    def start(self) -> None:
        """Open the sockets. Raises ConfigError naming an endpoint that cannot be had."""
        self._pub.set_hwm(self._config.hwm)
        endpoint = self.source.endpoint
        if _binds(endpoint):
            self.source.endpoint = self._bind(self._pub, endpoint)
        else:
            self._connect(endpoint)
        if self.source.replay_endpoint is not None:
            self._replay = zmq.asyncio.Context.shadow(self._context).socket(zmq.ROUTER)
            self.source.replay_endpoint = self._bind(self._replay, self.source.replay_endpoint)
            self._replaying = asyncio.create_task(self._answer_replays(self._replay))

    def publish(self, payload: bytes) -> None:
        """Send one batch; never waits. Subscribers that are too slow miss it, as in vLLM."""
        seq = self._next_seq
        self._next_seq += 1
        self._pub.send_multipart((self._topic, seq.to_bytes(8, "big"), payload))
        self._kept.append((seq, payload))

    async def stop(self) -> None:
        """Close the sockets; what is still on its way out gets a moment."""
        if self._replaying is not None:
            self._replaying.cancel()
            with suppress(asyncio.CancelledError):
                await self._replaying
        if self._replay is not None:
            self._replay.close(linger=_LINGER_MS)
        self._pub.close(linger=_LINGER_MS)
        await self._terminate()

    async def _terminate(self) -> None:
        """End the context in a thread: libzmq waits for what lingers. On an overloaded machine, it
        did not return at all, twice; nobody waits longer than _TERMINATE_SECONDS for it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def terminate() -> None:
            self._context.term()
            with suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=terminate, name="zmq term", daemon=True).start()
        if not await happens_within(ended, _TERMINATE_SECONDS):
            log.warning("the sockets of KV events are closed, but their context does not end")

    def _bind(self, socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str) -> str:
        """Bind, and return what to announce: a host `*` kept, a port 0 or `*` replaced by the real
        one."""
        _check(endpoint)
        local, address, port = endpoint, "", ""
        if endpoint.startswith("tcp://"):
            address, _, port = endpoint.rpartition(":")
            local = f"{address.replace('*', self._host)}:{port}"
        try:
            socket.bind(local)
        except zmq.ZMQError as e:
            raise _refusal(endpoint, str(e)) from e
        if port not in ("0", "*"):
            return endpoint
        bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return f"{address}:{bound.rpartition(':')[2]}"

    def _connect(self, endpoint: str) -> None:
        _check(endpoint)
        if endpoint.endswith(":0"):
            raise _refusal(endpoint, "nobody can be reached at port 0")
        try:
            self._pub.connect(endpoint)
        except zmq.ZMQError as e:
            raise _refusal(endpoint, str(e)) from e

    async def _answer_replays(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            request = await socket.recv_multipart()
            if len(request) != 3:
                continue  # vLLM ignores these too
            client, first = request[0], int.from_bytes(request[2], "big")
            for seq, payload in [kept for kept in self._kept if kept[0] >= first]:
                frames = (client, b"", self._topic, seq.to_bytes(8, "big"), payload)
                await socket.send_multipart(frames)
                if seq % _REPLAY_BURST == 0:
                    await asyncio.sleep(0)  # the send never waits, and others share the loop
            await socket.send_multipart((client, b"", b"", END_OF_REPLAY, b""))


def _binds(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _check(endpoint: str) -> None:
    """Raises ConfigError for a port that libzmq would take modulo 65,536."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port) > 65535:
        raise _refusal(endpoint, f"there is no port {port}")


def _refusal(endpoint: str, why: str) -> ConfigError:
    return ConfigError(
        f"KV events: {endpoint!r} cannot be had: {why}; expected ipc://PATH or tcp://HOST:PORT,"
        " where * is the engine's own host, or any free port; choose another with"
        " --zmq-endpoint or --kv-events-replay-endpoint"
    )
