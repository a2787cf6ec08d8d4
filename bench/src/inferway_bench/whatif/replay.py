"""A recording in memory, the part of it that is asked for, and its requests as the simulation's,
beside what was measured of them.

A request that came after the answer to the one before it in its session follows that answer, as
long after it as it did: where answers come later, so do their clients. Of requests without a
session, the one before is the one whose whole prompt they begin with, and nobody else has.

Records name the blocks of prompts alone. Those of an answer are the next turn's, if an engine held
them when that turn came; whether clients send answers back as they got them is read from the turns
where that can be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import count
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.processes import BenchError
from inferway_console.records.files import FleetLine
from inferway_console.records.reader import RecordReader
from inferway_console.records.record import RequestRecord

_MOST_THINKING = 600.0  # seconds; who comes later has not waited for an answer
_USUAL_ANSWER = 16  # tokens, where nobody knows
_PRIVATE = 1 << 40  # ids of blocks that nobody shares, above those of any recording
_UNSEEN_SHARE = 0.01  # of the reused tokens, that no prompt of the recording had before
_WARM_UP = 0.2  # of the requests, that then only fill caches

Floats = NDArray[np.float64]


class Spans(NamedTuple):
    """The beginnings and the ends of intervals, each in order."""

    starts: Floats
    ends: Floats

    @classmethod
    def of(cls, starts: Floats, ends: Floats) -> Spans:
        return cls(np.sort(starts), np.sort(ends))

    def touching(self, since: Floats, until: Floats) -> NDArray[np.int64]:
        """Return for each interval how many of these have begun before its end, and not ended by
        its beginning; itself among them if it is one of them."""
        begun = np.searchsorted(self.starts, until, "left")
        ended = np.searchsorted(self.ends, since, "right")
        return np.asarray(begun - ended, np.int64)

    def mean(self, since: Floats, until: Floats) -> Floats:
        """Return for each interval how many of these hold in it, on average over its time."""
        held = self._integral(until) - self._integral(since)
        return np.asarray(held / np.maximum(until - since, 1e-9), np.float64)

    def _integral(self, at: Floats) -> Floats:
        return _elapsed(self.starts, at) - _elapsed(self.ends, at)

    def covered(self, since: float, until: float) -> float:
        """Return the seconds between `since` and `until` in which at least one holds."""
        starts = np.clip(self.starts, since, until)
        ends = np.clip(self.ends, since, until)
        # of sorted beginnings and ends, a gap is where as many have ended as begun
        gaps = np.maximum(starts[1:] - ends[:-1], 0.0).sum() if len(starts) else 0.0
        return float(ends[-1] - starts[0] - gaps) if len(starts) else 0.0


def _elapsed(points: Floats, at: Floats) -> Floats:
    """The sum of the seconds since all points before `at`."""
    sums = np.concatenate(([0.0], points.cumsum()))
    number = np.searchsorted(points, at, "right")
    return np.asarray(number * at - sums[number], np.float64)


@dataclass(frozen=True, eq=False)
class MeasuredRequests:
    """The measurements of each request, in the order of the workload. Times are in seconds, NaN
    where they are not known."""

    at: Floats  # since the first
    ttft: Floats  # from when it came
    latency: Floats  # to the end of its answer
    waited: Floats  # for its turn in the gateway
    itl: Floats  # between its tokens
    cached: Floats  # tokens
    prompt: Floats
    output: Floats
    row: NDArray[np.int64]  # the engine
    judged: NDArray[np.bool_]

    @cached_property
    def has_usage(self) -> bool:
        """True if engines have told for most requests how many tokens they reused."""
        return bool(np.isfinite(self.cached[self.judged]).mean() > 0.5)


@dataclass(frozen=True, eq=False)
class Replay:
    """A part of a recording as it is simulated. Engine `row` is number `row` of `names`."""

    part: Part
    workload: Workload
    measured: MeasuredRequests
    names: Sequence[str]
    notes: Sequence[str] = ()

    @cached_property
    def seconds(self) -> float:
        """The time in which the requests that are judged came."""
        at = self.measured.at[self.measured.judged]
        return float(at[-1] - at[0])


def as_replay(part: Part) -> Replay:
    """Return the requests of a part as they are simulated, and what was measured of them."""
    asked, names = part.requests, list(part.engines)
    measured, notes = _measured(part, names)
    parents = _parents(asked)
    held = _held(part, parents)
    answers = _answers(part, measured, parents, held)
    roots: list[int] = []
    requests = []
    for number, parent in enumerate(parents):
        start = float(measured.at[number])
        roots.append(number if parent < 0 else roots[parent])
        think = start - float(measured.at[parent] + measured.latency[parent])
        is_next = parent >= 0 and 0.0 <= think <= _MOST_THINKING
        requests.append(
            SimRequest(
                blocks=held.blocks[number],
                prompt_tokens=int(measured.prompt[number]),
                output_tokens=int(measured.output[number]),
                session=roots[number],
                start=start,
                answer_blocks=answers[number],
                follows=parent if is_next else None,
                think=think if is_next else 0.0,
            )
        )
    about = f"{len(requests):,} recorded requests of {part.model}"
    workload = Workload("recorded", about, part.block_size, requests)
    if held.unseen > _UNSEEN_SHARE and part.judged_from <= asked[0].record.at:
        measured.judged[: int(_WARM_UP * len(asked))] = False
        notes.append(
            f"{held.unseen:.0%} of what engines reused is older than the recording, so its first "
            f"{_WARM_UP:.0%} only fills the caches and does not count"
        )
    return Replay(part, workload, measured, names, [*part.notes, *notes])


def _measured(part: Part, names: Sequence[str]) -> tuple[MeasuredRequests, list[str]]:
    records, notes = [each.record for each in part.requests], []
    rows = {name: row for row, name in enumerate(names)}

    def column(values: Sequence[float], unit: float = 1.0) -> Floats:
        found = np.array(values, float)
        return np.where(found < 0, np.nan, found * unit)

    output = column([r.output_tokens for r in records])
    if np.isnan(output).any():
        known = output[np.isfinite(output)]
        usual = float(np.median(known)) if len(known) else _USUAL_ANSWER
        notes.append(
            f"engines have not told the length of {np.isnan(output).mean():.0%} of the answers; "
            f"{usual:,.0f} tokens are assumed; fix: engines that tell their usage"
        )
        output = np.where(np.isnan(output), usual, output)
    cached = column([r.delivered_tokens for r in records])
    if np.isnan(cached).all():
        notes.append(
            "no engine has told how many tokens it reused, so the cached share can be compared "
            "between simulations alone; fix: vLLM's --enable-prompt-tokens-details"
        )
    ttft = column([r.ttft_ms if r.ttft_ms > 0 else -1.0 for r in records], 1e-3)
    latency = column([r.total_ms for r in records], 1e-3)
    at = np.array([r.at for r in records])
    median = column([r.itl_p50_ms if r.itl_p50_ms > 0 else -1.0 for r in records], 1e-3)
    return MeasuredRequests(
        at=at - at[0],
        ttft=np.where([r.streamed for r in records], ttft, np.nan),
        latency=latency,
        waited=np.array([r.waited_ms for r in records]) / 1e3,
        itl=np.where(np.isnan(median), (latency - ttft) / np.maximum(output - 1, 1), median),
        cached=cached,
        prompt=np.array([prompt_tokens(r) for r in records], float),
        output=np.maximum(output, 1.0),
        row=np.array([rows[r.chosen] for r in records]),
        judged=np.array([r.at >= part.judged_from and r.outcome == "ok" for r in records]),
    ), notes


def _parents(asked: Sequence[Asked]) -> list[int]:
    """The request before each in its conversation; -1 for the first one."""
    by_session: dict[str, int] = {}
    by_end: dict[int, int] = {}  # the last block of a prompt -> the request
    seen: Counter[int] = Counter()  # what many begin with is no turn of one conversation
    found = []
    for number, each in enumerate(asked):
        session, parent = each.record.session, -1
        if session:
            parent = by_session.get(session, -1)
            by_session[session] = number
        else:
            ends = (block for block in reversed(each.blocks) if block in by_end)
            end = next(ends, None)
            parent = -1 if end is None or seen[end] > 1 else by_end[end]
        if each.blocks:
            by_end[each.blocks[-1]] = number
        seen.update(each.blocks)
        found.append(parent)
    return found


@dataclass(slots=True)
class _Held:
    """The blocks of each request; how many of them some prompt had before, and how many an engine
    held when it came."""

    blocks: list[tuple[int, ...]]
    known: list[int]
    held: list[int]
    unseen: float  # the share of the reused tokens that is explained by no earlier request


def _held(part: Part, parents: Sequence[int]) -> _Held:
    size, private = part.block_size, count(_PRIVATE)
    found = _Held([], [], [], 0.0)
    seen: set[int] = set()
    reused = unseen = 0
    for each, parent in zip(part.requests, parents, strict=True):
        record, whole = each.record, prompt_tokens(each.record) // size
        blocks = tuple(each.blocks[:whole])
        # of a prompt that was not derived, nobody knows with whom it shares a block
        blocks += tuple(next(private) for _ in range(whole - len(blocks)))
        known = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(blocks)
        delivered = max(record.delivered_tokens, 0) // size
        held = min(max(record.reachable_blocks, delivered), len(blocks))
        reused += delivered
        unseen += max(delivered - known, 0) if parent < 0 else 0
        found.blocks.append(blocks)
        found.known.append(known)
        found.held.append(held)
    found.unseen = unseen / max(reused, 1)
    return found


def _answers(
    part: Part, measured: MeasuredRequests, parents: Sequence[int], found: _Held
) -> list[tuple[int, ...]]:
    """The blocks that each answer completes: the next turn's, or some that nobody asks for."""
    size, private = part.block_size, count(1)
    # the last token of an answer is not computed
    ends = (measured.prompt + measured.output - 1).astype(int) // size
    answers: dict[int, tuple[int, ...]] = {}
    open_turns: list[tuple[int, tuple[int, ...]]] = []
    num_told = num_sent_back = 0
    for number, parent in enumerate(parents):
        if parent < 0 or parent in answers:
            continue
        begin, blocks = len(found.blocks[parent]), found.blocks[number]
        if begin >= ends[parent] or blocks[:begin] != found.blocks[parent]:
            continue
        turn = blocks[begin : int(ends[parent])]
        held = found.held[number]
        if held < begin:  # it has been evicted, or was never heard of
            open_turns.append((parent, turn))
            continue
        num_told += 1
        if held > begin and found.known[number] <= begin:
            num_sent_back += 1
            answers[parent] = turn[: held - begin]
        else:
            answers[parent] = ()
    if num_sent_back * 2 > num_told:
        answers |= {parent: turn for parent, turn in open_turns if parent not in answers}
    return [
        given
        + tuple(-next(private) for _ in range(int(ends[n]) - len(found.blocks[n]) - len(given)))
        for n in range(len(part.requests))
        for given in [answers.get(n, ())]
    ]


