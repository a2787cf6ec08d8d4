"""Requests to a simulated fleet at the grain of blocks, and when they arrive: of Mooncake's trace,
a coding agent's sessions and Azure's (the first line of a file says which it is), or generated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh32_hexdigest

from inferway.model import Prompt
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway_bench.flags import unpacked
from inferway_bench.processes import BenchError

MODEL = "simulated"
_KEPT = 50_000  # requests; of more, what scheduling gets is made when it is needed
CHARS_A_BLOCK = 8  # of the text that stands for a block, see `llm_request`
_MANY_BLOCKS = 16**CHARS_A_BLOCK
_IDS = np.zeros(1 << 18, np.uint32)  # for all prompts: nobody reads more than how many there are
_IDS.setflags(write=False)
_COPY = 1 << 40  # above all ids of blocks and sessions


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated request. Blocks are integers: equal ones hold equal tokens after equal blocks."""

    blocks: tuple[int, ...]  # whole blocks of the prompt
    prompt_tokens: int
    output_tokens: int  # at least one
    session: int  # what a client would name; for consistent hashing
    start: float = 0.0  # seconds; shrinks as the rate of requests grows
    answer_blocks: tuple[int, ...] = ()  # whole blocks that the answer completes, if known
    follows: int | None = None  # the request whose answer must be there first
    think: float = 0.0  # seconds from that answer's end; does not shrink


class Columns(NamedTuple):
    """The fields of all requests as arrays."""

    start: NDArray[np.float64]
    follows: NDArray[np.int64]  # -1: none
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order of `start`; of one session, in the order of its turns."""

    name: str
    about: str
    block_tokens: int
    requests: Sequence[SimRequest]
    grain: float = 0.0  # seconds: the trace's clock ticks so slowly; spread evenly within

    @cached_property
    def llm(self) -> Callable[[int], LLMRequest]:
        """The requests by their number, as scheduling gets them; those of a large workload are not
        kept."""

        def make(index: int) -> LLMRequest:
            return llm_request(self.requests[index], index, self.block_tokens)

        return make if len(self.requests) > _KEPT else cache(make)

    @cached_property
    def columns(self) -> Columns:
        """The requests as arrays, made in one pass: there may be a million."""
        fields = (
            (r.start, -1 if r.follows is None else r.follows, r.prompt_tokens, r.output_tokens)
            for r in self.requests
        )
        return Columns(*map(np.array, zip(*fields, strict=True)))

    @cached_property
    def followers(self) -> dict[int, list[int]]:
        """The requests that wait for the answer of each request."""
        waiting: dict[int, list[int]] = {}
        follows = self.columns.follows
        for index in np.flatnonzero(follows >= 0).tolist():
            waiting.setdefault(int(follows[index]), []).append(index)
        return waiting

    @property
    def seconds(self) -> float:
        """The seconds from the first start to the last, at the trace's own rate."""
        return self.requests[-1].start - self.requests[0].start + self.grain

    @property
    def own_rate(self) -> float:
        """The trace's own requests a second; 1 if they all begin at once."""
        return len(self.requests) / self.seconds if self.seconds else 1.0

    def part(self, count: int) -> Workload:
        """Return the workload of the first `count` requests."""
        return Workload(self.name, self.about, self.block_tokens, self.requests[:count], self.grain)

    def starts(self, rate: float, seed: int) -> NDArray[np.float64]:
        """Return the seconds at which each request arrives that follows none, at `rate` requests a
        second."""
        starts: NDArray[np.float64] = self.columns.start - self.columns.start[0]
        if self.grain:
            starts += np.random.default_rng(seed).uniform(0.0, self.grain, len(starts))
        if self.seconds:
            starts *= len(starts) / self.seconds / rate
        return starts


class _Copies(Sequence[SimRequest]):
    """Request i is number i // copies of copy i % copies: all are in the order of `start`."""

    def __init__(self, requests: Sequence[SimRequest], copies: int, most: int) -> None:
        self._requests = requests
        self._copies = copies
        self._places = range(most)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> SimRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SimRequest]: ...
    def __getitem__(self, index: int | slice) -> SimRequest | Sequence[SimRequest]:
        if isinstance(index, slice):
            return [self[i] for i in self._places[index]]
        number, copy = divmod(self._places[index], self._copies)
        request, shift = self._requests[number], copy * _COPY
        follows = request.follows
        return msgspec.structs.replace(
            request,
            blocks=tuple([block + shift for block in request.blocks]),
            answer_blocks=tuple([block + shift for block in request.answer_blocks]),
            session=request.session + shift,
            follows=None if follows is None else follows * self._copies + copy,
        )


