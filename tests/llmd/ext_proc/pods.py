"""A pool of pods that are what a test says, and messages as Envoy sends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferway.errors import InferwayError, InvalidRequestError, NoEndpointError
from inferway.extension import EndedAnswer, Tap
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import Adapters, Candidates, Endpoint, HolderId, Reason
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.director import Director
from inferway.routing.match import Matcher
from inferway.routing.rewrite import Rewrites
from inferway.scheduling.adapter_rows import AdapterRows
from inferway.scheduling.idle import idle
from inferway.scheduling.load import load_scheduling
from inferway_llmd.ext_proc.exchange import ProcessingStream
from inferway_llmd.ext_proc.messages import ProcessingRequest, ProcessingResponse
from inferway_llmd.ext_proc.picker import EndpointPicker
from inferway_llmd.ext_proc.questions import Rules

# What llm-d's integration tests configure.
SCORERS = {
    "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "kv-cache-utilization-scorer"},
        {"type": "lora-affinity-scorer"},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "queue-scorer"},
                {"pluginRef": "kv-cache-utilization-scorer"},
                {"pluginRef": "lora-affinity-scorer"},
            ],
        }
    ],
}


@dataclass
class Pods:
    """A fleet: address -> queue, KV usage and adapters. Every model may be there."""

    pods: Mapping[str, Mapping[str, Any]]
    booked: list[str] = field(default_factory=list)  # by whom slots are held
    suspected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.endpoints = [Endpoint(a, f"http://{a}", i) for i, a in enumerate(self.pods)]

    def model(self, name: str) -> ServedModel:
        return ServedModel(name, NoPrompts(Reason.NO_TOKENIZER, "none here"))

    def candidates(self, model: str) -> Candidates:  # noqa: ARG002
        return self.everyone()

    def sole_model(self) -> str:
        raise InvalidRequestError("every model may be there")

    def everyone(self) -> Candidates:
        if not self.endpoints:
            raise NoEndpointError("no pods available in datastore")
        table = idle(self.endpoints, 0)
        told = list(self.pods.values())
        table.waiting[:] = table.others[:] = [pod.get("q", 0) for pod in told]
        table.kv_usage[:] = [pod.get("kv", 0) for pod in told]
        table.adapters = AdapterRows(
            [Adapters(running=frozenset(pod.get("loras", ())), most=2) for pod in told]
        )
        return table

    def find(self, address: str) -> Endpoint | None:
        return next((e for e in self.endpoints if e.address == address), None)

    def cut(self, holder: HolderId) -> int | None:  # noqa: ARG002
        return None

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:  # noqa: ARG002
        self.booked.append(endpoint.engine)

    def release(self, endpoint: Endpoint) -> None:
        self.booked.remove(endpoint.engine)

    def heal(self, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return False

    def healed(self, endpoint: Endpoint) -> None: ...

    def reports(self, endpoint: Endpoint) -> None: ...

    def suspect(self, endpoint: Endpoint) -> None:
        self.suspected.append(endpoint.engine)


class UndelayedTap(Tap):
    """Shows each answer at once."""

    def add(self, answer: EndedAnswer) -> None:
        super().add(answer)
        self.drain()


class Stream:
    """One request's stream, without gRPC: what is sent is answered."""

    def __init__(
        self,
        pods: Mapping[str, Mapping[str, Any]],
        *,
        rewrites: Rewrites | None = None,
        scheduling: Mapping[str, Any] = SCORERS,
        **rules: Any,
    ) -> None:
        self.fleet = Pods(pods)
        self.director = Director(
            self.fleet,
            Matcher(MemoryIndex(), SpeculativeOverlay()),
            load_scheduling(scheduling),
            lambda: 1.0,
            rewrites=rewrites or Rewrites(),
            behind_proxy=True,
        )
        self.picker = EndpointPicker(self.director, lambda: self.fleet.everyone())
        self.exchange = ProcessingStream(
            Rules(
                self.fleet.find,
                counts=self.picker.counts,
                tap=UndelayedTap([self.picker.requests]),
                **rules,
            )
        )

    @property
    def outcomes(self) -> dict[str, int]:
        """How requests have ended."""
        found: Counter[str] = Counter()
        self.picker.requests.flush()
        for model in self.picker.requests.models.values():
            for (_, outcome), number in model.endings.items():
                found[outcome] += number
        return found

    async def send(self, *messages: Any) -> list[Any]:
        """The answers to all of them."""
        answers: list[bytes] = []
        for message in messages:
            answers += self.exchange.receive(message)
            if self.exchange.ask is not None:
                try:
                    pick = await self.picker.pick(self.exchange.ask)
                except InferwayError as e:
                    answers += self.exchange.refused(e)
                else:
                    answers += self.exchange.decided(pick)
        if self.exchange.over:
            self.exchange.close()
        return [ProcessingResponse.FromString(answer) for answer in answers]


Metadata = Mapping[str, Mapping[str, Any]]


def _message(kind: str, meta: Metadata | None, fill: Callable[[Any], None]) -> Any:
    message = ProcessingRequest()
    part = getattr(message, kind)
    part.SetInParent()
    fill(part)
    for namespace, values in (meta or {}).items():
        entry = message.metadata_context.filter_metadata.add(key=namespace)
        entry.value.update(dict(values))
    return message


def _headers(
    kind: str, headers: Sequence[tuple[str, str]], eos: bool, meta: Metadata | None
) -> Any:
    def fill(part: Any) -> None:
        part.end_of_stream = eos
        for name, value in headers:
            part.headers.headers.add(key=name, raw_value=value.encode())

    return _message(kind, meta, fill)


def rqh(*headers: tuple[str, str], eos: bool = False, meta: Metadata | None = None) -> Any:
    return _headers("request_headers", headers, eos, meta)


def rsh(*headers: tuple[str, str], eos: bool = False, meta: Metadata | None = None) -> Any:
    return _headers("response_headers", headers, eos, meta)


def _body(kind: str, body: bytes, eos: bool, meta: Metadata | None) -> Any:
    def fill(part: Any) -> None:
        part.body, part.end_of_stream = body, eos

    return _message(kind, meta, fill)


def rqb(body: bytes, *, eos: bool = False, meta: Metadata | None = None) -> Any:
    return _body("request_body", body, eos, meta)


def rsb(body: bytes, *, eos: bool = False, meta: Metadata | None = None) -> Any:
    return _body("response_body", body, eos, meta)


def rqt() -> Any:
    return _message("request_trailers", None, lambda _: None)


def rst() -> Any:
    return _message("response_trailers", None, lambda _: None)