def spans_of(measured: MeasuredRequests, row: int) -> tuple[NDArray[np.intp], Spans, Spans]:
    """Return the requests of an engine whose times are known, and the times in which their prompts
    were computed (or waited there) and their answers written."""
    here = np.flatnonzero((measured.row == row) & np.isfinite(measured.ttft + measured.latency))
    sent = measured.at[here] + measured.waited[here]
    first = np.maximum(measured.at[here] + measured.ttft[here], sent)
    end = np.maximum(measured.at[here] + measured.latency[here], first)
    return here, Spans.of(sent, first), Spans.of(first, end)


FEWEST = 50  # requests; of fewer, percentiles say nothing


class Asked(NamedTuple):
    """A recorded request, and the ids of the whole blocks of its prompt: equal ids are equal blocks
    behind equal blocks."""

    record: RequestRecord
    blocks: Sequence[int]


class EngineFacts(msgspec.Struct, frozen=True):
    """The facts that a recording has of one endpoint."""

    model: str = ""
    cache_blocks: int | None = None  # None: it has not told
    # what was learned of it last: expected-ttft's features -> ms
    costs: Mapping[str, float] = {}


class Recording(msgspec.Struct, frozen=True):
    """The requests of a recording in the order in which they came, and the endpoints by name."""

    requests: Sequence[Asked]
    engines: Mapping[str, EngineFacts] = {}
    damaged: Sequence[str] = ()  # a sentence for each file that could not be read to its end
    policy: str = ""  # as the gateway says it; empty: it has not


