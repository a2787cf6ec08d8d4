"""`inferway bench scale`: how many engines a gateway can serve, as a sum of parts: one process, and
a hub with workers.

A process for each number of engines (`scale_worker`) measures what grows with it. Carrying a
request is taken from the stored run of `bench dataplane`; knowing its tokens, scraping an engine
and reading its batches are measured here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import uvloop

from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_facts import discover
from inferway.fleet.load import parse_load
from inferway.openai_api.requests import parse_chat
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest, RenderChatRequest
from inferway.prompts.renderer import Renderer
from inferway_bench import conversations
from inferway_bench.dataplane.benchmark import LONG, PLAIN
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.index.engine import endless_events, step
from inferway_bench.machine import Machine, this_machine, times_as_slow
from inferway_bench.peers.fleets import simulated_fleet
from inferway_bench.peers.plan import SimulatedEngines
from inferway_bench.processes import BenchError, OnStep, result_of
from inferway_bench.rows import Column, Findings, Row, Run, Table, load_run
from inferway_bench.scale_worker import EVENT_BLOCKS, Filling, Grown, reading_us
from inferway_sim.prepare import prepare_smollm2


class ScalePlan(msgspec.Struct, frozen=True):
    """The sizes that are measured, and the load for which costs are summed."""

    engines: Annotated[
        tuple[int, ...],
        flag("Measure a gateway with this number of engines.", metavar="NUMBER", ge=1),
    ] = (16, 64, 250, 1_000, 3_000)
    cores: Annotated[
        int,
        flag("Add up what a hub and its workers carry with this number of cores.", ge=2),
    ] = 4
    requests: Annotated[
        float, flag("Add up the costs of this number of requests a second to each engine.", gt=0)
    ] = 1.0
    dataplane: Annotated[
        Path,
        flag(
            "Take the cost of carrying a request from this file, which inferway bench dataplane "
            "--save wrote.",
            metavar="FILE",
        ),
    ] = Path("docs/results/dataplane.json")
    block_size: int = 16
    blocks_held: int = 2_048  # by each engine
    new_blocks: int = 64  # of each request, stored; as many are dropped
    prompt_tokens: int = 8_000
    decisions: int = 50  # in a row
    repeats: int = 7
    scrapes: int = 300
    connections: int = 250  # that batches are read from
    seed: int = 1

    @property
    def filling(self) -> Filling:
        return msgspec.convert(self, Filling, from_attributes=True)


def measure(plan: ScalePlan, on_step: OnStep) -> Findings:
    """Measure the parts, one number of engines after the other. Raises BenchError."""
    on_step("rendering and tokenizing")
    request_us, made_of = carried(load_run(plan.dataplane), this_machine(), _prompt_us())
    on_step("scraping an engine")
    scrape_us, page_bytes = _scrapes(plan)
    on_step("reading batches from sockets")
    read_us = uvloop.run(reading_us(_batch(plan), plan.connections, plan.repeats))
    grown = {}
    for engines in plan.engines:
        on_step(f"{engines:,} engines")
        words = (str(engines), msgspec.json.encode(plan.filling).decode())
        found = result_of(sys.executable, "inferway_bench.scale_worker", *words)
        grown[engines] = msgspec.convert(found, Grown)
    once = Once(request_us, median(scrape_us), median(read_us))
    return findings(plan, grown, once, made_of, page_bytes)


class Once(NamedTuple):
    """The costs that do not depend on the number of engines, in microseconds of CPU time."""

    request_us: float  # carrying a request, and knowing its tokens
    scrape_us: float  # of an engine
    read_us: float  # a batch of events, from its socket


def _batch(plan: ScalePlan) -> bytes:
    """A step's: it stores some blocks, and drops others for them."""
    old, new = islice(endless_events(plan.block_size, plan.seed, 1, EVENT_BLOCKS), 2)
    return step(old.hashes, new, plan.block_size)


