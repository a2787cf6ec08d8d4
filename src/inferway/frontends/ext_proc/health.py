"""grpc.health.v1, under the names that Envoy, kubelet and the conformance manifests ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio

from inferway.frontends.ext_proc.descriptors import Described
from inferway.frontends.ext_proc.messages import SERVICE

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


class Health(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`ready` says whether requests can be answered; alive is whoever answers."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        codec = {
            "request_deserializer": CheckRequest.FromString,
            "response_serializer": CheckResponse.SerializeToString,
        }
        self._methods = {
            "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(
                self._check, **codec
            ),
            "/grpc.health.v1.Health/Watch": grpc.unary_stream_rpc_method_handler(
                self._watch, **codec
            ),
        }

    def service(self, call: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(call.method)

    def status(self, service: str) -> int:
        """SERVICE_UNKNOWN for a name nobody knows."""
        if service == LIVENESS:
            return SERVING
        if service not in READINESS:
            return SERVICE_UNKNOWN
        return SERVING if self._ready() else NOT_SERVING

    async def _check(self, request: Any, context: Any) -> Any:
        status = self.status(request.service)
        if status == SERVICE_UNKNOWN:
            known = ", ".join(repr(name) for name in (LIVENESS, *READINESS))
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"service {request.service!r}: known are {known}"
            )
        return CheckResponse(status=status)

    async def _watch(self, request: Any, _: Any) -> AsyncIterator[Any]:
        told = None
        while True:
            status = self.status(request.service)
            if status != told:
                told = status
                yield CheckResponse(status=status)
            await asyncio.sleep(_LOOK_SECONDS)
