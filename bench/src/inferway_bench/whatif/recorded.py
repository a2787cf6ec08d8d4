"""Files of `inferway serve --record DIR` -> a recording in memory, and the part of it that is asked
for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferway.errors import ConfigError
from inferway_bench.processes import BenchError
from inferway_console.records.files import FleetLine
from inferway_console.records.reader import RecordReader
from inferway_console.records.record import RequestRecord

FEWEST = 50  # requests; of fewer, percentiles say nothing


class Asked(NamedTuple):
    """A recorded request, and the ids of the whole blocks of its prompt: equal ids are equal blocks
    behind equal blocks."""

    record: RequestRecord
    blocks: Sequence[int]


class EngineFacts(msgspec.Struct, frozen=True):
    """What a recording says of one endpoint."""

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
