"""grpc.health.v1, under the names that Envoy, kubelet and the conformance manifests ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from inferway_llmd.ext_proc.descriptors import Described
from inferway_llmd.ext_proc.messages import SERVICE
from inferway_llmd.ext_proc.wire.call import Call, Open
from inferway_llmd.ext_proc.wire.frames import Status

_MESSAGES = Described(
    "inferway.health",
    {"HealthCheckRequest": "1 service string", "HealthCheckResponse": "1 status int32"},
)
CheckRequest: Final[Any] = _MESSAGES["HealthCheckRequest"]
CheckResponse: Final[Any] = _MESSAGES["HealthCheckResponse"]

UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)

LIVENESS: Final = "liveness"
# "" is everything; `inference-extension` is what the gateways' conformance manifests say.
READINESS: Final = ("", "readiness", "inference-extension", SERVICE)

_LOOK_SECONDS = 1.0  # between two looks of a watch


class Health:
    """`ready` says whether requests can be answered; alive is whoever answers."""

    def __init__(self, ready: Callable[[], bool], look_seconds: float = _LOOK_SECONDS) -> None:
        self._ready = ready
        self.look_seconds = look_seconds
        self.methods: Mapping[bytes, Open] = {
            b"/grpc.health.v1.Health/Check": lambda call: _Check(call, self),
            b"/grpc.health.v1.Health/Watch": lambda call: _Watch(call, self),
        }

    def status(self, service: str) -> int:
        """Answer SERVICE_UNKNOWN for a name that is not known."""
        if service == LIVENESS:
            return SERVING
        if service not in READINESS:
            return SERVICE_UNKNOWN
        return SERVING if self._ready() else NOT_SERVING


class _Check:
    """Asked once, answered once."""

    def __init__(self, call: Call, health: Health) -> None:
        self._call = call
        self._health = health

    def on_message(self, message: bytes) -> None:
        try:
            self._asked(CheckRequest.FromString(message).service)
        except DecodeError:
            self._call.finish(Status.INVALID_ARGUMENT, "this is no HealthCheckRequest")

    def on_end(self) -> None:
        """An empty call: gRPC's clients always say what they ask."""
        self._call.finish(Status.INVALID_ARGUMENT, "nothing was asked")

    def on_gone(self) -> None: ...

    def _asked(self, service: str) -> None:
        status = self._health.status(service)
        if status == SERVICE_UNKNOWN:
            known = ", ".join(repr(name) for name in (LIVENESS, *READINESS))
            self._call.finish(Status.NOT_FOUND, f"service {service!r}: known are {known}")
            return
        self._call.send(CheckResponse(status=status).SerializeToString())
        self._call.finish()


class _Watch(_Check):
    """Asked once; answered whenever it is another."""

    _timer: asyncio.TimerHandle | None = None
    _told: int | None = None

    def on_message(self, message: bytes) -> None:
        if self._timer is None:  # each would go on for as long as we do
            super().on_message(message)

    def on_end(self) -> None:
        """It has asked; the call goes on."""
        if self._timer is None:
            super().on_end()

    def on_gone(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _asked(self, service: str) -> None:
        status = self._health.status(service)
        if status != self._told:
            self._told = status
            self._call.send(CheckResponse(status=status).SerializeToString())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._health.look_seconds, self._asked, service)
