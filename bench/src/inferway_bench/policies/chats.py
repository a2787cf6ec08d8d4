"""Generated chats: sessions of several turns that share system prompts, drawn with a seed.

A session begins at a random moment with one of a few system prompts, popular ones more often
(Zipf); each turn's prompt is all that was said before and a new message, and comes when the answer
before has ended and been thought about. Lengths are lognormal. Ids of blocks follow the tokens: the
block in which a system prompt ends belongs to the session.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from inferway_bench.policies.requests import SimRequest, Workload

BLOCK_TOKENS = 128
_MOST_BLOCKS = 1 << 12  # of a session


class ChatSpec(msgspec.Struct, frozen=True):
    """What is drawn: lengths are in tokens, as (median, sigma of the logarithm)."""

    num_requests: int = 12_000
    system_prompts: int = 12
    system_tokens: tuple[float, float] = (1_500, 0.6)
    message_tokens: tuple[float, float] = (250, 1.0)
    answer_tokens: tuple[float, float] = (250, 0.7)
    mean_turns: float = 6.0
    think_seconds: float = 12.0  # mean, exponential
    most_tokens: int = 32_000  # a session ends before its prompt is longer


def chats(seed: int, spec: ChatSpec | None = None) -> Workload:
    """Return chats that are drawn with the seed, in the order in which their sessions begin."""
    spec = spec or ChatSpec()
    rng = np.random.default_rng(seed)
    lengths = [_length(rng, spec.system_tokens) for _ in range(spec.system_prompts)]
    popular = 1.0 / np.arange(1, spec.system_prompts + 1)
    popular /= popular.sum()
    requests: list[SimRequest] = []
    session, start = 0, 0.0
    while len(requests) < spec.num_requests:
        system = int(rng.choice(spec.system_prompts, p=popular))
        blocks = _Blocks(system, lengths[system], spec.system_prompts + session)
        requests += _session(rng, spec, blocks, start, len(requests))
        session += 1
        start += float(rng.exponential())
    del requests[spec.num_requests :]
    about = (
        f"generated chats: {spec.system_prompts} system prompts, {spec.mean_turns:g} turns on "
        f"average, {spec.think_seconds:g} s between an answer and the next turn"
    )
    return Workload("chats", about, BLOCK_TOKENS, requests)


class _Blocks(msgspec.Struct, frozen=True):
    """The ids of a session's blocks. A conversation only grows, so a block's place is enough."""

    system: int
    system_tokens: int
    session: int  # above all systems

    def until(self, tokens: int) -> tuple[int, ...]:
        """Return the ids of the whole blocks of the first `tokens` tokens."""
        shared, num = self.system_tokens // BLOCK_TOKENS, tokens // BLOCK_TOKENS
        owners = [self.system if at < shared else self.session for at in range(num)]
        return tuple([owner * _MOST_BLOCKS + at for at, owner in enumerate(owners)])


def _session(
    rng: np.random.Generator, spec: ChatSpec, blocks: _Blocks, start: float, first: int
) -> Iterator[SimRequest]:
    """Yield the turns of a session, of which the first is request number `first`."""
    tokens = blocks.system_tokens
    for turn in range(int(rng.geometric(1 / spec.mean_turns))):
        tokens += _length(rng, spec.message_tokens)
        answer = _length(rng, spec.answer_tokens)
        if tokens + answer > spec.most_tokens:
            return
        known = blocks.until(tokens)
        yield SimRequest(
            blocks=known,
            prompt_tokens=tokens,
            output_tokens=answer,
            session=blocks.session,
            start=start,
            # the last token of an answer is never computed
            answer_blocks=blocks.until(tokens + answer - 1)[len(known) :],
            follows=first + turn - 1 if turn else None,
            think=float(rng.exponential(spec.think_seconds)),
        )
        tokens += answer


def _length(rng: np.random.Generator, median_sigma: tuple[float, float]) -> int:
    median, sigma = median_sigma
    return max(1, round(float(rng.lognormal(math.log(median), sigma))))
