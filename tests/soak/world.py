"""The gateway's process with its engines, and what it has taken: memory, descriptors, slots, tasks,
objects."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from tests.soak.engines import EngineProcess, Wire
from tests.soak.gateway import Counts
from tests.soak.hosts import own_host

from inferway_bench.processes import free_port
from inferway_bench.routers import read_metrics, total

# As shipped, but for how long things take at the client's end, and breakers. What an engine may
# take is not limited: that it says nothing must be found out by what it lets hear.
CONFIG = """
timeouts: {hold_head: 2, request_body: 10, drain: 30}
ejection: {seconds: 0.5, max_seconds: 2}
flow: {queue_seconds: 10}
"""
START_SECONDS = 90.0
SETTLE_SECONDS = 40.0
_CONNECTION = "inferway.upstream.connection.EngineConnection"
_ORIGIN = "inferway.upstream.pool.Origin"
# The rooms of which nothing may be left when nobody asks.
_REQUESTS_ROOMS = ("inferway.http.", "inferway.upstream.", "inferway.routing.director.")


class Taken(msgspec.Struct, frozen=True):
    """Of the gateway's process, at a moment."""

    memory_mib: float
    descriptors: int
    tasks: int
    objects: dict[str, int]


@dataclass
class World:
    """`wires` stand before the last engines, and the first have hosts of their own. `peaceful`: an
    engine that the gateway does not know, and that nothing happens to."""

    url: str
    process: subprocess.Popen[bytes]
    counts: Path
    log: Path
    engines: list[EngineProcess]
    wires: list[Wire]
    peaceful: EngineProcess

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return round(float(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def taken(self) -> Taken:
        counts = await self._counts()
        return Taken(self.memory_mib(), self.descriptors(), counts.tasks, counts.objects)

    async def rested(self, before: Taken | None = None) -> Taken:
        """When no request is under way, every engine answers, and no more is taken than `before`;
        or after SETTLE_SECONDS what is taken then."""
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while True:
            await asyncio.sleep(1)
            at_rest = await self._is_at_rest()
            late = asyncio.get_running_loop().time() > deadline
            if at_rest or late:
                taken = await self.taken()
                if late or before is None or not more_than(before, taken):
                    return taken

    async def slots(self) -> dict[str, float]:
        """The gauges of what is under way; all 0 at rest."""
        counted = await self.metrics()
        slots = {
            name: total(counted, f"inferway_{name}")
            for name in ("engine_in_flight", "flow_in_flight", "flow_waiting")
        }
        # the reader of the metrics is being answered
        slots["http_answering"] = total(counted, "inferway_http_answering") - 1
        return slots

    async def metrics(self) -> dict[str, float]:
        """Leaves no connection behind."""
        async with aiohttp.request("GET", f"{self.url}/metrics") as answer:
            return read_metrics(await answer.text())

    async def num_up(self) -> float:
        """How many engines answer, as the gateway knows."""
        return total(await self.metrics(), "inferway_engine_up")

    async def _is_at_rest(self) -> bool:
        return await self.num_up() == len(self.engines) and not any((await self.slots()).values())

    async def _counts(self) -> Counts:
        size = self.counts.stat().st_size if self.counts.exists() else 0
        self.process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(20):
            while not self.counts.exists() or self.counts.stat().st_size <= size:
                await asyncio.sleep(0.02)
            while not (text := self.counts.read_bytes()).endswith(b"\n"):
                await asyncio.sleep(0.02)
        return msgspec.json.decode(text.splitlines()[-1], type=Counts)


def with_probes(taken: Taken, num_engines: int) -> Taken:
    """As if each engine were being asked for its load: the connections of that come and go, and
    the pool forgets an engine without connections at its next sweep."""
    had = taken.objects.get(_CONNECTION, 0)
    probed = {name: max(num_engines, taken.objects.get(name, 0)) for name in (_CONNECTION, _ORIGIN)}
    return msgspec.structs.replace(
        taken,
        descriptors=taken.descriptors + probed[_CONNECTION] - had,
        objects={**taken.objects, **probed},
    )


def more_than(before: Taken, after: Taken) -> dict[str, list[int]]:
    """What is left of requests that are over: descriptors, tasks, objects; [before, after]."""
    left = {}
    if after.descriptors > before.descriptors:
        left["descriptors"] = [before.descriptors, after.descriptors]
    if after.tasks > before.tasks:
        left["tasks"] = [before.tasks, after.tasks]
    for name, number in after.objects.items():
        had = before.objects.get(name, 0)
        if number > had and name.startswith(_REQUESTS_ROOMS):
            left[name] = [had, number]
    return left


@asynccontextmanager
async def world(
    directory: Path, root: Path, num_engines: int, seed: int, *, with_hosts: bool = True
) -> AsyncIterator[World]:
    """All is up when it is entered. The log files stay in `directory`. `with_hosts`: the first
    engine has a host of its own. Raises BenchError."""
    with own_host() if with_hosts else nullcontext() as host:
        engines = [
            EngineProcess(
                *(root, directory / f"engine-{number}.log"), host=None if number else host
            )
            for number in range(num_engines)
        ]
        peaceful = EngineProcess(root, directory / "peaceful.log")
        wires = [Wire(engine.port) for engine in engines[1:]]
        try:
            for engine in (*engines, peaceful):
                engine.start()
            for wire in wires:
                await wire.open()
            addresses = [engines[0].address, *(wire.address for wire in wires)]
            one = _start_gateway(directory, addresses, engines, wires, peaceful, seed)
            try:
                await _until_ready(one)
                yield one
            finally:
                if one.runs:
                    one.process.kill()
                one.process.wait()
        finally:
            for wire in wires:
                await wire.close()
            for engine in (*engines, peaceful):
                engine.kill()


def _start_gateway(
    directory: Path,
    addresses: list[str],
    engines: list[EngineProcess],
    wires: list[Wire],
    peaceful: EngineProcess,
    seed: int,
) -> World:
    port, log = free_port(), directory / "gateway.log"
    (directory / "gateway.yaml").write_text(CONFIG)
    arguments = ["serve", "--config", str(directory / "gateway.yaml"), "--port", str(port)]
    for address in addresses:
        arguments += ["--engine", f"http://{address}"]
    arguments += ["--access-log", str(directory / "access.log")]
    counts = directory / "counts.jsonl"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.gateway", str(counts), *arguments],
            env={**os.environ, "PYTHONHASHSEED": str(seed % 2**32)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    return World(url, process, counts, log, engines, wires, peaceful)


async def _until_ready(one: World) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            if not one.runs:
                raise RuntimeError(f"the gateway ended: {one.log.read_text()[-2000:]}")
            try:
                if total(await one.metrics(), "inferway_engine_up") == len(one.engines):
                    return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
