"""`inferway bench director`, from what it needs to the whole run."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvloop

from inferway.bench import chats
from inferway.bench.chats import Message, Turns
from inferway.bench.director.plan import Plan
from inferway.bench.director.results import DirectorRun
from inferway.bench.director.world import Point, World
from inferway.bench.machine import this_machine
from inferway.prompts.prepare import prepare_smollm2


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
    on_step(f"beside {plan.few_others} chats seen before")
    few = uvloop.run(_probed(root, plan, probes, others[: plan.few_others]))
    on_step(f"beside {plan.others} chats seen before")
    many = uvloop.run(_probed(root, plan, probes, others))
    return DirectorRun(
        machine=machine,
        command=shlex.join(["inferway", *sys.argv[1:]]),
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
) -> list[Point]:
    """The next turn of chats, in a gateway that has seen `others` too."""
    world, points = _ready(root, plan), []
    try:
        for other in others:
            await world.decide(other, -1, 0)
        for chat, messages in enumerate(probes):
            before = await world.decide(messages[:-2], chat, 0)
            points.append(await world.decide(messages, chat, before.new))
    finally:
        world.close()
        gc.unfreeze()
    return points


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
