"""Who is told of each answer that has ended, whichever frontend it passed: the access log, the
counts of requests, the spans."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Protocol

from inferway.errors import ClientGoneError, RequestError
from inferway.routing.record import Record

if TYPE_CHECKING:
    from inferway.telemetry.tracing import RequestSpan

# Paths that a load balancer, Kubernetes or Prometheus asks again and again.
PROBES = frozenset({"/health", "/ready", "/metrics", "/ping"})
_KUBE = b"kube-probe/"

CLIENT_GONE = 499  # the status of an answer that nobody was there to get: nginx's word for it


def is_probe(path: str, user_agent: bytes) -> bool:
    """Return whether somebody asks who does so every few seconds: how we are, or for our
    numbers."""
    return path in PROBES or user_agent.startswith(_KUBE)


class EndedAnswer(Protocol):
    """An answer that has ended (http.responder.Responder, ext_proc.noted.Noted)."""

    @property
    def client(self) -> str:
        """The client's address without its port; empty where it is not known."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str:
        """The request's path without its query, of any length."""

    @property
    def user_agent(self) -> bytes:
        """The request's header, of any length; empty without one."""

    @property
    def request_id(self) -> str: ...
    @property
    def traceparent(self) -> bytes | None:
        """The span that the answer belongs to (W3C trace context); None if it is not known."""

    @property
    def status(self) -> int:
        """The HTTP status; 0 or CLIENT_GONE if the client has gone before there was one."""

    @property
    def outcome(self) -> str:
        """How it ended, in the words of scheduling.plugin.RequestOutcome; empty: the status says
        it all."""

    @property
    def seconds(self) -> float:
        """The time since the request was complete."""

    @property
    def body_bytes(self) -> int | None:
        """The bytes of the answer's body; None if they did not pass here."""

    @property
    def record(self) -> Record | None:
        """What the request's journey has found out; None if it has made none."""

    @property
    def span(self) -> RequestSpan | None:
        """The request's span; None if it has none."""


class AnswerLog(Protocol):
    """Is told of each answer that has ended."""

    def add(self, answer: EndedAnswer, /) -> None: ...
    def flush(self) -> None:
        """Called each second, and at the end."""


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a request that `error` has kept from coming as far as an engine."""
    if isinstance(error, (ClientGoneError, CancelledError)):
        return "client_gone"
    return "refused" if isinstance(error, RequestError) else "error"
