"""What is asked of a simulated fleet: requests at the grain of blocks, and when they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh32_hexdigest

from inferway.model import Prompt
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest

MODEL = "simulated"
_KEPT = 50_000  # requests; of more, what scheduling gets is made when it is needed
CHARS_A_BLOCK = 8  # of the text that stands for a block, see `llm_request`
_MANY_BLOCKS = 16**CHARS_A_BLOCK
_IDS = np.zeros(1 << 18, np.uint32)  # for all prompts: nobody reads more than how many there are
_IDS.setflags(write=False)
_COPY = 1 << 40  # above all ids of blocks and sessions


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Blocks are integers: equal blocks hold equal tokens behind equal blocks."""

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


class Figures(msgspec.Struct, frozen=True):
    """The means of a run's requests that count: times in ms, shares in %, tokens of a prompt."""

    ttft: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    itl: float
    itl_p99: float  # of all gaps between tokens
    cached: float
    computed: float  # tokens of a prompt
    overestimated: float  # requests of which more was believed to be reusable than was reused
    excess: float  # tokens that were believed to be reusable, and were not
    two_legs: float  # requests
    cpu_seconds: float  # of the simulation
    cpu_us: float  # of each request


@dataclass(slots=True)
class Outcome:
    """What became of a run's requests, as arrays by request in seconds and tokens."""

    ttft: NDArray[np.float64]
    latency: NDArray[np.float64]  # to the last token
    arrived: NDArray[np.float64]
    cached_tokens: NDArray[np.int64]
    believed_tokens: NDArray[np.int64]  # to be reused, when the engine was chosen
    engine: NDArray[np.int32]
    num_ended: NDArray[np.int32]  # how often each ended: once
    in_two_legs: NDArray[np.bool_]
    # between tokens, by stretches of equal steps: when it began, a gap's seconds, the gaps
    gaps: Sequence[NDArray[np.float64]] = ()
    cpu_seconds: float = 0.0

    @classmethod
    def of(cls, count: int) -> Outcome:
        """Return that of requests of which nothing has become yet."""
        ttft, latency, arrived = np.zeros((3, count))
        engine, ended = np.zeros((2, count), np.int32)
        legs = np.zeros(count, np.bool_)
        cached, believed = np.zeros((2, count), np.int64)
        return cls(ttft, latency, arrived, cached, believed, engine, ended, legs)

    def put(self, places: Sequence[int], part: Outcome) -> None:
        """Take over what became of some of the requests, but for the gaps."""
        for field in fields(self):
            values = getattr(self, field.name)
            if isinstance(values, np.ndarray):
                values[places] = getattr(part, field.name)
        self.cpu_seconds += part.cpu_seconds

    def figures(self, workload: Workload, rate: float, warm_up: float = 0.0) -> Figures:
        """Return the figures of the requests that arrive behind the first share `warm_up` of the
        run, and before its end."""
        # the last request's time has been rounded
        end = len(workload.requests) / rate * (1 + 1e-9)
        judged = np.flatnonzero((self.arrived >= warm_up * end) & (self.arrived <= end))
        prompt = workload.columns.prompt_tokens[judged]
        cached, believed = self.cached_tokens[judged], self.believed_tokens[judged]
        gaps = workload.columns.output_tokens[judged] - 1
        ttft = self.ttft[judged]
        p50, p90, p99 = np.percentile(ttft, (50, 90, 99)) * 1e3
        decoded = self.latency[judged] - ttft
        return Figures(
            ttft=float(ttft.mean()) * 1e3,
            ttft_p50=float(p50),
            ttft_p90=float(p90),
            ttft_p99=float(p99),
            itl=float(decoded.sum() / max(1, gaps.sum())) * 1e3,
            itl_p99=self._gap(0.99, warm_up * end, end) * 1e3,
            cached=float(cached.sum() / prompt.sum()) * 100,
            computed=float((prompt - cached).mean()),
            overestimated=float((believed > cached).mean()) * 100,
            excess=float(np.maximum(believed - cached, 0).mean()),
            two_legs=float(self.in_two_legs[judged].mean()) * 100,
            cpu_seconds=self.cpu_seconds,
            cpu_us=self.cpu_seconds / len(workload.requests) * 1e6,
        )

    def _gap(self, share: float, since: float, until: float) -> float:
        """The seconds that so many of the gaps between tokens are not longer than."""
        at, seconds, count = self.gaps
        judged = (at >= since) & (at <= until)
        if not judged.any():
            return 0.0
        seconds, count = seconds[judged], count[judged]
        order = seconds.argsort()
        passed = count[order].cumsum()
        return float(seconds[order[passed.searchsorted(share * passed[-1])]])
