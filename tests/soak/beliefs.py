"""`python -m tests.soak.beliefs`: whether the gateway ever believes that an engine holds more of a
prompt than the engine reuses. Four simulated engines with small caches, one of them of a hybrid
model, whose event and replay sockets are behind wires that are cut, held and refused while engines
are asked, stopped, told to drop their caches, and killed: they come back with blocks of another
size, maybe while the wire of their events is held, so that the old link outlives them. After each
such round all is calm, and prompts are asked of each engine. Status 1 if one belief was wrong.

An answer is held against the belief only if the engine computed nothing else between the two (the
gateway's own probes, too, store blocks and evict others), and the gateway had applied the last
batch that the engine has published, which the engine's replay socket tells without a wire.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
import zmq
import zmq.asyncio
from tests.fork_server import INFERWAY
from tests.soak.engines import MODEL, EngineProcess, Wire

from inferway_bench.processes import free_port
from inferway_bench.routers import read_metrics, total
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.publisher import END_OF_REPLAY

TROUBLE_SECONDS = 9.0
CALM_SECONDS = 8.0  # more than the gateway's patience with replays, links and probes
IN_STEP_SECONDS = 10.0
ASKED = 6  # clients
PROMPTS = 50  # for each engine and round
_TIMEOUT = aiohttp.ClientTimeout(total=20)
_FAILS = (aiohttp.ClientError, TimeoutError, OSError)

# block size, blocks, format of events, batches kept for replay, groups of KV cache
_SIZES = (16, 32)
_KINDS = (
    (16, 180, "map", 10_000, "full"),
    (16, 90, "array", 20, "full"),
    (32, 68, "map", 100, "full"),
    (16, 240, "map", 100, "full,window:128,mamba:align"),
)

Prompt = tuple[int, ...]


@dataclass
class Engine:
    """A process, and the wires to its event sockets."""

    name: str
    block_size: int
    process: EngineProcess
    events: Wire
    replays: Wire
    context: zmq.asyncio.Context
    last: tuple[int, bytes] | None = None  # batch

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.port}"

    @property
    def flag(self) -> str:
        sockets = f"events=tcp://127.0.0.1:{self.events.port}"
        return f"{self.url},name={self.name},{sockets},replay=tcp://127.0.0.1:{self.replays.port}"

    def start(self, block_size: int | None = None) -> None:
        self.block_size = block_size or self.block_size
        self.process.start("--block-size", str(self.block_size))

    async def last_seq(self) -> int | None:
        """Number of the last batch that it has published; None if there is none."""
        first, last = await self._published(0 if self.last is None else self.last[0])
        if first != self.last:  # it was started again, or keeps that one no more
            _, last = await self._published(0)
        self.last = last
        return last and last[0]

    async def _published(
        self, from_seq: int
    ) -> tuple[tuple[int, bytes] | None, tuple[int, bytes] | None]:
        """The first and the last batch from this one on that it keeps."""
        first = last = None
        with self.context.socket(zmq.DEALER) as asker:
            asker.setsockopt(zmq.LINGER, 0)
            asker.connect(f"tcp://127.0.0.1:{self.process.replay_port}")
            await asker.send_multipart([b"", from_seq.to_bytes(8, "big")])
            while (frames := await asker.recv_multipart())[-2] != END_OF_REPLAY:
                last = int.from_bytes(frames[-2], "big"), frames[-1]
                first = first or last
        return first, last


@dataclass
class Tally:
    checks: int = 0
    disturbed: int = 0  # the engine computed something else between belief and answer
    out_of_step: int = 0  # the gateway did not come to the engine's last batch in time
    reused: int = 0  # tokens
    believed: int = 0  # of these
    wrong: list[str] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)


class Storm:
    """One gateway and its engines."""

    def __init__(self, url: str, engines: Sequence[Engine], rng: random.Random) -> None:
        self._url = url
        self._engines = engines
        self._rng = rng
        self._known: set[Prompt] = set()
        self._trunks = [self._words(rng.choice((64, 160, 320))) for _ in range(6)]
        self.tally = Tally()

    def _words(self, number: int) -> list[int]:
        return [self._rng.randrange(100, 40_000) for _ in range(number)]

    async def round(self, http: aiohttp.ClientSession) -> None:
        """Trouble, calm, checks."""
        stop = asyncio.Event()
        tasks = [asyncio.create_task(self._asks(http, stop)) for _ in range(ASKED)]
        tasks.append(asyncio.create_task(self._troubles(http, stop)))
        await asyncio.sleep(TROUBLE_SECONDS)
        stop.set()
        await asyncio.gather(*tasks)
        await self._calm(http)
        for prompt in self._rng.sample(sorted(self._known), min(PROMPTS, len(self._known))):
            for engine in self._engines:
                await self._check(http, engine, prompt)

    # trouble

    async def _asks(self, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        while not stop.is_set():
            prompt, through = self._prompt(), self._rng.random() < 0.6
            self._known.add(prompt)
            url = self._url if through else self._rng.choice(self._engines).url
            with suppress(*_FAILS):
                await _complete(http, url, prompt, self._rng.randrange(1, 24))
                continue
            await asyncio.sleep(0.05)

    def _prompt(self) -> Prompt:
        """Of a tree: a trunk's beginning and some of a few branches."""
        trunk = self._rng.choice(self._trunks)
        words = trunk[: self._rng.randrange(32, len(trunk) + 1)]
        for _ in range(self._rng.randrange(3)):
            words = [*words, *[self._rng.randrange(100, 103)] * self._rng.randrange(8, 64)]
        return tuple(words[:900])

    async def _troubles(self, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        while not stop.is_set():
            engine = self._rng.choice(self._engines)
            what = self._rng.choices(
                (
                    *("cut", "cut replays", "hold", "hold replays", "refuse", "reset", "kill"),
                    *("kill while held", "freeze"),
                ),
                (25, 15, 15, 10, 10, 10, 5, 5, 7),
            )[0]
            self.tally.troubles[what] += 1
            await self._trouble(http, engine, what)
            await asyncio.sleep(self._rng.uniform(0.1, 1.2))

    async def _trouble(self, http: aiohttp.ClientSession, engine: Engine, what: str) -> None:
        seconds = self._rng.uniform(0.2, 2.5)
        wire = engine.replays if what.endswith("replays") else engine.events
        loop = asyncio.get_running_loop()
        match what.split()[0]:
            case "cut":
                wire.reset()
            case "hold":
                wire.hold()
                loop.call_later(seconds, wire.let_go)
            case "refuse":
                wire.refuse()
                wire.reset()
                loop.call_later(seconds, lambda: asyncio.ensure_future(wire.open()))
            case "reset":
                with suppress(*_FAILS):
                    await http.post(f"{engine.url}/reset_prefix_cache", timeout=_TIMEOUT)
            case "kill":
                await self._restart(engine, seconds, is_held=what.endswith("held"))
            case "freeze":
                engine.process.freeze()
                await asyncio.sleep(seconds)
                engine.process.thaw()

    async def _restart(self, engine: Engine, seconds: float, *, is_held: bool) -> None:
        if is_held:
            engine.events.hold()
        await asyncio.to_thread(engine.process.kill, signal.SIGKILL)
        await asyncio.sleep(seconds / 2)
        engine.start(self._rng.choice(_SIZES))
        if is_held:
            await engine.process.until_it_listens()
            await asyncio.sleep(seconds)  # it computes, and nobody hears of it
            engine.events.let_go()

    # calm

    async def _calm(self, http: aiohttp.ClientSession) -> None:
        await asyncio.sleep(3)  # what was called for later has come
        for engine in self._engines:
            engine.start()
            await engine.process.until_it_listens()
        await asyncio.sleep(CALM_SECONDS)
        for engine in self._engines:  # the last batch before a silence may have been lost
            await _complete(http, engine.url, self._words(64), 1)
        async with asyncio.timeout(60):
            while {"repairing", "stale"} & {
                state for state, _ in (await self._told(http)).values()
            }:
                await asyncio.sleep(0.5)

    async def _told(self, http: aiohttp.ClientSession) -> dict[str, tuple[str, int | None]]:
        """Of each engine the gateway's state and its last batch."""
        page = await _read(http, f"{self._url}/admin/engines")
        found = {}
        for engine in page["engines"]:
            for rank in engine["endpoints"]:
                found[engine["name"]] = rank["state"], rank["stream"]["seq"]
        return found

    # checks

    async def _check(self, http: aiohttp.ClientSession, engine: Engine, prompt: Prompt) -> None:
        tally, size = self.tally, engine.block_size
        before = await _computed(http, engine)
        in_step = await self._is_in_step(http, engine)
        state, seq = (await self._told(http))[engine.name]
        claims = await _read(
            http, f"{self._url}/query", {"model": MODEL, "token_ids": list(prompt)}
        )
        claim = claims["instances"].get(engine.name, {"longest_matched": 0})["longest_matched"]
        claim = min(claim, (len(prompt) - 1) // size * size)
        answer = await _complete(http, engine.url, prompt, 1)
        after = await _computed(http, engine)
        tally.checks += 1
        if before is None or after != before + len(prompt):
            tally.disturbed += 1
            return
        if not in_step:
            tally.out_of_step += 1
            return
        details = answer["usage"].get("prompt_tokens_details") or {}
        reused = details.get("cached_tokens") or 0
        tally.reused += reused
        tally.believed += min(claim, reused)
        if claim > reused:
            tally.wrong.append(
                f"{engine.name} ({state}, batch {seq}): {claim} tokens of a prompt of "
                f"{len(prompt)} believed, {reused} reused"
            )

    async def _is_in_step(self, http: aiohttp.ClientSession, engine: Engine) -> bool:
        """The gateway has applied the last batch that the engine has published."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IN_STEP_SECONDS):
                last_seq = await engine.last_seq()
                while (await self._told(http))[engine.name][1] != last_seq:
                    await asyncio.sleep(0.02)
                    last_seq = await engine.last_seq()
                return True
        return False


async def _computed(http: aiohttp.ClientSession, engine: Engine) -> float | None:
    """Prompt tokens of all requests so far; None while one is inside."""
    async with http.get(f"{engine.url}/metrics", timeout=_TIMEOUT) as answer:
        counted = read_metrics(await answer.text())
    inside = [total(counted, f"vllm:num_requests_{state}") for state in ("running", "waiting")]
    return None if any(inside) else total(counted, "vllm:prompt_tokens_total")


async def _complete(
    http: aiohttp.ClientSession, url: str, prompt: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": list(prompt), "max_tokens": max_tokens}
    return await _read(http, f"{url}/v1/completions", body)


async def _read(http: aiohttp.ClientSession, url: str, body: object = None) -> dict[str, Any]:
    method = "GET" if body is None else "POST"
    async with http.request(
        method, url, json=body, timeout=_TIMEOUT, raise_for_status=True
    ) as answer:
        read: dict[str, Any] = await answer.json()
        return read


@asynccontextmanager
async def storm(directory: Path, seed: int) -> AsyncIterator[Storm]:
    """All is up when it is entered. The log files stay in `directory`."""
    rng = random.Random(f"beliefs {seed}")
    root = await asyncio.to_thread(prepare_smollm2)
    async with AsyncExitStack() as stack:
        context = stack.enter_context(zmq.asyncio.Context())
        engines = []
        for number, (size, blocks, form, kept, groups) in enumerate(_KINDS):
            flags = ["--kv-cache-size", str(blocks), "--event-format", form]
            flags += ["--kv-events-replay-queue-size", str(kept)]
            flags += [] if groups == "full" else ["--kv-groups", groups]
            flags += [
                "--max-model-len",
                "1024",
                "--prefill-overhead",
                "0ms",
                "--max-num-seqs",
                "64",
                "--mode",
                "random",
            ]
            process = EngineProcess(root, directory / f"engine-{number}.log", flags)
            stack.callback(process.kill)
            events, replays = Wire(process.events_port), Wire(process.replay_port)
            for wire in (events, replays):
                stack.push_async_callback(wire.close)
                await wire.open()
            engines.append(Engine(f"e{number}", size, process, events, replays, context))
            engines[-1].start()
        for engine in engines:
            await engine.process.until_it_listens()
            if not engine.process.runs:
                raise RuntimeError(f"an engine has ended; its log is in {directory}")
        url = await _gateway(stack, directory, engines)
        yield Storm(url, engines, rng)


async def _gateway(stack: AsyncExitStack, directory: Path, engines: Sequence[Engine]) -> str:
    port = free_port()
    command = ["serve", "--port", str(port), "--access-log", "none"]
    for engine in engines:
        command += ["--engine", engine.flag]
    output = stack.enter_context((directory / "gateway.log").open("wb"))
    process = await asyncio.create_subprocess_exec(
        str(INFERWAY), *command, stdout=output, stderr=output
    )

    async def end() -> None:
        process.kill()
        await process.wait()

    stack.push_async_callback(end)
    async with asyncio.timeout(90), aiohttp.ClientSession() as http:
        while True:
            with suppress(*_FAILS):
                await _read(http, f"http://127.0.0.1:{port}/ready")
                return f"http://127.0.0.1:{port}"
            await asyncio.sleep(0.2)


async def run(seed: int, rounds: int, directory: Path) -> Tally:
    async with storm(directory, seed) as one, aiohttp.ClientSession() as http:
        shown = 0
        for number in range(1, rounds + 1):
            await one.round(http)
            tally = one.tally
            for line in tally.wrong[shown:]:
                print(f"WRONG: {line}", flush=True)
            shown = len(tally.wrong)
            print(
                f"seed {seed}, round {number} of {rounds}: {tally.checks} checks, "
                f"{len(tally.wrong)} wrong, {tally.disturbed} disturbed, "
                f"{tally.out_of_step} out of step; {tally.believed} of {tally.reused} "
                f"reused tokens believed; {dict(tally.troubles)}",
                flush=True,
            )
        return one.tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.beliefs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="of about half a minute")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is drawn")
    parser.add_argument("--keep", type=Path, help="a directory for the logs")
    options = parser.parse_args()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="inferway-beliefs-"))
    directory.mkdir(exist_ok=True)
    print(f"seed {options.seed}; logs in {directory}", flush=True)
    tally = uvloop.run(run(options.seed, options.rounds, directory))
    judged = tally.checks - tally.disturbed - tally.out_of_step
    if judged < tally.checks / 2:
        print(f"only {judged} of {tally.checks} checks could be judged")
        return 1
    return bool(tally.wrong)


if __name__ == "__main__":
    sys.exit(main())
