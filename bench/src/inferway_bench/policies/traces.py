"""Workloads: Mooncake's trace, a coding agent's sessions and Azure's, of which the first line of a
file says which it is; and chats that are generated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from inferway_bench.data_files import unpacked
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.processes import BenchError

BLOCK = 512  # tokens: Mooncake's, and what eight of the agents' blocks are joined to
_MOONCAKE_TICK = 3.0  # seconds: its timestamps are multiples of it
_AGENTIC_BLOCK = 64
_EACH = BLOCK // _AGENTIC_BLOCK
_AGENTIC_THINK = 60.0  # seconds
AGENTIC_MOST = 250_000  # tokens of a prompt
AZURE_HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens"
_PRIVATE_BLOCK = 128  # tokens of a block where a trace names none
_MOST_BLOCKS = 1 << 16  # of a private prompt
CHAT_BLOCK = 128  # tokens
_SESSION_BLOCKS = 1 << 12  # of a generated session

# In `traces/` of `bench/data`, whose README has more; there they are packed.
FILES = {
    "mooncake": "mooncake_conversation_trace.jsonl",
    "agentic": "claude_code_agentic_traces_305.jsonl",
    "azure": "AzureLLMInferenceTrace_conv_2023.csv",
}
_FORMATS = "Mooncake's JSON lines, an agent's sessions, Azure's CSV"


def stored(traces: Path, name: str) -> Path:
    """Return the file of one of `FILES` in a folder, packed or not; the packed one if none is
    there."""
    files = [traces / f"{FILES[name]}{ending}" for ending in (".xz", ".gz", "")]
    return next((file for file in files if file.is_file()), files[0])


@lru_cache(maxsize=8)
def read_trace(path: Path, seed: int) -> Workload:
    """Return the requests of a file; what is drawn is drawn with the seed. Raises BenchError when
    the file is not there, or of no format that is known."""
    lines = _lines(path)
    first = lines[0] if lines else b""
    if first.startswith(AZURE_HEAD):
        return azure(lines)
    if b'"requests"' in first:
        return agentic(lines, seed)
    if b'"input_length"' in first:
        return mooncake(lines)
    raise BenchError(f"{path}: of no format that is known; known: {_FORMATS}")


@lru_cache(maxsize=1)
def _lines(path: Path) -> list[bytes]:
    if not path.is_file():
        raise BenchError(f"{path}: not there; fix: give the path of the trace, or its folder")
    return unpacked(path).splitlines()


class _MooncakeLine(msgspec.Struct):
    timestamp: int  # ms
    input_length: int
    output_length: int
    hash_ids: list[int]


def mooncake(lines: Sequence[bytes]) -> Workload:
    """Return Mooncake's conversation trace: 12,031 requests of one hour, 12,000 tokens a prompt."""
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    requests = [_mooncake_request(decode(line)) for line in lines if line]
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


def agentic(lines: Sequence[bytes], seed: int) -> Workload:
    """Return sessions of a coding agent, 64,000 tokens a prompt, in an order that is drawn with the
    seed."""
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
    return Workload("agentic", about, BLOCK, requests)


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


def azure(lines: Sequence[bytes]) -> Workload:
    """Return Azure's trace of a conversation service (2023): when requests came, and how long they
    were. Policies differ in load alone. The first line is the head."""
    rows = [line.decode().split(",") for line in lines[1:] if line]
    first = _seconds(rows[0][0])
    requests = [
        SimRequest(
            blocks=_private_blocks(number, int(prompt)),
            prompt_tokens=max(1, int(prompt)),
            output_tokens=max(1, int(answer)),
            session=number,
            start=_seconds(time) - first,
        )
        for number, (time, prompt, answer) in enumerate(rows)
    ]
    about = (
        "Azure's conversation trace (2023): times and lengths; it names no blocks, so prompts are "
        "private and nothing can be reused"
    )
    return Workload("azure", about, _PRIVATE_BLOCK, requests)


def _private_blocks(number: int, tokens: int) -> tuple[int, ...]:
    """The ids of the whole blocks of a prompt that nobody shares."""
    first = number * _MOST_BLOCKS
    return tuple(range(first, first + tokens // _PRIVATE_BLOCK))


def _seconds(time: str) -> float:
    """2023-11-16 18:15:46.6805900"""
    whole, _, fraction = time.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


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
    """Return chats that are drawn with the seed, in the order in which their sessions begin.

    A session begins at a random moment with one of a few system prompts, popular ones more often
    (Zipf); each turn's prompt is all that was said before and a new message, and comes when the
    answer before has ended and been thought about. Lengths are lognormal. Ids of blocks follow the
    tokens: the block in which a system prompt ends belongs to the session.
    """
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
    return Workload("chats", about, CHAT_BLOCK, requests)


class _Blocks(msgspec.Struct, frozen=True):
    """The ids of a session's blocks. A conversation only grows, so a block's place is enough."""

    system: int
    system_tokens: int
    session: int  # above all systems

    def until(self, tokens: int) -> tuple[int, ...]:
        """Return the ids of the whole blocks of the first `tokens` tokens."""
        shared, num = self.system_tokens // CHAT_BLOCK, tokens // CHAT_BLOCK
        owners = [self.system if at < shared else self.session for at in range(num)]
        return tuple([owner * _SESSION_BLOCKS + at for at, owner in enumerate(owners)])


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
