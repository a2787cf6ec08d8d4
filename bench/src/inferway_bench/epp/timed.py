"""Our picker, with a stopwatch around the route: what deciding costs where it happens, between
messages, in caches that gRPC has emptied.

`python -m inferway_bench.epp.timed PORT ENGINE…` serves as `inferway epp` does, and prints
`{"requests": …, "route_ns": …}`, since its start, after each request. The clock is the
thread's CPU time; what reading it costs is taken off.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from time import thread_time_ns

import uvloop

from inferway.app import Gateway
from inferway.config import EngineSettings, PickerSettings, ServeSettings
from inferway.frontends.ext_proc.exchange import Ask, Pick
from inferway.frontends.ext_proc.picker import Picker
from inferway.frontends.http.forward import RequestLifecycle
from inferway.model import Headers, Target


class Watch:
    """Sums what runs between `started` and `stopped`."""

    def __init__(self) -> None:
        self.ns = self.requests = 0
        pairs = [(thread_time_ns(), thread_time_ns()) for _ in range(1000)]
        self._own = sorted(after - before for before, after in pairs)[500]

    def add(self, started: int) -> None:
        self.ns += thread_time_ns() - started - self._own

    def ended(self) -> None:
        self.requests += 1
        print(f'{{"requests":{self.requests},"route_ns":{self.ns}}}', flush=True)


class TimedPicker(Picker):
    """As Picker, but it is watched."""

    watch: Watch

    async def pick(self, ask: Ask) -> Pick:
        """See Picker. Small bodies are decided without a pause: nothing else is in the time."""
        started = thread_time_ns()
        found = await super().pick(ask)
        self.watch.add(started)
        return found._replace(journey=_TimedJourney(found.journey, self.watch))


class _TimedJourney:
    changes_length = False

    def __init__(self, journey: RequestLifecycle, watch: Watch) -> None:
        self._journey, self._watch = journey, watch
        self.body = journey.body

    def attempt(self, target: Target) -> Headers:
        started = thread_time_ns()
        headers = self._journey.attempt(target)
        self.body = self._journey.body
        self._watch.add(started)
        return headers

    def on_head(self, status: int) -> Headers:
        started = thread_time_ns()
        headers = self._journey.on_head(status)
        self._watch.add(started)
        return headers

    def on_chunk(self, chunk: bytes) -> bytes:
        started = thread_time_ns()
        chunk = self._journey.on_chunk(chunk)
        self._watch.add(started)
        return chunk

    def on_end(self) -> bytes:
        return self._journey.on_end()

    def close(self, outcome: str) -> None:
        started = thread_time_ns()
        self._journey.close(outcome)
        self._watch.add(started)
        self._watch.ended()


async def _serve(port: int, engines: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = ServeSettings(
        engines=[EngineSettings(url=url) for url in engines],
        port=0,
        access_log=None,
        picker=PickerSettings(grpc_port=port, grpc_health_port=0, secure=False),
    )
    gateway = Gateway(settings, picks=True)
    await gateway.start()
    assert gateway.picker is not None
    plain = gateway.picker.picker
    gateway.picker.picker = timed = TimedPicker(
        *(plain.director, plain.everyone, plain.decided_in), counts=plain.counts
    )
    timed.watch = Watch()
    print("listening on", port, flush=True)
    await stop.wait()
    await gateway.close()


def main(argv: list[str], run: Callable[..., object] = uvloop.run) -> None:
    run(_serve(int(argv[0]), argv[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
