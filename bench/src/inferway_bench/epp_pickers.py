"""The pickers that ours is compared with, each a process that serves ext_proc until SIGTERM.

`python -m inferway_bench.epp_pickers KIND PORT ENGINE…`: `echo` sends everything to the first
engine and decides nothing, over `grpcio`: what gRPC costs in Python. `timed` is our picker with a
stopwatch around the route: what deciding costs where it happens, between messages, in caches that
gRPC has emptied. It prints `{"requests": …, "route_ns": …}`, since its start, after each request;
the clock is the thread's CPU time, and what reading it costs is taken off.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from time import thread_time_ns
from typing import Any, ParamSpec, TypeVar

import grpc
import grpc.aio
import uvloop

from inferway.app import Gateway
from inferway.config import EngineSettings, PickerSettings, ServeSettings
from inferway.ext_proc import answers
from inferway.ext_proc.exchange import Ask, Pick
from inferway.ext_proc.messages import METHOD, SERVICE, ProcessingRequest

_P = ParamSpec("_P")
_R = TypeVar("_R")


class EchoStream:
    """One stream of a picker that sends every request to `address` and passes everything on."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._body: list[bytes] = []

    def answers(self, message: Any) -> list[Any]:
        """Return what is said to a message, in the order of the protocol: headers, then the
        body."""
        kind = message.WhichOneof("kind")
        if kind == "request_body":
            self._body.append(message.request_body.body)
            if not message.request_body.end_of_stream:
                return []
            whole = b"".join(self._body)
            head = answers.request_headers(self._address, (), (), len(whole))
            return [head, *answers.request_pieces(whole, ended=True)]
        if kind == "response_headers":
            return [answers.response_headers(())]
        if kind == "response_body":
            came = message.response_body
            return [answers.response_piece(came.body, ended=came.end_of_stream)]
        return []


class Stopwatch:
    """Sums the CPU time of what it is put around."""

    def __init__(self) -> None:
        self.ns = self.requests = 0
        pairs = [(thread_time_ns(), thread_time_ns()) for _ in range(1000)]
        self._own = sorted(after - before for before, after in pairs)[500]

    def add(self, started: int) -> None:
        """Add what has run since `started`."""
        self.ns += thread_time_ns() - started - self._own

    def around(self, step: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return `step`, timed."""

        def timed(*arguments: _P.args, **named: _P.kwargs) -> _R:
            started = thread_time_ns()
            result = step(*arguments, **named)
            self.add(started)
            return result

        return timed

    def ended(self) -> None:
        """Print what there is, after one more request."""
        self.requests += 1
        print(f'{{"requests":{self.requests},"route_ns":{self.ns}}}', flush=True)


class TimedPicker:
    """Our picker, with a stopwatch around what it decides. Small bodies are decided without a
    pause: nothing else is in the time."""

    def __init__(self, picker: Any, watch: Stopwatch) -> None:
        self._picker = picker
        self._watch = watch

    async def pick(self, ask: Ask) -> Pick:
        started = thread_time_ns()
        found: Pick = await self._picker.pick(ask)
        self._watch.add(started)
        return found._replace(journey=TimedJourney(found.journey, self._watch))


class TimedJourney:
    """A journey whose steps are timed."""

    def __init__(self, journey: Any, watch: Stopwatch) -> None:
        self._journey = journey
        self._watch = watch
        self.attempt = watch.around(journey.attempt)
        self.on_head = watch.around(journey.on_head)
        self.on_chunk = watch.around(journey.on_chunk)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journey, name)

    def close(self, outcome: str) -> None:
        self._watch.around(self._journey.close)(outcome)
        self._watch.ended()


async def _serve_echo(port: int, address: str, stop: asyncio.Event) -> None:
    async def process(messages: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        stream = EchoStream(address)
        async for message in messages:
            for answer in stream.answers(message):
                yield answer

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(process, ProcessingRequest.FromString)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("listening on", port, flush=True)
    await stop.wait()
    await server.stop(0)


async def _serve_timed(port: int, engines: Sequence[str], stop: asyncio.Event) -> None:
    settings = ServeSettings(
        engines=[EngineSettings(url=url) for url in engines],
        port=0,
        access_log=None,
        picker=PickerSettings(grpc_port=port, grpc_health_port=0, secure=False),
    )
    gateway = Gateway(settings, picks=True)
    await gateway.start()
    server: Any = gateway.picker
    server.picker = TimedPicker(server.picker, Stopwatch())
    print("listening on", port, flush=True)
    await stop.wait()
    await gateway.close()


async def _serve(kind: str, port: int, engines: Sequence[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if kind == "timed":
        await _serve_timed(port, engines, stop)
    else:
        await _serve_echo(port, engines[0].removeprefix("http://"), stop)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
