"""`inferway bench director`: what a routing decision costs while chats grow turn by turn."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import uvloop

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench import chats
from inferway_bench.chats import Message, Turns, default_data_dir
from inferway_bench.director.many_endpoints import MOST_US, Cost, ManyEndpoints, measure
from inferway_bench.director.plan import DirectorPlan
from inferway_bench.director.world import Point, World
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Row, Run, Value, goal
from inferway_bench.spread import Interval, median_interval, quartiles

STEPS = ("parse", "render", "encode", "match", "schedule", "rest", "whole")
_BORDERS = (0, 1, 1_000, 2_000, 4_000, 8_000, 16_000, 1_000_000)
_DRAWS = 2000
_MOST_NS_A_TOKEN = 25.0  # of history, the whole
_MOST_TIMES = 1.1  # as long, beside ten times as much that was seen before


def measure_director(plan: DirectorPlan, on_step: OnStep) -> Findings:
    """Measure with the chats of the plan. Raises BenchError, with the cure, without them."""
    data = plan.data or default_data_dir()
    conversations = chats.load_conversations(data / "chat")
    root = prepare_smollm2()
    turns = Turns(conversations, plan.seed)
    on_step("growing chats")
    grown = uvloop.run(grown_chats(root, plan, turns))
    probes = [_chat(turns, plan.probe_tokens, plan) for _ in range(plan.probes)]
    others = [_chat(turns, plan.other_tokens, plan) for _ in range(plan.others)]
    on_step(f"beside {plan.few_others} and {plan.others} chats seen before")
    few, many = uvloop.run(_probed(root, plan, probes, others))
    on_step(f"among {plan.many_endpoints} endpoints")
    costs = measure(plan.many_endpoints, plan.repeats, plan.seed)
    text = (
        f"{len(conversations):,} real conversations of {data.name}/chat, in an order drawn once, "
        f"joined; turns of {plan.turn_chars:,} characters at most"
    )
    return findings(plan, text, grown, few, many, costs)


def findings(
    plan: DirectorPlan,
    text: str,
    grown: Sequence[Point],
    few: Sequence[Point],
    many: Sequence[Point],
    costs: ManyEndpoints,
) -> Findings:
    """Return what the decisions say. `few` and `many` are the same turns, decided after few and
    after many other chats; `text` says where the chats are from."""
    a_message = sum(p.new for p in grown) / sum(2 if p.history else 1 for p in grown)
    return Findings(
        rows=[
            *_by_length(grown),
            *(_growth(step, grown, few, many) for step in STEPS),
            *(_choice("three scorers", cost) for cost in costs.triples),
            *(_choice("one scorer", cost) for cost in costs.scorers),
        ],
        about=[
            f"{len(grown):,} decisions, {a_message:.0f} tokens a message, {plan.engines} engines, "
            f"blocks of {plan.block_size}, SmolLM2's tokenizer and template; {text}."
        ],
        facts={"few_others": plan.few_others},
        notes={"growth": [_wall_note(grown)]},
    )


def _by_length(grown: Sequence[Point]) -> Iterator[Row]:
    for low, high in pairwise(_BORDERS):
        some = [p for p in grown if low <= p.history < high]
        if some:
            prompts = [float(p.history + p.new) for p in some]
            steps = {step: [getattr(p, step) for p in some] for step in STEPS}
            keys = {"tokens of history": _range(low, high)}
            yield Row("lengths", keys, {"turns": len(some), "prompt": prompts, **steps})


def _range(low: int, high: int) -> str:
    if high == 1:
        return "none"
    return f"{low:,} and more" if high == _BORDERS[-1] else f"{low:,} to {high - 1:,}"


def _growth(step: str, grown: Sequence[Point], few: Sequence[Point], many: Sequence[Point]) -> Row:
    before, after = ([getattr(p, step) for p in some] for some in (few, many))
    ratios = [b / a for a, b in zip(before, after, strict=True)]  # each turn with itself
    found: dict[str, Value] = {
        "growth": slope([p for p in grown if p.history], step),
        "few": before,
        "many": after,
        "ratio": median_interval(ratios),
    }
    return Row("growth", {"step": step}, found)


def _choice(kind: str, cost: Cost) -> Row:
    choice = Interval(cost.choose, *cost.quartiles) if cost.quartiles else cost.choose
    values: dict[str, Value] = {"choice": choice, "producers": cost.produce or None}
    return Row("choices", {"kind": kind, "scorers": cost.name}, values)


def slope(points: Sequence[Point], step: str) -> Interval:
    """Nanoseconds for each token of history, by least squares with the new tokens beside it; the
    interval is a bootstrap over the points."""
    rows = np.array([[1.0, p.history, p.new] for p in points])
    scale = np.abs(rows).max(axis=0)  # for the sums' sake: columns of one size
    rows /= scale
    times = 1e3 * np.array([getattr(p, step) for p in points])
    num = len(points)
    drawn = np.random.default_rng(0).integers(num, size=(_DRAWS, num))
    weights = np.array([np.ones(num), *(np.bincount(some, minlength=num) for some in drawn)])
    squares = weights @ (rows[:, :, None] * rows[:, None, :]).reshape(num, -1)
    products = weights @ (rows * times[:, None])
    inverse = np.linalg.pinv(squares.reshape(-1, 3, 3), rcond=1e-10, hermitian=True)
    fits = inverse @ products[:, :, None]
    value, *slopes = fits[:, 1, 0] / scale[1]
    low, high = np.percentile(slopes, (2.5, 97.5))
    return Interval(float(value), float(low), float(high))


async def grown_chats(root: Path, plan: DirectorPlan, turns: Turns) -> list[Point]:
    """Return the decisions for chats from their first turn to the longest, all in the memory of one
    gateway."""
    world, points = _ready(root, plan), []
    try:
        for chat in range(plan.chats):
            history = 0
            for messages in _growing(turns, plan):
                point = await world.decide(messages, chat, history)
                history = point.history + point.new
                points.append(point)
                if history >= plan.longest:
                    break
    finally:
        world.close()
        gc.unfreeze()
    return points


async def _probed(
    root: Path, plan: DirectorPlan, probes: Sequence[list[Message]], others: Sequence[list[Message]]
) -> tuple[list[Point], list[Point]]:
    """The next turn of chats, in a gateway that has seen the first of `others`, and in one that has
    seen them all. In turns: what else the machine does meets both."""
    few, many = worlds = [_ready(root, plan) for _ in range(2)]
    points: dict[World, list[Point]] = {few: [], many: []}
    try:
        for number, other in enumerate(others):
            for world in worlds if number < plan.few_others else (many,):
                await world.decide(other, -1, 0)
        for chat, messages in enumerate(probes):
            for world in worlds if chat % 2 else reversed(worlds):
                before = await world.decide(messages[:-2], chat, 0)
                points[world].append(await world.decide(messages, chat, before.new))
    finally:
        for world in worlds:
            world.close()
        gc.unfreeze()
    return points[few], points[many]


def _ready(root: Path, plan: DirectorPlan) -> World:
    """Started as the gateway is: what is there by now is no garbage, and is not looked at again."""
    world = World(root, plan)
    gc.collect()
    gc.freeze()
    return world


def _growing(turns: Turns, plan: DirectorPlan) -> Iterator[list[Message]]:
    """A chat, turn by turn: each time a user asks, whoever has written the text."""
    messages: list[Message] = []
    while True:
        messages = [*messages, _turn("user", turns, plan)]
        yield messages
        messages = [*messages, _turn("assistant", turns, plan)]


def _turn(role: str, turns: Turns, plan: DirectorPlan) -> Message:
    return {"role": role, "content": next(turns)["content"][: plan.turn_chars]}


def _chat(turns: Turns, num_tokens: int, plan: DirectorPlan) -> list[Message]:
    """Of about so many tokens: four characters are one."""
    growing = _growing(turns, plan)
    messages = next(growing)
    while len(messages) < 3 or sum(len(m["content"]) for m in messages) < 4 * num_tokens:
        messages = next(growing)
    return messages


def _wall_note(points: Sequence[Point]) -> str:
    long = [p.wall for p in points if p.history >= 4_000]
    q = quartiles(long or [p.wall for p in points])
    return (
        "a decision for a chat with 4,000 tokens of history or more takes "
        f"{q.median / 1e3:.2f} ms of wall time (quartiles {q.low / 1e3:.2f} to "
        f"{q.high / 1e3:.2f}); seed 001 measured about 10 ms more end to end for a chat than for a "
        "completion"
    )


def goals(run: Run) -> list[Goal]:
    """Return the requirements on a decision, judged."""
    few, many = run.words["few_others"], run.words["others"]
    found = []
    for row in run.select("growth"):
        growth, ratio = row.values["growth"], row.values["ratio"]
        assert isinstance(growth, Interval)
        assert isinstance(ratio, Interval)
        step = row.keys["step"]
        if step == "whole":
            what = "a decision, ns for each token of history"
            found.append(goal(what, growth, most=_MOST_NS_A_TOKEN))
        elif step in ("encode", "match"):
            what = f"{step}, time after {many:,} chats / after {few:,}"
            found.append(goal(what, ratio, most=_MOST_TIMES))
    triples = run.select("choices", kind="three scorers")
    slowest = max(triples, key=lambda row: row.median("choice"))
    what = (
        f"a choice among {run.plan['many_endpoints']:,} endpoints by three scorers, the slowest of "
        f"{len(triples)} sets"
    )
    return [
        *found,
        goal(what, slowest.median("choice"), most=MOST_US, form="{:.1f}", unit=" µs"),
    ]


def _step_column(step: str) -> Column:
    shown: Literal["median", "quartiles"] = "quartiles" if step == "whole" else "median"
    return Column(step, shown=shown, better="lower", unit="µs")


DIRECTOR = Benchmark(
    "director",
    "Measure what a decision costs while chats grow turn by turn: the CPU time of each step, and a "
    "choice among 1,000 endpoints.",
    DirectorPlan,
    measure_director,
    tables=[
        Table(
            "lengths",
            "CPU time of a decision in µs: median over the turns, with quartiles for the whole",
            ["tokens of history"],
            [Column("turns", form="{:,.0f}"), *map(_step_column, STEPS)],
        ),
        Table(
            "growth",
            "CPU time by the chat's own history, and by the number of other chats that were served "
            "before (the same turns)",
            ["step"],
            [
                Column("growth", "ns for each token of history (95 %)", "{:.2f}"),
                Column("few", "µs, after {few_others:,} chats"),
                Column("many", "µs, after {others:,} chats"),
                Column("ratio", "ratio (95 %)", "{:.2f}"),
            ],
        ),
        Table(
            "choices",
            "Wall time of a choice among {many_endpoints:,} endpoints, µs, median (quartiles), by "
            "{kind}",
            ["scorers"],
            [
                Column("choice", better="lower", unit="µs"),
                Column("producers", "their producers, before it"),
            ],
            split=["kind"],
            in_details=True,
        ),
    ],
    chart=Chart(
        "A decision for a chat that grows turn by turn",
        [
            Plot(
                "lengths", STEPS, "prompt",
                x_label="tokens of the prompt",
                y_label="CPU of a decision, µs, median",
                styles={"whole": {"color": "black", "linewidth": 2.0}},
            )
        ],
    ),
    quick={"chats": 2, "longest": 8_000, "probes": 8, "others": 50, "repeats": 50},
    goals=goals,
    question="how much CPU time a routing decision takes, by length of the chat and number of "
    "engines",
    takes="half a minute",
)  # fmt: skip
director = DIRECTOR.command()
