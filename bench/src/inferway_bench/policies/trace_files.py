"""Files of requests -> workloads. The first line of a file says which format it has."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from inferway_bench.packed import unpacked
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.servegen import servegen
from inferway_bench.policies.traces import AZURE_HEAD, agentic, azure, mooncake
from inferway_bench.processes import BenchError

# In `traces/` of `bench/data`, whose README has more; there they are packed.
FILES = {
    "mooncake": "mooncake_conversation_trace.jsonl",
    "agentic": "claude_code_agentic_traces_305.jsonl",
    "azure": "AzureLLMInferenceTrace_conv_2023.csv",
    "servegen": "servegen_reason_deepseek_r1.jsonl",
}
_FORMATS = "Mooncake's JSON lines, an agent's sessions, Azure's CSV, ServeGen's clients"


def stored(traces: Path, name: str) -> Path:
    """Return the file of one of `FILES` in a folder, packed or not; the packed one if none is
    there."""
    files = [traces / f"{FILES[name]}{ending}" for ending in (".xz", ".gz", "")]
    return next((file for file in files if file.is_file()), files[0])


@lru_cache(maxsize=8)
def read_trace(path: Path, seed: int, most: int | None = None) -> Workload:
    """Return the requests of a file, at most `most`; what is drawn is drawn with the seed. Raises
    BenchError when the file is not there, or of no format that is known."""
    lines = _lines(path)
    first = lines[0] if lines else b""
    if first.startswith(AZURE_HEAD):
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
    return unpacked(path).splitlines()