def findings(
    plan: ScalePlan,
    grown: dict[int, Grown],
    once: Once,
    made_of: str,
    page_bytes: int,
) -> Findings:
    """Return what the parts come to: those that grow with the engines, and the others. `made_of`:
    what carrying a request is."""
    costs = [
        Row("costs", {"engines": engines}, msgspec.structs.asdict(one))
        for engines, one in grown.items()
    ]
    shares = share_rows(plan, once, grown)
    divided = process_rows(plan, shares, grown)
    return Findings(
        rows=[*costs, *shares, *divided],
        about=[
            "The figures are sums of parts that were measured one by one; no fleet of this size "
            "was run. A process for each number of engines runs the production event path "
            "(decoding, order, digests, index) with the batches of all engines, and the production "
            "director with the default scheduling; the sockets that batches come by are measured "
            "apart. Not included: forwarding streamed answers, which `bench dataplane` measures, "
            "and what a hub does for each of its workers' requests.",
            "",
            f"- the load: each engine answers {plan.requests:g} request a second of "
            f"{plan.prompt_tokens:,} tokens, stores {plan.new_blocks} new blocks for it and drops "
            f"as many; each engine holds {plan.blocks_held:,} blocks of {plan.block_size} tokens, "
            f"and tells in one batch of {EVENT_BLOCKS} that it stores and as many that it drops",
            f"- carrying a request takes {once.request_us:,.0f} µs ({made_of}); scraping the "
            f"metrics of an engine takes {once.scrape_us:,.0f} µs of CPU time (a simulated engine "
            f"with {page_bytes:,} bytes of metrics); reading a batch from its socket takes "
            f"{once.read_us:,.1f} µs, where {plan.connections} sockets have one at once",
            f"- one process uses at most one core; it {_reaches(end(shares))}",
            f"- a hub and {plan.cores - 1} workers use at most one core each; the group "
            f"{_reaches(end(divided))}",
        ],
        facts={"cores": plan.cores},
    )


def _reaches(engines: float | None) -> str:
    if engines is None:
        return "does not reach this"
    return f"reaches this at about **{engines:,.0f} engines**"


def carried(dataplane: Run, here: Machine, prompt_us: float) -> tuple[float, str]:
    """Return the CPU µs of carrying a long chat, as it would be on this machine by the yardstick,
    and knowing its tokens, and what that is made of: the parts of a sum must be of one machine.
    Raises BenchError when the run does not have it."""
    row = dataplane.find("cpu", load=LONG, router=PLAIN)
    if row is None:
        raise BenchError(
            f"{dataplane.benchmark}: no {PLAIN}, {LONG}; fix: inferway bench dataplane --save"
        )
    times = times_as_slow(here, dataplane.machine) or 1.0
    made_of = f"{PLAIN}, {LONG}"
    if round(times, 2) != 1.0:
        made_of = f"{times:.2f} times, as the yardstick is now, {made_of}"
    made_of += f", in {dataplane.benchmark}, and {prompt_us:.0f} µs of rendering and tokenizing"
    return round(row.median("cpu_us") * times + prompt_us, 1), made_of


def _prompt_us() -> float:
    """The CPU µs of rendering and tokenizing a long chat of which the last turn is new."""
    model = str(prepare_smollm2())
    templates = conversations.chat_of_8k_tokens(model)
    with closing(Renderer(num_threads=1)) as renderer:
        key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(model))
        chats = [parse_chat(body.body(n)).messages for n in range(8) for body in templates]
        for number, messages in enumerate(chats):
            if number == len(templates):  # those before have met all turns but the last
                began = time.process_time()
            renderer.render_chat(RenderChatRequest(key, messages))
        return (time.process_time() - began) * 1e6 / (len(chats) - len(templates))


def share_rows(plan: ScalePlan, once: Once, grown: dict[int, Grown]) -> list[Row]:
    """Return a row for each number of engines: what of one core each part takes at the plan's load.
    An engine is scraped every 200 ms, or 2 ms for each engine."""
    rows = []
    for engines, one in grown.items():
        requests = plan.requests * engines
        blocks = requests * plan.new_blocks
        shares = {
            "requests": requests * once.request_us / 1e6,
            "decisions": requests * median(one.decision_us) / 1e6,
            "reading": blocks / EVENT_BLOCKS * once.read_us / 1e6,
            "events": blocks * one.event_us / 1e6,
            "scrapes": engines / max(0.2, engines * 0.002) * once.scrape_us / 1e6,
        }
        whole = sum(shares.values())
        figures = {**shares, "all": whole, "request_us": whole * 1e6 / requests}
        rows.append(Row("shares", {"engines": engines}, {**figures}))
    return rows


