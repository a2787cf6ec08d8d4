"""What is deployed for `inferway bench ray`: engines, an ingress that hands bodies on as Ray's own
LLM ingress does, and routers with stopwatches."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from inferway.model import Headers
from inferway_ray.observed import AnswerHead
from inferway_ray.programs import EngineProgram
from inferway_ray.router import InferwayRouter

_TOOK = "_inferway_bench_took"  # of a pending request: wall and CPU time, ns


class ParsedEngine(EngineProgram):
    """An engine whose calls have the parsed body in front, where each router looks for it."""

    async def answer_parsed(
        self, parsed: SimpleNamespace, path: str, headers: Headers, body: bytes
    ) -> AsyncIterator[AnswerHead | bytes]:
        del parsed
        async for piece in self.answer(path, headers, body):
            yield piece


class ParsedIngress:
    """An ingress in front of it."""

    def __init__(self, engines: Any) -> None:
        self._engines = engines.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        headers = [(name, value) for name, value in request.scope["headers"]]
        parsed = SimpleNamespace(**msgspec.json.decode(body))
        pieces = self._engines.answer_parsed.remote(parsed, request.url.path, headers, body)
        head = await anext(pieces)
        response = StreamingResponse(pieces, head.status)
        response.raw_headers = list(head.headers)
        return response


class Stopwatch:
    """In front of a router's class: writes a line for each request that it has routed, `PID WALL
    CPU` in ns, to the file `timings`. CPU time is that of the router's thread."""

    def initialize_state(self, *, timings: str, **kwargs: Any) -> None:
        self._timings = open(timings, "a", buffering=1)  # noqa: SIM115  # as long as the router
        super().initialize_state(**kwargs)  # type: ignore[misc]

    async def choose_replicas(self, candidate_replicas: Any, pending_request: Any = None) -> Any:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        chosen = await super().choose_replicas(  # type: ignore[misc]
            candidate_replicas=candidate_replicas, pending_request=pending_request
        )
        self._add(pending_request, wall, cpu)
        return chosen

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        super().on_request_routed(pending_request, replica_id, result)  # type: ignore[misc]
        self._add(pending_request, wall, cpu)
        took = getattr(pending_request, _TOOK)
        self._timings.write(f"{os.getpid()} {took[0]} {took[1]}\n")

    def _add(self, pending_request: Any, wall: int, cpu: int) -> None:
        before = getattr(pending_request, _TOOK, (0, 0))
        now = time.perf_counter_ns() - wall, time.thread_time_ns() - cpu
        setattr(pending_request, _TOOK, (before[0] + now[0], before[1] + now[1]))


class TimedInferway(Stopwatch, InferwayRouter):  # type: ignore[misc]
    pass


class TimedDefault(Stopwatch, PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    pass


class TimedPrefixAware(Stopwatch, PrefixCacheAffinityRouter):  # type: ignore[misc]
    pass
