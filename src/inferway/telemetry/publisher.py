"""What leaves on the side: decisions and KV events, published over ZMQ (seed 003).

Frames: topic | 8-byte big-endian sequence number from 1 | msgpack map. Topics, with "/" in a
model's name written as "_":

    kv.{model}         each routed completion
    kv.chat.{model}    each routed chat
    kv.events.{model}  the engines' KV events, normalised

Prompts and messages are on them only when `publish_text` is set: a topic has no reader check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import zmq

from inferway.errors import ConfigError
from inferway.fleet.engine import Engine
from inferway.kv.events.adapters.vllm import normalise
from inferway.kv.events.event import Batch
from inferway.metrics import Family, counter

log = logging.getLogger("inferway.publisher")

SEND_HIGH_WATER = 10_000  # messages per subscriber; a slow one loses, never slows us


class Publisher(Protocol):
    """Publishes, and never waits."""

    def publish(self, topic: str, message: dict[str, Any]) -> None: ...
    def families(self) -> Iterator[Family]: ...


class ZmqPublisher:
    """A PUB socket. A wildcard address binds, any other connects. It never waits."""

    def __init__(self, address: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.address = address
        self.published = 0
        self.lost = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._socket = context.socket(zmq.PUB)
        self._socket.set_hwm(SEND_HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 200)
        try:
            if _binds(address):
                self._socket.bind(address)
            else:
                self._socket.connect(address)
        except zmq.ZMQError as e:
            self._socket.close()
            raise ConfigError(f"publish {address!r}: {e.strerror}; choose another port") from e
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        if _binds(address):
            log.info("decisions and KV events are published on %s", self.endpoint)
        else:
            log.info(
                "decisions and KV events are published to %s: we connect, a subscriber must bind "
                "there (`inferway tail 'tcp://*:PORT'`); a wildcard address would bind here",
                self.endpoint,
            )

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        yield counter("published", "Messages that were published.", value=self.published)
        yield counter(
            "publish_lost",
            "Messages that were not published because the socket could not take more.",
            value=self.lost,
        )

    def publish(self, topic: str, message: dict[str, Any]) -> None:
        """Sends, or drops and counts when the socket cannot take more."""
        self.published += 1
        frames = [
            topic.encode(),
            self.published.to_bytes(8, "big"),
            self._encoder.encode(message),
        ]
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self.lost += 1

    def close(self) -> None:
        self._socket.close()


def topic_name(model: str) -> str:
    """A model's name as part of a topic."""
    return model.replace("/", "_")


def publish_events(
    publish: Callable[[str, dict[str, Any]], None], engine: Engine, batch: Batch
) -> None:
    """Publish the events of a batch in one form, whatever form the engine speaks."""
    if not engine.model_names:
        return
    topic = f"kv.events.{topic_name(engine.model_names[0])}"
    for event in batch.events:
        publish(topic, {"engine": engine.name, **normalise(event)})


def _binds(address: str) -> bool:
    return "*" in address or "::" in address or address.startswith(("ipc://", "inproc://"))
