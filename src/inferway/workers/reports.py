"""What a worker has the hub do with its requests: compare live prompts with the engines', find the
place of events whose parent block nobody knows, publish decisions.

Each class is what the request path knows by the same methods where there is one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from inferway.config import ProbeSettings
from inferway.fleet.columns import EndpointColumns
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.orphan_resolution import OrphanResolver
from inferway.fleet.prober import LivePrompt, Prober
from inferway.metrics import Family
from inferway.model import Endpoint, Prompt, TokenIds
from inferway.prompts.served import ServedModel
from inferway.telemetry.publisher import ZmqPublisher
from inferway.workers.messages import (
    LiveSample,
    Message,
    PromptsOffered,
    PromptTold,
    Publish,
)

Send = Callable[[Message], None]


# a worker's side


class HubProber(Prober):
    """Has the hub compare live prompts. What it has found out comes with the engines."""

    def __init__(
        self,
        send: Send,
        columns: EndpointColumns,
        settings: ProbeSettings,
        engines: Mapping[str, Engine],
        *more: Any,
        sends_ids: bool,
    ) -> None:
        """`columns`: of the endpoints; the rest as `Prober` takes it."""
        super().__init__(settings, engines, *more, sends_ids=sends_ids)
        self._send = send
        self._columns = columns
        self._by_name = engines

    @property
    def any_stray(self) -> bool:
        return any(
            proof.live is not None
            for engine in self._by_name.values()
            for proof in engine.proofs.values()
        )

    def strayed(self, model: ServedModel, endpoint: Endpoint) -> bool:
        engine = self._by_name.get(endpoint.engine)
        if engine is None:
            return False
        proof = engine.proofs.get(self.subject(engine, model.name))
        return proof is not None and proof.live is not None

    def may_ask(self, endpoint: Endpoint) -> bool:
        engine = self._by_name.get(endpoint.engine)
        is_well = engine is not None and engine.healthy
        return is_well and not self._columns.waiting[endpoint.holder]

    def sample(self, live: LivePrompt, done: Callable[[], None]) -> None:
        self._send(
            LiveSample(
                live.model.name,
                live.endpoint.engine,
                live.endpoint.holder,
                live.path,
                msgspec.json.encode(live.fields),
                None if live.ids is None else [ids.tobytes() for ids in live.ids],
            )
        )
        done()


class HubOrphans:
    """Sends the hub prompts while it wants them."""

    def __init__(self, send: Send) -> None:
        self.wanted = False
        self._send = send

    def heard(self, wanted: bool) -> None:
        """Take over whether the hub wants prompts."""
        self.wanted = wanted

    def offer(
        self,
        prompts: Mapping[int, Sequence[Prompt]],
        *,
        lora: str | None = None,
        lora_path: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        told = {
            size: [PromptTold(each.token_ids.tobytes(), list(each.block_keys)) for each in items]
            for size, items in prompts.items()
        }
        self._send(PromptsOffered(told, lora, lora_path, cache_salt))


class HubPublisher:
    """Has the hub publish, which has the socket."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def publish(self, topic: str, message: dict[str, Any]) -> None:
        self._send(Publish(topic, msgspec.msgpack.encode(message)))

    def families(self) -> Iterator[Family]:
        return iter(())


# the hub's side


def sample(fleet: Fleet, told: LiveSample) -> None:
    """Compare what a worker has sampled, if engine and model are still there."""
    engine, model = fleet.engine(told.engine), fleet.models.get(told.model)
    endpoints = () if engine is None else engine.endpoints
    endpoint = next((each for each in endpoints if each.holder == told.holder), None)
    if model is not None and endpoint is not None and fleet.prober.may_ask(endpoint):
        ids = None if told.ids is None else [_ids(each) for each in told.ids]
        fields = msgspec.json.decode(told.fields)
        live = LivePrompt(model, endpoint, told.path, fields, ids)
        fleet.prober.sample(live, _nothing)


def offer(orphans: OrphanResolver, told: PromptsOffered) -> None:
    """Take the prompts that a worker has sent."""
    if orphans.wanted:
        orphans.offer(
            {
                size: [Prompt(_ids(each.ids), each.keys) for each in items]
                for size, items in told.prompts.items()
            },
            lora=told.lora,
            lora_path=told.lora_path,
            cache_salt=told.cache_salt,
        )


def publish(publisher: ZmqPublisher | None, told: Publish) -> None:
    """Publish what a worker has decided."""
    if publisher is not None:
        publisher.publish(told.topic, msgspec.msgpack.decode(told.body))


def _ids(told: bytes) -> TokenIds:
    return np.frombuffer(told, np.uint32)


def _nothing() -> None:
    """The worker has gone on already."""
