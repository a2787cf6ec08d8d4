"""What a worker has the hub do with its requests: compare live prompts with the engines', find the
place of events whose parent block nobody knows, publish decisions.

Each class is what the request path knows by the same methods where there is one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from inferway.app import Gateway
from inferway.cluster.bus.messages import (
    Decision,
    LiveSample,
    Message,
    PromptsOffered,
    PromptTold,
    Report,
)
from inferway.config import ProbeSettings
from inferway.fleet.columns import EndpointColumns
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.prober import LivePrompt, Prober
from inferway.metrics import Family
from inferway.model import Endpoint, Prompt, TokenIds
from inferway.prompts.served import ServedModel

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
        where = live.endpoint
        ids = None if live.ids is None else [ids.tobytes() for ids in live.ids]
        fields = msgspec.json.encode(live.fields)
        told = LiveSample(live.model.name, where.engine, where.holder, live.path, fields, ids)
        self._send(Report(told))
        done()


class HubOrphans:
    """Sends the hub prompts while it wants them (`telemetry.observers.WantsPrompts`)."""

    def __init__(self, send: Send) -> None:
        self.wanted = False
        self._send = send

    def heard(self, wanted: bool) -> None:
        """Take over whether the hub wants prompts."""
        self.wanted = wanted

    def offer(self, prompts: Mapping[int, Sequence[Prompt]], **of: str | None) -> None:
        told = {
            size: [PromptTold(each.token_ids.tobytes(), list(each.block_keys)) for each in items]
            for size, items in prompts.items()
        }
        self._send(Report(PromptsOffered(told, **of)))


class HubPublisher:
    """Has the hub publish, which has the socket (`telemetry.publisher.Publisher`)."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def publish(self, topic: str, message: dict[str, Any]) -> None:
        self._send(Report(Decision(topic, msgspec.msgpack.encode(message))))

    def families(self) -> Iterator[Family]:
        return iter(())


# the hub's side


def take(gateway: Gateway, report: Report) -> None:
    """Do with a worker's request what the hub does with it."""
    match report.of:
        case LiveSample() as live:
            _sample(gateway.fleet, live)
        case PromptsOffered() as told if gateway.orphans.wanted:
            prompts = {
                size: [Prompt(_ids(each.ids), each.keys) for each in items]
                for size, items in told.prompts.items()
            }
            of = {"lora": told.lora, "lora_path": told.lora_path, "cache_salt": told.cache_salt}
            gateway.orphans.offer(prompts, **of)
        case Decision(topic=topic, body=body) if gateway.publisher is not None:
            gateway.publisher.publish(topic, msgspec.msgpack.decode(body))


def _sample(fleet: Fleet, told: LiveSample) -> None:
    """Compare what a worker has sampled, if engine and model are still there."""
    engine, model = fleet.engine(told.engine), fleet.models.get(told.model)
    endpoints = () if engine is None else engine.endpoints
    endpoint = next((each for each in endpoints if each.holder == told.holder), None)
    if model is not None and endpoint is not None and fleet.prober.may_ask(endpoint):
        ids = None if told.ids is None else [_ids(each) for each in told.ids]
        live = LivePrompt(model, endpoint, told.path, msgspec.json.decode(told.fields), ids)
        fleet.prober.sample(live, lambda: None)  # the worker has gone on already


def _ids(told: bytes) -> TokenIds:
    return np.frombuffer(told, np.uint32)
