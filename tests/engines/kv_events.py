"""An engine's KV events as it sends them: raw frames. Shares nothing with the room that reads
events in the product, so that one mistake cannot hide in both."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
import zmq

Frames = list[bytes]

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class EventListener:
    """Live messages of one engine, from the moment it is made; and replays."""

    def __init__(self, events_port: int, replay_port: int) -> None:
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt(zmq.SUBSCRIBE, b"")
        self._replay = self._context.socket(zmq.DEALER)
        # A subscription is in place only some time after connecting: wait for the handshake.
        monitor = self._live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._live.connect(f"tcp://127.0.0.1:{events_port}")
        self._replay.connect(f"tcp://127.0.0.1:{replay_port}")
        connected = monitor.poll(10_000)
        self._live.disable_monitor()
        monitor.close(linger=0)
        if not connected:
            raise RuntimeError(f"no KV events on port {events_port}")

    def __enter__(self) -> EventListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    def messages(self, enough: Callable[[list[Frames]], bool], seconds: float = 20) -> list[Frames]:
        """Live messages (topic, sequence, payload) up to the one that makes it enough."""
        got: list[Frames] = []
        deadline = time.monotonic() + seconds
        while not enough(got):
            left = deadline - time.monotonic()
            if left <= 0 or not self._live.poll(int(left * 1000)):
                raise TimeoutError(f"only {len(got)} messages in {seconds} s")
            got.append(self._live.recv_multipart())
        return got

    def messages_until_quiet(self, seconds: float) -> list[Frames]:
        """Live messages until none has come for `seconds`."""
        got: list[Frames] = []
        while self._live.poll(int(seconds * 1000)):
            got.append(self._live.recv_multipart())
        return got

    def replay(self, first: int) -> list[Frames]:
        """The answer to a replay request, as a DEALER gets it, end marker included."""
        self._replay.send_multipart([b"", first.to_bytes(8, "big")])
        got: list[Frames] = []
        while not got or got[-1][-2] != END_OF_REPLAY:
            if not self._replay.poll(10_000):
                raise TimeoutError(f"replay from {first} stopped after {len(got)} messages")
            got.append(self._replay.recv_multipart())
        return got


def events_in(messages: list[Frames]) -> list[dict[str, Any]]:
    """The events of live messages, in order; vLLM 0.32 writes each as a map."""
    events: list[dict[str, Any]] = []
    for _topic, _sequence, payload in messages:
        _timestamp, batch, _rank = msgspec.msgpack.decode(payload)
        events += batch
    return events


def num_stored(messages: list[Frames]) -> int:
    """Blocks stored in all of the messages."""
    return sum(
        len(event["block_hashes"])
        for event in events_in(messages)
        if event["type"] == "BlockStored"
    )
