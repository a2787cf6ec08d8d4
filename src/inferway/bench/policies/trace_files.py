"""A file of requests -> a workload. Its format is recognised by its first line."""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path

from inferway.bench.policies.azure import HEAD, azure
from inferway.bench.policies.requests import Workload
from inferway.bench.policies.servegen import servegen
from inferway.bench.policies.traces import agentic, mooncake
from inferway.bench.processes import BenchError

# The project's data, `traces/`; its README has more.
FILES = {
    "mooncake": "mooncake_conversation_trace.jsonl.gz",
    "agentic": "claude_code_agentic_traces_305.jsonl.gz",
    "azure": "AzureLLMInferenceTrace_conv_2023.csv.gz",
    "servegen": "servegen_reason_deepseek_r1.jsonl.gz",
}
_FORMATS = "Mooncake's JSON lines, an agent's sessions, Azure's CSV, ServeGen's clients"


@lru_cache(maxsize=8)
def read_trace(path: Path, seed: int, most: int | None = None) -> Workload:
    """At most `most` of its requests; what is drawn is drawn with the seed. Raises BenchError when
    it is not there, or of no format that is known."""
    lines = _lines(path)
    first = lines[0] if lines else b""
    if first.startswith(HEAD):
        return azure(lines, most)
    if b'"trace_csv"' in first:
        return servegen(lines, seed, most)
    if b'"requests"' in first:
        return agentic(lines, seed, most)
    if b'"input_length"' in first:
        return mooncake(lines, most)
    raise BenchError(f"{path}: of no format that is known; known: {_FORMATS}")


@lru_cache(maxsize=1)
def _lines(path: Path) -> list[bytes]:
    if not path.is_file():
        raise BenchError(f"{path}: not there; the cure: give the path of the trace, or its folder")
    data = path.read_bytes()
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).splitlines()
