"""Traces -> workloads: Mooncake's, a coding agent's sessions, and Azure's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from random import Random

import msgspec

from inferway_bench.policies.requests import SimRequest, Workload

BLOCK = 512  # tokens: Mooncake's, and what eight of the agents' blocks are joined to
_MOONCAKE_TICK = 3.0  # seconds: its timestamps are multiples of it
_AGENTIC_BLOCK = 64
_EACH = BLOCK // _AGENTIC_BLOCK
_AGENTIC_THINK = 60.0  # seconds
AGENTIC_MOST = 250_000  # tokens of a prompt
AZURE_HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"
PRIVATE_BLOCK = 128  # tokens of a block where a trace names none
_MOST_BLOCKS = 1 << 16  # of a private prompt


class _MooncakeLine(msgspec.Struct):
    timestamp: int  # ms
    input_length: int
    output_length: int
    hash_ids: list[int]


def mooncake(lines: Sequence[bytes], most: int | None = None) -> Workload:
    """Return Mooncake's conversation trace: 12,031 requests of one hour, 12,000 tokens a prompt."""
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    requests = [_mooncake_request(decode(line)) for line in lines[:most] if line]
    about = (
        "Mooncake's conversation trace; answers are not reused (it does not name their blocks); "
        "a session is what its second block names"
    )
    return Workload("mooncake", about, BLOCK, requests, grain=_MOONCAKE_TICK)


def _mooncake_request(line: _MooncakeLine) -> SimRequest:
    ids = line.hash_ids
    return SimRequest(
        # the last id is that of a block that may be incomplete: nobody can reuse it
        blocks=tuple(ids[: line.input_length // BLOCK]),
        prompt_tokens=line.input_length,
        output_tokens=max(1, line.output_length),
        session=ids[min(1, len(ids) - 1)],  # the first block is the same in all
        start=line.timestamp / 1000,
    )


class _Step(msgspec.Struct):
    input_tokens: int = msgspec.field(name="in", default=0)  # a sub-agent's entry has none
    output_tokens: int = msgspec.field(name="out", default=0)
    hash_ids: list[int] = []
    think_time: float = 0.0  # seconds since the answer before


class _AgentSession(msgspec.Struct):
    requests: list[_Step]


def agentic(lines: Sequence[bytes], seed: int, most: int | None = None) -> Workload:
    """Return sessions of a coding agent, 64,000 tokens a prompt, in an order that is drawn with the
    seed; at most `most` requests."""
    decode = msgspec.json.Decoder(_AgentSession).decode
    sessions = [decode(line) for line in lines if line]
    order = list(range(len(sessions)))
    rng = Random(seed)
    rng.shuffle(order)
    requests: list[SimRequest] = []
    start = 0.0
    for session in order:
        steps = [s for s in sessions[session].requests if 0 < s.input_tokens <= AGENTIC_MOST]
        requests += _agent_requests(steps, session, start, len(requests))
        start += rng.expovariate(1.0)
    about = (
        "sessions of a coding agent (kv-cache-tester), begun one after another in an order drawn "
        f"with the seed; thinking is cut at {_AGENTIC_THINK:g} s, requests of more than "
        f"{AGENTIC_MOST:,} tokens and sub-agents are left out; nothing is shared between sessions, "
        "and answers are not reused"
    )
    return Workload("agentic", about, BLOCK, requests[:most])


def _agent_requests(
    steps: list[_Step], session: int, start: float, first: int
) -> Iterator[SimRequest]:
    for number, step in enumerate(steps):
        # An id stands for all before it, too: the last of eight for the eight.
        ids = step.hash_ids[: step.input_tokens // _AGENTIC_BLOCK]
        yield SimRequest(
            blocks=tuple([session << 16 | block for block in ids[_EACH - 1 :: _EACH]]),
            prompt_tokens=step.input_tokens,
            output_tokens=max(1, step.output_tokens),
            session=session,
            start=start,
            follows=first + number - 1 if number else None,
            think=min(step.think_time, _AGENTIC_THINK),
        )


def azure(lines: Sequence[bytes], most: int | None = None) -> Workload:
    """Return Azure's trace of a conversation service (2023): when requests came, and how long they
    were. Policies differ in load alone. The first line is the head."""
    rows = [line.decode().split(",") for line in lines[1:] if line][:most]
    requests = []
    first = _seconds(rows[0][0])
    for number, (time, prompt, answer) in enumerate(rows):
        requests.append(
            SimRequest(
                blocks=private_blocks(number, int(prompt)),
                prompt_tokens=max(1, int(prompt)),
                output_tokens=max(1, int(answer)),
                session=number,
                start=_seconds(time) - first,
            )
        )
    about = (
        "Azure's conversation trace (2023): times and lengths; it names no blocks, so prompts are "
        "private and nothing can be reused"
    )
    return Workload("azure", about, PRIVATE_BLOCK, requests)


def private_blocks(number: int, tokens: int) -> tuple[int, ...]:
    """Return the ids of the whole blocks of a prompt that nobody shares."""
    first = number * _MOST_BLOCKS
    return tuple(range(first, first + tokens // PRIVATE_BLOCK))


def _seconds(time: str) -> float:
    """2023-11-16 18:15:46.6805900"""
    whole, _, fraction = time.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
