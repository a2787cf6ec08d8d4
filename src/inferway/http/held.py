"""Requests whose model has engines, all of them suspended: they wait in the queue until one is so
no more, as long as they may, and are decided then.

A request that an engine has refused because it is suspended, and that no other engine takes, is
decided anew a second later. By then the fleet knows of the suspension, and the request waits for
its end; or the refusal was the last, and the request goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from inferway.errors import EnginesSuspendedError, HeldTooLongError, InferwayError, WaitTooLongError
from inferway.http.ends import InQueue
from inferway.http.message import Request
from inferway.http.request_queue import RequestQueue, Ticket, patience
from inferway.http.responder import Responder
from inferway.routing.limits.queue import Waiter
from inferway.routing.objectives import objectives
from inferway.tasks import Tasks

REFUSED_SECONDS = 1.0

log = logging.getLogger("inferway.forward")


@dataclass(slots=True)
class HeldRequests:
    """Holds requests in `control`. `priorities`: by objective, now. `close` must be called."""

    control: RequestQueue
    priorities: Callable[[], Mapping[str, int]]
    tasks: Tasks = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = Tasks(log, "a request that was held ended, by our fault")

    async def turn(
        self,
        error: EnginesSuspendedError,
        request: Request,
        responder: Responder,
        tenant: str,
        priority: int | None,
    ) -> Ticket:
        """Wait until not all engines of the request's model are suspended; return its slot. Raises
        HeldTooLongError, QueueFullError or ClientGoneError."""
        given = objectives(request.headers, self.priorities(), priority).priority
        left, now = self._seconds_left(request, given), self.control.clock()
        try:
            waiter = Waiter(error.model, tenant, given, now + left, now)
            return await self.control.hold(responder, waiter)
        except WaitTooLongError:
            raise _too_long(error, request) from None

    def again(
        self,
        request: Request,
        responder: Responder,
        infer: Callable[[], Awaitable[None]],
        priority: int | None,
        error: InferwayError,
    ) -> None:
        """Have a request decided anew that an engine has refused, a little later. `error`: what its
        client hears if it has waited for too long."""
        responder.attach(InQueue(lambda: None))
        self.tasks.spawn(self._again(request, responder, infer, priority, error))

    async def _again(
        self,
        request: Request,
        responder: Responder,
        infer: Callable[[], Awaitable[None]],
        priority: int | None,
        error: InferwayError,
    ) -> None:
        try:
            given = objectives(request.headers, self.priorities(), priority).priority
            if self._seconds_left(request, given) < REFUSED_SECONDS:
                raise _too_long(error, request)
            await asyncio.sleep(REFUSED_SECONDS)
            if not responder.ended:
                await infer()
        except InferwayError as e:
            if not responder.ended:
                responder.send_error(e)
        except BaseException:
            responder.abort()
            raise

    def _seconds_left(self, request: Request, priority: int) -> float:
        most = patience(request.headers, self.control.limiter.most_seconds(priority))
        return most - (time.perf_counter() - request.started)

    async def close(self) -> None:
        """Give up the requests that wait to be decided anew."""
        await self.tasks.close()


def _too_long(error: InferwayError, request: Request) -> HeldTooLongError:
    seconds = time.perf_counter() - request.started
    return HeldTooLongError(f"{error}; the request has waited for them for {seconds:.3g} s")
