"""So many agents, each of which has one session at a time, for as long as a run takes.

An agent takes sessions from a trace, in an order drawn with the seed, and begins the next when the
answer before has ended, so that always as many sessions are alive as there are agents. Within a
session a turn comes when the answer before has been there for the time that a tool takes. The
first session of each agent is in the middle when the run begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload

_SESSION = 1 << 20  # blocks of a session at most, by their ids

Turns = Sequence[SimRequest]  # of one session


@dataclass(frozen=True, eq=False)
class Agents:
    """The requests of all agents, and what is so of each of them. An array's place is the
    request's index; what is known of the future only an oracle may read."""

    workload: Workload
    first: NDArray[np.bool_]  # turns of their sessions
    last: NDArray[np.bool_]
    next: NDArray[np.int64]  # the index of the session's next turn; its own of a last one
    kept_tokens: NDArray[np.int64]  # of the prompt, that the session has said before
    peak_tokens: NDArray[np.int64]  # that the session will hold at most, from this turn on

    @cached_property
    def session(self) -> NDArray[np.int64]:
        return np.array([request.session for request in self.workload.requests])

    @cached_property
    def held_tokens(self) -> NDArray[np.int64]:
        """What the session holds once the turn has been answered: its prompt and the answer."""
        columns = self.workload.columns
        return columns.prompt_tokens + columns.output_tokens

    def idle_seconds(self, engine: EngineSpec) -> NDArray[np.float64]:
        """Return what each turn's first token takes on an idle engine that holds what the session
        has said before."""
        prompts = self.workload.columns.prompt_tokens.tolist()
        kept = self.kept_tokens.tolist()
        return np.array([engine.idle_ttft(p, held) for p, held in zip(prompts, kept, strict=True)])


def sessions_of(workload: Workload) -> list[Turns]:
    """Return the sessions of a trace, in its order."""
    found: dict[int, list[SimRequest]] = {}
    for request in workload.requests:
        found.setdefault(request.session, []).append(request)
    return list(found.values())


def mean_need(sessions: Sequence[Turns]) -> float:
    """Return the tokens that a live session holds, the mean over all turns."""
    held = [turn.prompt_tokens + turn.output_tokens for turns in sessions for turn in turns]
    return sum(held) / len(held)


def agents(
    trace: Workload, number: int, seconds: float, ramp: float, engine: EngineSpec, seed: int,
    tool_times: float = 1.0,
) -> Agents:  # fmt: skip
    """Return what so many agents ask in this time. They begin within the first `ramp` seconds; a
    tool takes `tool_times` of what it takes in the trace."""
    rng = Random(seed)
    sessions = sessions_of(trace)
    drawn = _drawn(len(sessions), rng)
    requests: list[SimRequest] = []
    facts: list[tuple[bool, bool, int, int]] = []
    for _ in range(number):
        begins = rng.uniform(0.0, ramp)
        skipped, follows, left = rng.random(), None, seconds - begins
        while left > 0:
            number_of, name = next(drawn)
            turns = sessions[number_of]
            turns = turns[int(skipped * len(turns)) :]
            skipped = 0.0
            made = list(_renamed(turns, name, begins, follows, len(requests), tool_times))
            facts += _facts(made, trace.block_tokens)
            requests += made
            follows = len(requests) - 1
            left -= sum(each.think + _least_seconds(each, engine) for each in made)
    first, last, kept, peak = map(np.array, zip(*facts, strict=True))
    order = _in_order(requests)
    where = np.empty(len(order), np.int64)
    where[order] = np.arange(len(order))
    following = where[np.where(last, np.arange(len(order)), np.arange(1, len(order) + 1))]
    ordered = [_moved(requests[old], where) for old in order.tolist()]
    return Agents(
        Workload(trace.name, trace.about, trace.block_tokens, ordered),
        first[order], last[order], following[order], kept[order], peak[order],
    )  # fmt: skip


def _drawn(count: int, rng: Random) -> Iterator[tuple[int, int]]:
    """(which session of the trace, the number of its copy): each once, in a new order each time."""
    name = 0
    while True:
        order = list(range(count))
        rng.shuffle(order)
        for which in order:
            name += 1
            yield which, name


def _renamed(
    turns: Turns, name: int, begins: float, follows: int | None, index: int, tool_times: float
) -> Iterator[SimRequest]:
    shift = name * _SESSION
    for number, turn in enumerate(turns):
        yield msgspec.structs.replace(
            turn,
            blocks=tuple([shift + block % _SESSION for block in turn.blocks]),
            session=name,
            start=begins,
            follows=index + number - 1 if number else follows,
            think=turn.think * tool_times if number else 0.0,
        )


def _facts(turns: Turns, block_tokens: int) -> Iterator[tuple[bool, bool, int, int]]:
    """(is first, is last, tokens kept, tokens at most from here on)"""
    peak, peaks = 0, []
    for turn in reversed(turns):
        peak = max(peak, turn.prompt_tokens + turn.output_tokens)
        peaks.append(peak)
    said: set[int] = set()
    for number, turn in enumerate(turns):
        kept = 0
        for block in turn.blocks:
            if block not in said:
                break
            kept += 1
        most = (turn.prompt_tokens - 1) // block_tokens
        said.update(turn.blocks)
        yield (
            number == 0, number == len(turns) - 1, min(kept, most) * block_tokens,
            peaks[-1 - number],
        )  # fmt: skip


def _least_seconds(turn: SimRequest, engine: EngineSpec) -> float:
    return turn.output_tokens * engine.step_seconds


def _in_order(requests: Sequence[SimRequest]) -> NDArray[np.intp]:
    """The places of the requests in the order of their start."""
    return np.argsort([request.start for request in requests], kind="stable")


def _moved(request: SimRequest, where: NDArray[np.int64]) -> SimRequest:
    if request.follows is None:
        return request
    return msgspec.structs.replace(request, follows=int(where[request.follows]))
