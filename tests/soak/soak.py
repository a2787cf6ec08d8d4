"""A run: clients and troubles side by side, then rest, then what is left; at the end the gateway
is asked to stop while streams run. Beside all that, a few clients ask an engine that nothing
happens to: what they wait no gateway can help."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tests.soak.clients import Client, Crowd, crowd
from tests.soak.history import alarms_in, by_kind
from tests.soak.judge import Tally
from tests.soak.troubles import Troubles
from tests.soak.waits import Yardstick, longest_beyond
from tests.soak.witness import witness
from tests.soak.world import Taken, World, more_than, with_probes, world

from inferway.config import TimeoutSettings
from inferway.fleet.liveness import SURE_SECONDS
from inferway.http.silent_engines import LOOK_SECONDS
from inferway_bench.routers import total
from inferway_sim.prepare import prepare_smollm2

OnProgress = Callable[[str], None]
_LEAST_WHOLE = 0.3  # of those that did not leave: a soak in which all fails proves nothing
_DRAINED = 12  # streams under way when the gateway is asked to stop
_MEMORY_MIB = 64.0  # that the second half may add to the first
_PEACEFUL = 3  # clients of the engine that nothing happens to
# That a client may wait longer than its engine took: until the silence of an engine that was slow
# of late is found, and then at a second silent engine, as docs/reliability.md has it; and a second
# for the machine.
BEYOND_SECONDS = SURE_SECONDS + TimeoutSettings().silent_engine + LOOK_SECONDS + 1.0


@dataclass(frozen=True)
class Plan:
    seconds: float
    seed: int
    clients: int = 40
    engines: int = 3
    blackholes: bool = True


class Result(msgspec.Struct, frozen=True):
    """Of a run; what is [start, end] was taken when nobody asked."""

    seconds: float
    seed: int
    clients: int
    engines: int
    requests: int
    whole: int
    retried: int  # whole, of another engine than the first that was tried
    wrong: int
    stuck: int
    by_kind: dict[str, int]
    ends: dict[str, int]
    slowest_ms: float  # of all but the slow readers
    longest_wait_s: float  # for an answer, or for a stream's next event
    beyond_s: float  # the longest part of a wait that no engine has taken
    peaceful: dict[str, float]  # seconds that an engine takes that nothing happens to
    troubles: dict[str, int]
    alarms: dict[str, int]  # engines that the gateway has declared out, by what it says
    late_by_themselves: int  # of them, those that others saw standing still without trouble
    false_alarms: int  # of them, those of engines that were well
    sent: int  # to engines
    crashed: int  # handlers of ours
    slots_left: dict[str, float]
    left: dict[str, list[int]]
    descriptors: list[int]
    tasks: list[int]
    memory_mib: list[float]  # start, half, end
    drained: dict[str, int]  # how the streams under way at SIGTERM ended
    exit_status: int
    shown: list[str]

    def failures(self) -> list[str]:
        found = list(self.shown)
        stayed = self.requests - self.ends.get("left", 0)
        if self.wrong or self.stuck:
            found.append(f"{self.wrong} wrong, {self.stuck} stuck")
        if self.whole < _LEAST_WHOLE * stayed:
            found.append(f"only {self.whole} of {stayed} were whole")
        if self.beyond_s > BEYOND_SECONDS:
            found.append(f"a client waited {self.beyond_s:.1f} s longer than its engine took")
        if self.false_alarms:
            found.append(f"{self.false_alarms} engines were declared out that were well")
        if self.crashed:
            found.append(f"{self.crashed} handlers crashed")
        if any(self.slots_left.values()):
            found.append(f"slots are left: {self.slots_left}")
        if self.left:
            found.append(f"left of requests that are over: {self.left}")
        _, half, end = self.memory_mib
        if end > half + _MEMORY_MIB:
            found.append(f"memory grows: {self.memory_mib} MiB")
        if set(self.drained) - {"whole"} or self.exit_status:
            found.append(f"stopped with {self.exit_status}, its streams: {self.drained}")
        return found


async def run(plan: Plan, directory: Path, on_progress: OnProgress) -> Result:
    tally = Tally()
    root = await asyncio.to_thread(prepare_smollm2)
    starting = world(directory, root, plan.engines, plan.seed, with_hosts=plan.blackholes)
    async with starting as one:
        on_progress("warming up")
        before = await _warmed(one, plan)
        log = directory / "troubles.log"
        troubles = Troubles(one.engines, one.wires, one.num_up, plan.seed, log)
        began = time.monotonic()
        async with (
            crowd(one.url, tally) as people,
            _yardstick(one, plan) as yardstick,
            witness(troubles.history.engines) as seen,
        ):
            half = await _trouble(one, people, troubles, plan, on_progress)
        seconds = time.monotonic() - began
        on_progress("all is well again; resting")
        after = await one.rested(before)
        slots = await one.slots()
        counted = await one.metrics()
        ended = sum(engine.ended_by_itself for engine in one.engines)
        drained, status = await _stopped(one, plan)
        alarms = alarms_in(one.log.read_text())
    untroubled = [alarm for alarm in alarms if troubles.history.is_blameless(alarm)]
    false = [alarm for alarm in untroubled if not seen.confirms(alarm)]
    seconds_beyond, wait = longest_beyond(tally.waits, yardstick, troubles.history)
    if seconds_beyond > BEYOND_SECONDS:
        tally.show(str(wait))
    for alarm in false:
        tally.show(str(alarm))
    return Result(
        seconds=round(seconds, 1),
        seed=plan.seed,
        clients=plan.clients,
        engines=plan.engines,
        requests=sum(tally.asked.values()),
        whole=tally.ends["whole"],
        retried=tally.retried,
        wrong=tally.wrong,
        stuck=tally.stuck,
        by_kind=dict(tally.asked),
        ends=dict(sorted(tally.ends.items())),
        slowest_ms=round(tally.slowest_ms),
        longest_wait_s=round(tally.longest, 2),
        beyond_s=round(seconds_beyond, 2),
        peaceful={
            "longest wait in a stream": round(yardstick.longest, 3),
            "each word of a whole answer": round(yardstick.seconds_a_word, 4),
        },
        alarms=by_kind(alarms),
        late_by_themselves=len(untroubled) - len(false),
        false_alarms=len(false),
        troubles={**troubles.done, "engines that ended by themselves": ended},
        sent=int(total(counted, "inferway_upstream_sent_total")),
        crashed=int(total(counted, "inferway_http_crashed_total")),
        slots_left=slots,
        left=more_than(before, after),
        descriptors=[before.descriptors, after.descriptors],
        tasks=[before.tasks, after.tasks],
        memory_mib=[before.memory_mib, half, after.memory_mib],
        drained=drained,
        exit_status=status,
        shown=tally.shown,
    )


def _clients(
    people: Crowd, number: int, seed: str, yardstick: Yardstick | None = None
) -> list[asyncio.Task[None]]:
    """Of ten, five chat, two complete, two leave and one reads slowly."""
    tasks = []
    for index in range(number):
        client = Client(people, f"{seed} {index}", yardstick)
        kind = (
            *(client.chatting,) * 5,
            *(client.completing,) * 2,
            *(client.leaving,) * 2,
            client.reading_slowly,
        )[index % 10]
        tasks.append(asyncio.create_task(kind()))
    return tasks


@asynccontextmanager
async def _yardstick(one: World, plan: Plan) -> AsyncIterator[Yardstick]:
    """Measures from here to the block's end."""
    found, tally = Yardstick(), Tally()
    async with crowd(f"http://{one.peaceful.address}", tally) as people:
        tasks = _clients(people, _PEACEFUL, f"peaceful {plan.seed}", found)
        try:
            yield found
        finally:
            people.stop.set()
            await asyncio.gather(*tasks)


