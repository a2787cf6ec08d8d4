"""Decisions and KV events, published over ZMQ (seed 003).

Frames: topic | 8-byte big-endian sequence number from 1 | msgpack map. Topics, with "/" in a
model's name written as "_":

    kv.{model}         each routed completion
    kv.chat.{model}    each routed chat
    kv.events.{model}  the engines' KV events, normalised

Prompts and messages are on them only when `publish_text` is set: a topic has no reader check. The
socket is a PUB socket of our own (`fleet.zmtp_publishing`), which any SUB socket can read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from inferway.errors import ConfigError
from inferway.fleet.engine import Engine
from inferway.fleet.zmtp import bound, check_endpoint, endpoint_of
from inferway.fleet.zmtp_publishing import PubSocket
from inferway.kv.events.adapters.vllm import normalise
from inferway.kv.events.event import Batch
from inferway.metrics import Family, counter

log = logging.getLogger("inferway.publisher")


class Publisher(Protocol):
    """Publishes, and never waits."""

    def publish(self, topic: str, message: dict[str, Any]) -> None: ...
    def families(self) -> Iterator[Family]: ...


class ZmqPublisher:
    """A PUB socket, made on the event loop that runs it. A wildcard address binds, any other
    connects. Publishing never waits: a slow subscriber loses messages."""

    def __init__(self, address: str) -> None:
        """Raises ConfigError."""
        self.published = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._socket = PubSocket(log, "decisions and KV events")
        try:
            if _binds(address):
                listening = bound(address)
                self.endpoint = endpoint_of(listening)
                self._socket.bind(listening)
            else:
                check_endpoint(address)
                self.endpoint = address
                self._socket.connect(address)
        except OSError as e:
            raise ConfigError(f"publish {address!r}: {e.strerror}; choose another port") from e
        except ValueError as e:
            raise ConfigError(f"publish {address!r}: {e}") from e
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
            "Messages that a subscriber did not get because it did not read.",
            value=self._socket.lost,
        )

    def publish(self, topic: str, message: dict[str, Any]) -> None:
        """Send the message to the topic's subscribers. A subscriber that does not read loses
        it."""
        self.published += 1
        name = topic.encode()
        if self._socket.subscribers(name):
            number = self.published.to_bytes(8, "big")
            self._socket.send([name, number, self._encoder.encode(message)])

    async def close(self) -> None:
        await self._socket.close()


def topic_name(model: str) -> str:
    """Return a model's name as part of a topic."""
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
    return "*" in address or "::" in address or address.startswith("ipc://")
