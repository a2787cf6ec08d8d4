"""`inferway bench scale`: the parts, one number of engines after the other."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import aiohttp
import msgspec
import uvloop

from inferway.fleet.discovery import discover
from inferway.fleet.load import parse_load
from inferway.fleet.pages import Pages
from inferway_bench.machine import Machine, command_line, this_machine, times_as_slow
from inferway_bench.peers.fleets import simulated_fleet
from inferway_bench.peers.plan import SimulatedEngines
from inferway_bench.processes import BenchError
from inferway_bench.results import load_run
from inferway_bench.route_results import RouteRun
from inferway_bench.scale.plan import Grown, Plan
from inferway_bench.scale.results import ScaleRun

_WORKER = "inferway_bench.scale.worker"
_ROUTER, _CASE, _STEPS = "inferway serve --no-scoring", "8k-token chat", ("render", "tokenize")


def run_scale(plan: Plan, route: Path, on_step: Callable[[str], None]) -> ScaleRun:
    """`route`: the stored run of `bench route`, which says what carrying a request costs. Raises
    BenchError."""
    machine = this_machine()
    request_us, source = carried(load_run(route, RouteRun), machine)
    on_step("scraping an engine")
    scrapes, size = _scrapes(plan)
    grown = []
    for engines in plan.engines:
        on_step(f"{engines:,} engines")
        grown.append(_ask(plan, engines))
    return ScaleRun(
        machine=machine,
        command=shlex.join(command_line()),
        plan=plan,
        scrape_us=scrapes,
        metrics_bytes=size,
        request_us=request_us,
        request_from=f"{source}, in {route.name}",
        grown=grown,
    )


def carried(route: RouteRun, here: Machine) -> tuple[float, str]:
    """CPU us of carrying a long chat and knowing its tokens, as it would be on this machine by the
    yardstick; and what that is made of. The parts of a sum must be of one machine."""
    found = [m for m in route.measurements if (m.router, m.case) == (_ROUTER, _CASE)]
    if not found:
        raise BenchError(f"route: no {_ROUTER}, {_CASE}; the cure: inferway bench route --save")
    steps = sum(part.median_us for part in route.parts if part.name in _STEPS)
    times = times_as_slow(here, route.machine) or 1.0
    made_of = f"{_ROUTER}, {_CASE}, and rendering and tokenizing"
    if round(times, 2) != 1.0:
        made_of = f"{times:.2f} times, as the yardstick is now: {made_of}"
    return round((found[0].median_cpu_us + steps) * times, 1), made_of


def _ask(plan: Plan, engines: int) -> Grown:
    words = [sys.executable, "-m", _WORKER, str(engines)]
    words.append(msgspec.json.encode(plan).decode())
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        raise BenchError(f"{engines} engines: {done.stderr.decode(errors='replace')[-800:]}")
    return msgspec.json.decode(done.stdout, type=Grown)


def _scrapes(plan: Plan) -> tuple[list[float], int]:
    """CPU microseconds of each of some batches, a scrape; the page's bytes."""
    one = SimulatedEngines(engines=1)
    with (
        TemporaryDirectory(prefix="inferway-scale-") as name,
        simulated_fleet(one, Path(name)) as fleet,
    ):
        return uvloop.run(_scrape(fleet.engines[0].url, plan))


async def _scrape(url: str, plan: Plan) -> tuple[list[float], int]:
    """As the fleet does it: an engine's load alone, over connections that are kept."""
    async with aiohttp.ClientSession() as session:
        facts, _ = await discover(session, url, {})
    pages = Pages(None, seconds=5.0)
    pages.open()
    found, size = [], 0
    try:
        for _ in range(plan.repeats):
            began = time.process_time()
            for _ in range(plan.scrapes // plan.repeats):
                page = await pages.get(url, facts.load_path, [])
                parse_load(page)
            took = time.process_time() - began
            found.append(round(took * 1e6 / (plan.scrapes // plan.repeats), 1))
            size = len(page)
    finally:
        await pages.close()
    assert median(found) > 0
    return found, size