def process_rows(plan: ScalePlan, shares: Sequence[Row], grown: dict[int, Grown]) -> list[Row]:
    """Return a row for each number of engines: what of a core the hub takes, and each of its
    workers, of which there are so many that each process has a core, at the plan's load. `all` is 1
    where one of them has no more left."""
    return [
        Row("processes", {"engines": engines}, _processes(plan, row, one))
        for row, (engines, one) in zip(shares, grown.items(), strict=True)
    ]


def _processes(plan: ScalePlan, row: Row, one: Grown) -> dict[str, float]:
    """Return shares of a core: of the hub, and of each worker."""
    workers = plan.cores - 1
    blocks = plan.requests * float(row.keys["engines"]) * plan.new_blocks / 1e6
    told = blocks * (one.noted_us + workers * one.told_us)
    followed = blocks * one.followed_us
    hub = row.median("reading") + row.median("events") + row.median("scrapes") + told
    worker = (row.median("requests") + row.median("decisions")) / workers + followed
    return {
        "hub": hub,
        "told": told,
        "worker": worker,
        "followed": followed,
        "all": max(hub, worker),
    }


def end(shares: Sequence[Row]) -> float | None:
    """Return the number of engines at which one core is used up, between those measured or beyond
    the last by its line; None if that has none."""
    used = [row.median("all") for row in shares]
    engines = [float(row.keys["engines"]) for row in shares]
    if used[-1] >= 1.0:
        return float(np.interp(1.0, used, engines))
    if len(used) < 2 or used[-1] <= used[-2]:
        return None
    slope = (used[-1] - used[-2]) / (engines[-1] - engines[-2])
    return engines[-1] + (1.0 - used[-1]) / slope


def _scrapes(plan: ScalePlan) -> tuple[list[float], int]:
    """Return the CPU microseconds of a scrape, of each of some batches; the page's bytes."""
    one = SimulatedEngines(engines=1)
    with (
        TemporaryDirectory(prefix="inferway-scale-") as name,
        simulated_fleet(one, Path(name)) as fleet,
    ):
        return uvloop.run(_scrape(fleet.engines[0].url, plan))


async def _scrape(url: str, plan: ScalePlan) -> tuple[list[float], int]:
    """Scrape as the fleet does: an engine's load alone, over connections that are kept."""
    found, size = [], 0
    async with EngineClient() as client:
        facts, _ = await discover(client, url, [])
        for _ in range(plan.repeats):
            began = time.process_time()
            for _ in range(plan.scrapes // plan.repeats):
                page = await client.metrics(url, facts.load_path, [])
                parse_load(page)
            took = time.process_time() - began
            found.append(round(took * 1e6 / (plan.scrapes // plan.repeats), 1))
            size = len(page)
    return found, size


_SHARE = "{:.1%}"
SCALE = Benchmark(
    "scale",
    "Measure one gateway process by the number of its engines: CPU time of a request, memory, and "
    "the number of engines that one core can serve.",
    ScalePlan,
    measure,
    [
        Table(
            "costs",
            "Costs by number of engines",
            ["engines"],
            [
                Column("decision_us", "decision, µs", "{:,.0f}"),
                Column("event_us", "a block, µs", "{:.2f}"),
                Column("resident_mib", "memory, MiB", "{:,.0f}"),
                Column("bytes_per_block", "bytes for each held block", "{:,.0f}"),
                Column("copied_bytes_per_block", "in a worker, bytes", "{:,.0f}"),
                Column("noted_us", "noting it for workers, µs", "{:.2f}"),
                Column("told_us", "telling a worker, µs", "{:.2f}"),
                Column("followed_us", "a worker's part, µs", "{:.2f}"),
            ],
        ),
        Table(
            "shares",
            "Shares of one core, at the load above",
            ["engines"],
            [
                *(Column(name, form=_SHARE) for name in ("requests", "decisions")),
                Column("reading", "reading KV events", _SHARE),
                Column("events", "applying them", _SHARE),
                *(Column(name, form=_SHARE) for name in ("scrapes", "all")),
                Column("request_us", "µs for each request", "{:,.0f}"),
            ],
        ),
        Table(
            "processes",
            "The same with a hub and workers: what each of them takes of a core, and of that what "
            "the hub tells the workers, and what a worker takes over",
            ["engines"],
            [*(Column(name, form=_SHARE) for name in ("hub", "told", "worker", "followed"))],
        ),
    ],
    question="how many engines one gateway process can serve",
    takes="10 minutes",
)  # fmt: skip
scale = SCALE.command()
