"""Answers of extensions, and the parts of a gateway that their answers may be made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from inferway.extension import Tap
from inferway.http.admin import AlarmPages
from inferway.http.auth import Auth
from inferway.http.inference_ingress import InferenceIngress
from inferway.http.server import Handler
from inferway.routing.director import Director
from inferway.telemetry.request_counts import RequestCounts
from inferway.telemetry.tracing import Tracing

Methods = Mapping[str, Handler]


class Audience(Enum):
    """The clients that may ask for a path, and the port where admins have their own."""

    CLIENTS = "clients"  # with a key where keys are configured
    ADMINS = "admins"  # with an admin key where one is configured; the path is below /admin/
    BROWSERS = "browsers"  # on the port for admins; the handler checks the client itself


@dataclass(frozen=True, slots=True)
class Route:
    """A path of an extension, or all paths below one that ends with `/`. The path `/` is for
    browsers alone: programs get the list of paths."""

    # Handlers by method, HEAD is GET; of all paths below one, what returns those of a path, or
    # raises UnknownPathError.
    methods: Methods | Callable[[str], Methods]
    audience: Audience = Audience.ADMINS

    def methods_of(self, path: str) -> Methods:
        """Return the handlers of the path. Raises UnknownPathError."""
        return self.methods(path) if callable(self.methods) else self.methods


@dataclass(frozen=True, slots=True)
class ExtensionParts:
    """The parts of a gateway that answers may be made of."""

    auth: Auth
    director: Director
    ingress: InferenceIngress
    alarms: AlarmPages
    num_waiting: Callable[[], int]  # requests that wait in the gateway for their turn
    is_ready: Callable[[], bool]  # the engines are known
    has_tls: bool
    # of an extension that decides where requests go:
    requests: RequestCounts
    tap: Tap  # for answers that it gives by itself
    tracing: Tracing | None
