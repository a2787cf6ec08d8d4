"""The costs of a request in two legs: its prompt is computed, or held, on one engine, and its
answer is written by another, which gets the blocks.

    cost(P, D) = prefill leg on P + decode leg on D + transfer of what D lacks

prefill leg    what one leg costs on P, but for the answer's writing
decode leg     of D's TTFT what is not for tokens, and one token's; what waits there waits for no
               more; the blocks push out as many, unless there is room for all; and the answer's
               writing
transfer       fixed + tokens moved, learned for each engine; as much longer as it is off by

In a fleet where this can be chosen a millisecond of an answer's writing counts WRITING of one
before its first token. So each cost has, in place of what `marginal_cost` has for answers,

    WRITING (n w + m (n a + t / (1 - b)))

w and n as there, a what each running request makes a token later, t the time from one token to
the next with one request more, and b the share of its time that the engine is busy with prompts:
whoever writes there will stand still for prompts to come. So engines that write get no prompts, and
those that compute prompts write little, as many of each as the requests need.

But prompts and answers can be kept apart only while there are engines enough for both. Prompts take
the mean of b, answers the tokens a millisecond that are asked for, times a + t0 / FULL_BATCH (t0: a
token's time without running requests). Where less than SPARE is left of the fleet's time, WRITING
becomes as much less, down to 1 / m: that is what it is for `marginal_cost`.

No term is of both P and D: the best pair is that of the best P and the best D, unless they are one
engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Column, Rows
from inferway.scheduling.expected_ttft.learning import (
    AHEAD,
    BATCH,
    DECODE_MS,
    FIXED,
    OWN,
    PAIRS,
    PREFILL_MS,
    REQUESTS,
    RUNNING,
    TRANSFER_MS,
    Learning,
)
from inferway.scheduling.roles import Group

WRITING = 0.2
SPARE = 0.2  # of the fleet's time; with less of it left, writing counts for less
FULL_BATCH = 64.0  # answers, of an engine that does nothing else
MOST_PREFILL = 2  # engines that a prefill leg may be tried on
FULL = 0.9  # of its KV blocks are in use: an engine that gets no blocks of others

_PREFILL, _DECODE = range(2)


class Pair(NamedTuple):
    """Rows of the endpoints of a request in two legs, and its cost in milliseconds."""

    prefill: Sequence[int]  # best first
    decode: int
    cost: float


def add_legs(
    learning: Learning,
    candidates: Candidates,
    rows: Rows,
    features: NDArray[np.float64],
    costs: NDArray[np.float64],
    terms: NDArray[np.float64],
    ttft: Column,
    prompt: float,
) -> Column:
    """Add PREFILL_MS, DECODE_MS and TRANSFER_MS. Returns the cost of a request in one leg."""
    now, marginal = candidates.now, learning.marginal_cost
    busy = marginal.busy(rows, now)
    slower, fixed = learning.tpot.table[RUNNING, rows], learning.tpot.table[FIXED, rows]
    each = slower.mean().item() + fixed.mean().item() / FULL_BATCH
    prompts = busy.mean().item()
    # as learned, a token's time has the pauses for prompts in it
    used = prompts + marginal.answer_tokens_each(now) * each * (1.0 - prompts)
    left = min(max((1.0 - used) / SPARE, 0.0), 1.0)
    weight = max(WRITING * left * marginal.answer_tokens, 1.0)
    running = features[BATCH] + learning.coming[rows]
    tokens = terms[OWN] + terms[PAIRS]
    writing = fixed + slower * (running + 1.0)
    writing /= 1.0 - busy
    writing += running * slower
    writing *= weight
    one = one_token(costs, prompt)
    # of both legs: what numpy does at once takes half
    work, writes, pushed = np.zeros((3, 2, len(one)))
    work[_PREFILL], work[_DECODE] = tokens + costs[REQUESTS], one
    has_room = candidates.free_blocks * candidates.block_sizes >= features[OWN]
    pushed[_PREFILL], pushed[_DECODE] = tokens, tokens
    pushed[_DECODE, has_room] = 0.0
    writes[_DECODE] = writing
    both = marginal.cost(
        rows,
        now,
        work=work,
        tokens=pushed,
        backlog=terms[AHEAD] + terms[REQUESTS],
        batch=running * weight,
        slowed=writes,
    )
    both += ttft
    prefill, decode = both
    decode += one - tokens
    transfer = learning.transfer.table[0, rows] + learning.transfer.table[1, rows] * features[OWN]
    decode += transfer * (1.0 + learning.transfer.error[rows])
    decode[candidates.kv_usage > FULL] = np.inf
    candidates.add(PREFILL_MS, prefill)
    candidates.add(DECODE_MS, decode)
    candidates.add(TRANSFER_MS, transfer)
    whole: Column = prefill + writing
    return whole


def one_token(costs: NDArray[np.float64], prompt: float) -> Column:
    """Return what the last token of a prompt costs, when all before it is there."""
    cost: Column = costs[OWN] + costs[PAIRS] * (prompt - 0.5)
    return cost


def best_pair(
    candidates: Candidates, groups: Sequence[Group], engines: NDArray[np.intp]
) -> Pair | None:
    """Return the pair that costs the least; None if no plugin has added what legs cost, or no
    engine has room to decode."""
    prefill, decode = candidates.get(PREFILL_MS), candidates.get(DECODE_MS)
    if prefill is None or decode is None:
        return None
    found = [pair for each in groups if (pair := _best(each, engines, prefill, decode)) is not None]
    return min(found, key=lambda pair: pair.cost, default=None)


def _best(group: Group, engines: NDArray[np.intp], prefill: Column, decode: Column) -> Pair | None:
    gives, takes = group
    ranked = gives[prefill[gives].argsort()].tolist()
    at = decode[takes]
    row = int(takes[at.argmin()])
    others = takes[engines[takes] != engines[ranked[0]]]
    if engines[row] == engines[ranked[0]] and len(others):
        second = int(others[decode[others].argmin()])
        pairs = [
            pair
            for each in (row, second)
            if (pair := _with(each, ranked, engines, prefill, decode)) is not None
        ]
        return min(pairs, key=lambda pair: pair.cost, default=None)
    return _with(row, ranked, engines, prefill, decode)


def _with(
    row: int,
    ranked: Sequence[int],
    engines: NDArray[np.intp],
    prefill: Column,
    decode: Column,
) -> Pair | None:
    """The best pair with this row to decode."""
    engine = engines[row]
    others: list[int] = []
    for each in ranked:
        if engines[each] != engine:
            others.append(each)
            if len(others) == MOST_PREFILL:
                break
    cost = decode.item(row)
    if not others or cost == np.inf:
        return None
    return Pair(others, row, prefill.item(others[0]) + cost)
