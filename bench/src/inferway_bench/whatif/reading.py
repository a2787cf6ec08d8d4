"""Files of `inferway serve --record DIR` -> a recording in memory."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from inferway.errors import ConfigError
from inferway_bench.processes import BenchError
from inferway_bench.whatif.recorded import Asked, EngineFacts, Recording
from inferway_console.records.files import FleetLine
from inferway_console.records.reader import RecordReader


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
