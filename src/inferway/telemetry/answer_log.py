"""Words for answers that have ended (`extension.EndedAnswer`), whichever frontend they passed."""

from __future__ import annotations

from asyncio import CancelledError

from inferway.errors import ClientGoneError, RequestError

# Paths that a load balancer, Kubernetes or Prometheus asks again and again.
PROBES = frozenset({"/health", "/ready", "/metrics", "/ping"})
_KUBE = b"kube-probe/"

CLIENT_GONE = 499  # the status of an answer that nobody was there to get: nginx's word for it


def is_probe(path: str, user_agent: bytes) -> bool:
    """Return whether somebody asks who does so every few seconds: how we are, or for our
    numbers."""
    return path in PROBES or user_agent.startswith(_KUBE)


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a request that `error` has kept from coming as far as an engine."""
    if isinstance(error, (ClientGoneError, CancelledError)):
        return "client_gone"
    return "refused" if isinstance(error, RequestError) else "error"