async def _warmed(one: World, plan: Plan) -> Taken:
    """What is taken once for all has been taken; nothing goes on."""
    async with crowd(one.url, Tally()) as people:
        tasks = _clients(people, min(plan.clients, 20), f"warm {plan.seed}")
        # Requests whose client leaves before their model is known are counted under the same name.
        await Client(people, f"unknown {plan.seed}").asking_for_nothing()
        await asyncio.sleep(3)
        people.stop.set()
        await asyncio.gather(*tasks)
    await asyncio.sleep(6)  # the pool's idle connections to engines have gone
    return with_probes(await one.rested(), len(one.engines))


async def _trouble(
    one: World, people: Crowd, troubles: Troubles, plan: Plan, on_progress: OnProgress
) -> float:
    """Returns the memory at half time."""
    tasks = _clients(people, plan.clients, str(plan.seed))
    trouble = asyncio.create_task(troubles.make(people.stop))
    began, half = time.monotonic(), 0.0
    while (passed := time.monotonic() - began) < plan.seconds:
        await asyncio.sleep(min(1.0, plan.seconds / 10))
        if not one.runs:
            people.tally.show(f"the gateway ended with status {one.process.returncode}")
            break
        if passed >= plan.seconds / 2 and not half:
            half = one.memory_mib()
        on_progress(_line(passed, plan, people, troubles, one))
    people.stop.set()
    await trouble
    for engine in one.engines:  # one may have ended by itself
        engine.start()
    await asyncio.gather(*tasks)
    return half


def _line(passed: float, plan: Plan, people: Crowd, troubles: Troubles, one: World) -> str:
    tally = people.tally
    return (
        f"{passed:5.0f} of {plan.seconds:.0f} s · {sum(tally.asked.values())} answers, "
        f"{tally.ends['whole']} whole, {tally.wrong} wrong, {tally.stuck} stuck · "
        f"{people.open} under way · {sum(troubles.done.values())} troubles · "
        f"{one.memory_mib():.0f} MiB, {one.descriptors()} fds"
    )


async def _stopped(one: World, plan: Plan) -> tuple[dict[str, int], int]:
    """How streams end that run when the gateway gets SIGTERM, and its exit status."""
    tally = Tally()
    async with crowd(one.url, tally) as people:
        clients = [Client(people, f"drain {plan.seed} {index}") for index in range(_DRAINED)]
        streams = [asyncio.create_task(client.streaming_once()) for client in clients]
        while people.begun < _DRAINED and not all(stream.done() for stream in streams):
            await asyncio.sleep(0.01)
        one.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*streams)
    async with asyncio.timeout(60):
        while one.runs:
            await asyncio.sleep(0.05)
    return dict(tally.ends), one.process.wait()
