"""`python -m tests.resources.floods`: what a flood of one client costs others. Each runs beside
four victims, against a gateway of its own with three simulated engines. A table in Markdown
comes out; status 1 if something does not hold (`wrong`).

The attackers are nice, and so is the engine that they ask: elsewhere they are on other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
import msgspec
import uvloop
from tests.engines.program import Program
from tests.http.clients import Client, get
from tests.prompts.media.pictures import vision_model
from tests.resources.attacks import ATTACKS, chat, connect, shaped
from tests.resources.worlds import resident_kb

from inferway.routing.limits.callers import hash_of, new_key
from inferway_bench.machine import this_machine
from inferway_bench.routers import read_metrics, total
from inferway_sim.prepare import prepare_smollm2

SLOTS = ("inferway_engine_in_flight", "inferway_flow_in_flight", "inferway_flow_waiting")
VICTIMS = ("stream", "health", "chat", "shape")
TOKEN_MS = 25.0  # between two tokens of the engines
MAX_MS = 150.0  # the 99th percentile of each victim
MAX_MIB = 64.0  # that may stay resident


@dataclass
class World:
    """`key` is an admin's."""

    gateway: Program
    key: str
    attacker: str
    numbers: itertools.count[int] = field(default_factory=itertools.count)  # of new schemas

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])

    async def flood(self, name: str, seconds: float) -> dict[str, int]:
        """In a process of its own. Returns its answers by status, and `sent` bytes."""
        process = await asyncio.create_subprocess_exec(
            *("nice", sys.executable, "-m", "tests.resources.attacks", name),
            *(str(self.port), str(seconds)),
            env={**os.environ, "FLOOD_KEY": self.attacker},
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await process.communicate()
        assert process.returncode == 0, name
        answers: dict[str, int] = json.loads(told)
        return answers

    async def slots(self) -> float:
        """How many requests are under way."""
        headers = {"authorization": f"Bearer {self.key}"}
        url = f"{self.gateway.url}/metrics"
        async with aiohttp.request("GET", url, headers=headers) as answer:
            counted = read_metrics(await answer.text())
        return sum(total(counted, name) for name in SLOTS)

    async def settled(self, kb: float) -> float:
        """How much more than `kb` is resident once no slot is taken, and no more than 64 MiB of it
        is, or after 20 s. Raises TimeoutError for a slot."""
        async with asyncio.timeout(20):
            while await self.slots():
                await asyncio.sleep(0.1)
        for _ in range(200):
            if resident_kb(self.gateway.pid) < kb + 64 * 1024:
                break
            await asyncio.sleep(0.1)
        return resident_kb(self.gateway.pid) - kb


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    attacker, key = new_key(), new_key()
    (directory / "keys.yaml").write_text(
        f"keys:\n- {{name: attacker, hash: '{hash_of(attacker)}'}}\n"
        f"- {{name: victim, hash: '{hash_of(key)}', admin: true}}\n"
    )
    simulate = ["simulate", "--structured", "--inter-token-latency", f"{TOKEN_MS:g}ms"]
    vision = vision_model(prepare_smollm2(), directory / "vision")
    large = ["--max-model-len", "2000000", "--kv-cache-size", "200000"]
    engines = [
        Program([*simulate, "--served-model-name", "calm"], directory / "calm.log"),
        Program([*simulate, "--served-model-name", "flooded", *large], directory / "flooded.log"),
        Program(
            [*simulate, "--model", str(vision), "--served-model-name", "pictured"],
            directory / "pictured.log",
        ),
    ]
    async with AsyncExitStack() as stack:
        for engine in engines:
            await asyncio.to_thread(engine.__enter__)
            stack.push_async_callback(asyncio.to_thread, engine.stop)
        for engine in engines[1:]:
            os.setpriority(os.PRIO_PROCESS, engine.pid, 10)
        arguments = ["serve", *(engine.url for engine in engines)]
        arguments += ["--api-keys", str(directory / "keys.yaml")]
        gateway = Program(
            [*arguments, "--access-log", str(directory / "access.log")], directory / "gateway.log"
        )
        await asyncio.to_thread(gateway.__enter__)
        stack.push_async_callback(asyncio.to_thread, gateway.stop)
        one = World(gateway, key, attacker)
        async with asyncio.timeout(60):
            async with aiohttp.ClientSession() as session:
                while (await session.get(f"{gateway.url}/ready")).status != 200:
                    await asyncio.sleep(0.1)
        yield one


class Victims:
    """Ask steadily; `taken` has the milliseconds, each from when it was due."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.taken: dict[str, list[float]] = {name: [] for name in VICTIMS}

    async def watch(self, during: Awaitable[dict[str, int]]) -> dict[str, int]:
        """Until `during` is over."""
        key = self._world.key
        tasks = [
            asyncio.create_task(self._stream()),
            asyncio.create_task(self._ask("health", 0.02, lambda: get(b"/health"))),
            asyncio.create_task(
                self._ask("chat", 0.05, lambda: chat(key, "calm", "Who is it?", max_tokens=1))
            ),
            asyncio.create_task(
                self._ask("shape", 0.1, lambda: shaped(key, "calm", self._new_name(), 2))
            ),
        ]
        try:
            return await during
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if not isinstance(error, asyncio.CancelledError | None):
                    raise error

    def _new_name(self) -> str:
        return f"v_{next(self._world.numbers)}"

    async def _stream(self) -> None:
        say = {"stream": True, "max_tokens": 8000, "ignore_eos": True}
        async with connection(self._world.port) as client:
            await client.send(chat(self._world.key, "calm", "Say much.", **say))
            assert (await client.head()).status == 200
            await client.chunk()
            before = monotonic()
            while await client.chunk():
                now = monotonic()
                self.taken["stream"] += each_late((now - before) * 1e3)
                before = now
        raise AssertionError("the stream has ended")

    async def _ask(self, name: str, seconds: float, request: Callable[[], bytes]) -> None:
        async with connection(self._world.port) as client:
            due = monotonic()
            while True:
                await asyncio.sleep(max(0.0, due - monotonic()))
                assert (await client.ask(request())).status == 200, name
                self.taken[name].append((monotonic() - due) * 1e3)
                due += seconds


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Client]:
    client = await connect(port)
    try:
        yield client
    finally:
        client.reset()


def each_late(milliseconds: float) -> list[float]:
    """Of a pause between two tokens: how long it took from then on for each token that was due in
    it."""
    missed = int(milliseconds / TOKEN_MS) - 1
    return [milliseconds - TOKEN_MS * i for i in range(max(1, missed + 1))]


async def measure(name: str, alone: float, seconds: float) -> dict[str, object]:
    """A row of the table: p50, p99 and max of each victim, before the flood and beside it."""
    with tempfile.TemporaryDirectory() as directory:
        async with world(Path(directory)) as one:
            calm, flooded = Victims(one), Victims(one)
            await Victims(one).watch(one.flood("nobody", 1.0))  # what is only done once
            await calm.watch(one.flood("nobody", alone))
            before = resident_kb(one.gateway.pid)
            peaks = [before]

            async def look() -> None:
                while True:
                    peaks.append(resident_kb(one.gateway.pid))
                    await asyncio.sleep(0.05)

            looking = asyncio.create_task(look())
            answers = await flooded.watch(one.flood(name, seconds))
            looking.cancel()
            left = await one.settled(before)
    return {
        "flood": name,
        "mb_per_second": round(answers.pop("sent") / seconds / 1e6, 1),
        "answers": answers,
        **{each: [figures(calm.taken[each]), figures(flooded.taken[each])] for each in VICTIMS},
        "peak_mib": round((max(peaks) - before) / 1024),
        "left_mib": round(left / 1024),
    }


def figures(milliseconds: list[float]) -> list[float]:
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return [round(value, 1) for value in (cuts[49], cuts[98], max(milliseconds))]


def row(found: dict[str, object]) -> str:
    """Of the table in docs/reliability.md."""
    cells = [str(found["flood"]), str(found["mb_per_second"])]
    for name in VICTIMS:
        pair = found[name]
        assert isinstance(pair, list)
        cells.append(" → ".join("/".join(f"{value:g}" for value in each) for each in pair))
    return f"| {' | '.join(cells)} | {found['peak_mib']} | {found['left_mib']} |"


def wrong(found: dict[str, object]) -> list[str]:
    """What does not hold."""
    says = []
    for name in VICTIMS:
        pair = found[name]
        assert isinstance(pair, list)
        if pair[1][1] > MAX_MS:
            says.append(f"{found['flood']}: p99 of {name} {pair[1][1]} ms, over {MAX_MS:g}")
    if float(str(found["left_mib"])) > MAX_MIB:
        says.append(f"{found['flood']}: {found['left_mib']} MiB stay, over {MAX_MIB:g}")
    return says


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.resources.floods", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ATTACKS), help="of floods; all if none")
    parser.add_argument("--alone", type=float, default=4.0, help="seconds without the flood")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of each flood")
    parser.add_argument("--out", type=Path, help="where the figures go")
    options = parser.parse_args()
    machine, rows, says = this_machine(), [], []
    print(f"{machine.date} UTC, {machine.cores} cores of {machine.cpu}, commit {machine.commit},")
    print(
        f"load before {machine.load_before}. Milliseconds: p50/p99/max, alone → beside a flood.\n"
    )
    print(f"| flood | MB/s | {' | '.join(VICTIMS)} | MiB more | MiB left |")
    print("|---" * (len(VICTIMS) + 4) + "|")
    for name in options.names:
        found = uvloop.run(measure(name, options.alone, options.seconds))
        print(row(found), flush=True)
        rows.append(found)
        says += wrong(found)
    print("", *says, sep="\n")
    if options.out is not None and not says:
        result = {"machine": msgspec.to_builtins(machine), "floods": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return bool(says)


if __name__ == "__main__":
    sys.exit(main())