def repeated(workload: Workload, num_requests: int) -> Workload:
    """Return this number of requests: the first of `workload`, or as many copies as it takes, side
    by side.

    Each copy's blocks and sessions are its own, as another group of users has them; its requests
    keep their lengths, their order and their thinking. Copies begin within a session's usual
    distance of each other (`Workload.grain`), drawn with the seed of the run. Nothing is made
    before it is asked for.
    """
    requests = workload.requests
    if num_requests <= len(requests):
        return workload.part(num_requests)
    copies = -(-num_requests // len(requests))
    num_sessions = sum(request.follows is None for request in requests)
    return Workload(
        workload.name,
        f"{workload.about}; {copies} copies side by side, each with blocks of its own",
        workload.block_tokens,
        _Copies(requests, copies, num_requests),
        max(workload.grain, workload.seconds / num_sessions),
    )


def llm_request(request: SimRequest, index: int, block_tokens: int) -> LLMRequest:
    """Return a request as scheduling gets it. Its text has CHARS_A_BLOCK characters a block, also
    of an id that has more, so a plugin that compares text compares blocks."""
    text = "".join(
        [
            f"{block:0{CHARS_A_BLOCK}x}"
            if block < _MANY_BLOCKS
            else xxh32_hexdigest(block.to_bytes(8, "big"))
            for block in request.blocks
        ]
    )
    few = request.prompt_tokens <= len(_IDS)
    token_ids = _IDS[: request.prompt_tokens] if few else np.zeros(request.prompt_tokens, np.uint32)
    body = CompletionRequest(model=MODEL, prompt=text, stream=True, max_tokens=None)
    return LLMRequest(
        request_id=str(index),
        target_model=MODEL,
        body=body,
        headers=((b"x-session-id", b"%d" % request.session),),
        raw=text.encode(),
        prompts={block_tokens: (Prompt(token_ids, request.blocks),)},
    )


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
SMG_BLOCK = 256  # tokens
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
    """The distributions of chats: lengths are in tokens, as (median, sigma of the logarithm)."""

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


class SmgSpec(msgspec.Struct, frozen=True):
    """The load of SMG's published experiment: smg-project/smg, pull request 2438, with the profile
    local-medium of its scripts/generate_sim. Lengths are in tokens, as (length, share of those up
    to it), and spread evenly in between."""

    num_requests: int = 82_500  # 100 s
    sessions_a_second: float = 611.0
    second_turns: float = 0.5  # share of the sessions
    think_seconds: float = 3.0
    system_tokens: int = 2_048
    first_tokens: tuple[tuple[int, float], ...] = (
        (5_000, 0.216), (10_000, 0.53), (20_000, 0.994), (24_576, 1.0),
    )  # fmt: skip
    answer_tokens: tuple[tuple[int, float], ...] = (
        (1_000, 0.351), (2_000, 0.513), (5_000, 0.998), (6_144, 1.0),
    )  # fmt: skip
    message_tokens: int = 512  # of the second turn


def smg(seed: int, spec: SmgSpec | None = None) -> Workload:
    """Return sessions of one or two turns behind one system prompt, drawn with the seed."""
    spec = spec or SmgSpec()
    rng = np.random.default_rng(seed)
    requests: list[SimRequest] = []
    session, start = 1, 0.0
    while len(requests) < spec.num_requests:
        start += float(rng.exponential(1 / spec.sessions_a_second))
        blocks = _Blocks(0, spec.system_tokens, session, SMG_BLOCK)
        tokens = max(spec.system_tokens, _drawn(rng, spec.first_tokens))
        for turn in range(1 + (rng.random() < spec.second_turns)):
            tokens += turn * spec.message_tokens
            answer = _drawn(rng, spec.answer_tokens)
            before = len(requests) - 1 if turn else None
            requests.append(blocks.asked(tokens, answer, start, before, spec.think_seconds))
            tokens += answer
        session += 1
    about = (
        f"SMG's experiment (its pull request 2438): {spec.sessions_a_second:g} sessions a second; "
        f"{spec.second_turns:.0%} have a second turn {spec.think_seconds:g} s later"
    )
    return Workload("smg", about, SMG_BLOCK, requests)


def _drawn(rng: np.random.Generator, shares: Sequence[tuple[int, float]]) -> int:
    lengths, upto = zip((1, 0.0), *shares, strict=True)
    return int(np.interp(rng.random(), upto, lengths))


class _Blocks(msgspec.Struct, frozen=True):
    """The ids of a session's blocks. A conversation only grows, so a block's place is enough."""

    system: int
    system_tokens: int
    session: int  # above all systems
    size: int = CHAT_BLOCK  # tokens of a block

    def until(self, tokens: int) -> tuple[int, ...]:
        """Return the ids of the whole blocks of the first `tokens` tokens."""
        shared, num = self.system_tokens // self.size, tokens // self.size
        owners = [self.system if at < shared else self.session for at in range(num)]
        return tuple([owner * _SESSION_BLOCKS + at for at, owner in enumerate(owners)])

    def asked(
        self, tokens: int, answer: int, start: float, follows: int | None, think: float
    ) -> SimRequest:
        """Return the request whose prompt is the session's first so many tokens."""
        known = self.until(tokens)
        return SimRequest(
            blocks=known,
            prompt_tokens=tokens,
            output_tokens=answer,
            session=self.session,
            start=start,
            # the last token of an answer is never computed
            answer_blocks=self.until(tokens + answer - 1)[len(known) :],
            follows=follows,
            think=think,
        )


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
        think = float(rng.exponential(spec.think_seconds))
        yield blocks.asked(tokens, answer, start, first + turn - 1 if turn else None, think)
        tokens += answer


def _length(rng: np.random.Generator, median_sigma: tuple[float, float]) -> int:
    median, sigma = median_sigma
    return max(1, round(float(rng.lognormal(math.log(median), sigma))))