class Part(NamedTuple):
    """The requests of a recording that are replayed, all of one model and of one block size."""

    model: str
    block_size: int
    requests: Sequence[Asked]
    engines: Mapping[str, EngineFacts]
    judged_from: float  # Unix time: who came before only fills the caches
    notes: Sequence[str]  # sentences: what was left out, and why
    policy: str  # of most requests


@lru_cache(maxsize=2)
def read_recording(directory: Path) -> Recording:
    """Return all that the files of a folder have, each up to where it is damaged. Raises BenchError
    when there is nothing to read."""
    requests: list[Asked] = []
    engines: dict[str, EngineFacts] = {}
    try:
        reader = RecordReader(directory)
        for line in reader:
            if isinstance(line, FleetLine):
                _learn(engines, line)
            else:
                requests.append(Asked(line.record, line.blocks or ()))
    except ConfigError as e:
        raise BenchError(str(e)) from e
    except OSError as e:
        raise BenchError(
            f"{directory}: {(e.strerror or str(e)).lower()}; fix: files that this user may read"
        ) from e
    policies = [file.header.policy for file in reader.files if file.header is not None]
    damaged = [f"{said}; what is before that is replayed" for said in reader.damaged]
    return Recording(requests, engines, damaged, policies[-1] if policies else "")


