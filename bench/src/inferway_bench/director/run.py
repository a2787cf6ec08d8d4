"""`inferway bench director`, from what it needs to the whole run."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvloop

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench import chats
from inferway_bench.chats import Message, Turns
from inferway_bench.director.many_endpoints import measure
from inferway_bench.director.plan import Plan
from inferway_bench.director.results import DirectorRun
from inferway_bench.director.world import Point, World
from inferway_bench.machine import command_line, this_machine


def run_director(data: Path, plan: Plan, on_step: Callable[[str], None]) -> DirectorRun:
    """Measure with the chats in `data`. Raises BenchError, with the cure, without them."""
    conversations = chats.load_conversations(data / "chat")
    machine = this_machine()
    root = prepare_smollm2()
    turns = Turns(conversations, plan.seed)
    on_step("growing chats")
    grown = uvloop.run(_grown(root, plan, turns))
    probes = [_chat(turns, plan.probe_tokens, plan) for _ in range(plan.probes)]
    others = [_chat(turns, plan.other_tokens, plan) for _ in range(plan.others)]
    on_step(f"beside {plan.few_others} and {plan.others} chats seen before")
    few, many = uvloop.run(_probed(root, plan, probes, others))
    on_step(f"among {plan.many_endpoints} endpoints")
    return DirectorRun(
        machine=machine,
        command=shlex.join(command_line()),
        seed=plan.seed,
        text=f"{len(conversations):,} real conversations of {data.name}/chat, in an order drawn "
        f"once, joined; turns of {plan.turn_chars:,} characters at most",
        engines=plan.engines,
        block_size=plan.block_size,
        few_others=plan.few_others,
        others=plan.others,
        grown=grown,
        few=few,
        many=many,
        many_endpoints=measure(plan.many_endpoints, plan.repeats, plan.seed),
    )


async def _grown(root: Path, plan: Plan, turns: Turns) -> list[Point]:
    """Chats from their first turn to the longest, all in one gateway's memory."""
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
    root: Path, plan: Plan, probes: Sequence[list[Message]], others: Sequence[list[Message]]
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


def _ready(root: Path, plan: Plan) -> World:
    """Started as the gateway is: what is there by now is no garbage, and is not looked at again."""
    world = World(root, plan)
    gc.collect()
    gc.freeze()
    return world


def _growing(turns: Turns, plan: Plan) -> Iterator[list[Message]]:
    """A chat, turn by turn: each time a user asks, whoever has written the text."""
    messages: list[Message] = []
    while True:
        messages = [*messages, _turn("user", turns, plan)]
        yield messages
        messages = [*messages, _turn("assistant", turns, plan)]


def _turn(role: str, turns: Turns, plan: Plan) -> Message:
    return {"role": role, "content": next(turns)["content"][: plan.turn_chars]}


def _chat(turns: Turns, num_tokens: int, plan: Plan) -> list[Message]:
    """Of about so many tokens: four characters are one."""
    growing = _growing(turns, plan)
    messages = next(growing)
    while len(messages) < 3 or sum(len(m["content"]) for m in messages) < 4 * num_tokens:
        messages = next(growing)
    return messages