def _learn(engines: dict[str, EngineFacts], line: FleetLine) -> None:
    for name in line.endpoints or (line.engine,):
        facts = engines.get(name, EngineFacts())
        if line.models:
            facts = msgspec.structs.replace(facts, model=line.models[0])
        if line.cache_blocks is not None:
            facts = msgspec.structs.replace(facts, cache_blocks=line.cache_blocks)
        if line.costs:
            facts = msgspec.structs.replace(facts, costs=line.costs)
        engines[name] = facts


def part_of(
    recording: Recording, model: str = "", since: float | None = None, until: float | None = None
) -> Part:
    """Return the requests of `model` (of the one with the most requests, if it is empty) that came
    until then; those before `since` only fill caches. Raises BenchError when too few are left."""
    asked = [each for each in recording.requests if until is None or each.record.at < until]
    notes = list(recording.damaged)
    model = _model(asked, model)
    of_model = [each for each in asked if each.record.model == model]
    if len(of_model) < len(asked):
        others = ", ".join(sorted({each.record.model for each in asked} - {model}))
        notes.append(f"requests of {others} are left out; inferway what-if --model chooses")
    replayed = sorted(filter(_is_replayed, of_model), key=lambda each: each.record.at)
    if len(replayed) < len(of_model):
        notes.append(
            f"{len(of_model) - len(replayed):,} of {len(of_model):,} requests are left out: no "
            "engine answered them, or nobody knows how long their prompts were"
        )
    judged_from = replayed[0].record.at if since is None and replayed else since or 0.0
    judged = [each for each in replayed if each.record.at >= judged_from]
    _check(judged, of_model, model)
    sizes = Counter(each.record.block_size for each in replayed if each.blocks)
    size = sizes.most_common(1)[0][0] if sizes else 16
    names = {each.record.chosen for each in replayed}
    engines = {
        name: recording.engines.get(name, EngineFacts())
        for name in sorted({*names, *_candidates(replayed)})
    }
    policies = Counter(each.record.picked_by for each in judged)
    policy = recording.policy or policies.most_common(1)[0][0]
    return Part(model, size, replayed, engines, judged_from, notes, policy)


def parse_time(text: str) -> float:
    """Return the Unix time of a number of seconds, or of a date and time as ISO 8601 has it, UTC
    unless it says otherwise. Raises ValueError."""
    try:
        seconds = float(text)
    except ValueError:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if not isfinite(seconds):
        raise ValueError(text)
    return seconds


def _model(asked: Sequence[Asked], model: str) -> str:
    counts = Counter(each.record.model for each in asked)
    if model and model not in counts:
        known = ", ".join(sorted(counts)) or "none"
        raise BenchError(f"--model {model}: no request of it was recorded; recorded: {known}")
    return model or (counts.most_common(1)[0][0] if counts else "")


def _is_replayed(each: Asked) -> bool:
    record = each.record
    return 200 <= record.status < 300 and bool(record.chosen) and prompt_tokens(record) > 0


def prompt_tokens(record: RequestRecord) -> int:
    """Return the tokens of the prompt: as the engine has counted them, else as we have."""
    return max(record.usage_prompt_tokens, 0) or record.prompt_tokens


def _candidates(replayed: Sequence[Asked]) -> Iterator[str]:
    for each in replayed:
        yield from (candidate.endpoint for candidate in each.record.candidates)


def _check(judged: Sequence[Asked], of_model: Sequence[Asked], model: str) -> None:
    if len(judged) < FEWEST:
        raise BenchError(
            f"{len(judged)} of {len(of_model)} recorded requests of {model or 'any model'} can be "
            f"replayed; {FEWEST} are needed at least; fix: record for longer, or replay a "
            "longer time"
        )
    if not any(each.record.streamed and each.record.ttft_ms > 0 for each in judged):
        raise BenchError(
            "no recorded answer was streamed, so no time to the first token is known; fix: "
            'clients that ask for "stream": true'
        )
