"""Hostile shapes, drawn, beside a plain stream, on a real engine with the plugin and on a stock
one: what the engine's processes grow by, and what the stream notices. `make hostile` runs it."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

from structured.tests.hostile_draws import hostile_specs
from tests.engines import client
from tests.engines.beside import PACE_SECONDS, burner, gaps, p99
from tests.engines.chats import CHAT
from tests.engines.engine import RealEngine, wait_until_ready
from tests.engines.shaped import chat, schema_form

from inferway_sim.prepare import prepare_smollm2
from inferway_structured.spec import Kind, Spec

ROOT = Path(__file__).parents[2]
NUM_CALM = 3  # streams beside a burner, before the first hostile shape
ANSWER_SECONDS = 30.0
SYSTEMS = {"Inferway": "1", "stock vLLM": "0"}


def fields_of(spec: Spec) -> dict[str, Any]:
    """As a client asks for it."""
    match spec.kind:
        case Kind.JSON:
            return {"response_format": schema_form(json.loads(spec.text))}
        case Kind.STRUCTURAL_TAG:
            return {"response_format": json.loads(spec.text)}
        case Kind.CHOICE:
            return {"structured_outputs": {"choice": json.loads(spec.text)}}
    return {"structured_outputs": {str(spec.kind): spec.text}}


def outcome_of(url: str, spec: Spec) -> str:
    body = chat("hello", max_tokens=4, **fields_of(spec))
    try:
        return str(client.post(url + CHAT, body, seconds=ANSWER_SECONDS).status)
    except (OSError, HTTPException) as error:
        late = isinstance(error, TimeoutError) or "timed out" in str(error)
        return f"none in {ANSWER_SECONDS:g} s" if late else "connection lost"


class Watched:
    """The engine's processes, but for the helpers: the API server and what computes."""

    def __init__(self, engine: RealEngine) -> None:
        self._pids = {engine.session: "API server", **dict.fromkeys(engine.core(), "engine core")}
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # its peak begins anew
        self._before = self._peaks()

    def grown(self) -> Mapping[str, float]:
        """The peak of each beyond what it had, in MiB."""
        peaks = self._peaks()
        return {name: round(peaks[name] - before) for name, before in self._before.items()}

    def _peaks(self) -> Counter[str]:
        peaks: Counter[str] = Counter()
        for pid, name in self._pids.items():
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            found = next(line for line in lines if line.startswith("VmHWM"))
            peaks[name] += int(found.split()[1]) // 1024
        return peaks


def measured(engine: RealEngine, specs: list[tuple[str, Spec]], seconds: float) -> dict[str, Any]:
    gaps(engine.url)  # what is done once
    with burner():
        calm = [p99(gaps(engine.url)) for _ in range(NUM_CALM)]
    watched = Watched(engine)
    outcomes: dict[str, str] = {}
    longest: list[tuple[float, str]] = []
    ended = threading.Event()

    def post_all() -> None:
        until = time.monotonic() + seconds
        for name, spec in specs:
            if time.monotonic() > until or engine.has_ended:
                break
            began = time.monotonic()
            outcomes[name] = outcome_of(engine.url, spec)
            longest.append((round(time.monotonic() - began, 1), name))
            time.sleep(PACE_SECONDS)
        ended.set()

    beside: list[list[float]] = []
    with ThreadPoolExecutor(1) as pool:
        posting = pool.submit(post_all)
        while not ended.is_set() and not engine.has_ended:
            try:
                beside.append(gaps(engine.url))
            except (OSError, HTTPException):  # no token for so long, or the engine is gone
                beside.append([float(client.SECONDS)] * 2)
        posting.result()
    lost = engine.has_ended or not engine.answers()
    p99s = [p99(one) for one in beside if len(one) > 1]
    return {
        "draws": len(outcomes),
        "outcomes": dict(Counter(outcomes.values())),
        "longest": sorted(longest)[-3:],
        "streams": len(p99s),
        "calm_p99_ms": round(statistics.median(calm), 1),
        "beside_p99_ms": round(statistics.median(p99s), 1),
        "worst_p99_ms": round(max(p99s), 1),
        "longest_gap_ms": round(max(itertools.chain(*beside)) * 1000, 1),
        "grown_mib": {} if lost else dict(watched.grown()),
        "lost": lost,
    }


def run(
    vllm: Path, specs: list[tuple[str, Spec]], seconds: float, say: Callable[[str], None]
) -> Any:
    found = {}
    for system, switch in SYSTEMS.items():
        with tempfile.TemporaryDirectory() as folder:
            environment = {
                "INFERWAY_STRUCTURED": switch,
                "PYTHONPATH": str(ROOT / "structured/src"),
            }
            log = Path(folder) / "engine.log"
            engine = RealEngine(
                vllm, prepare_smollm2(weights=True), log, (), environment, alone=True
            )
            try:
                engine.start()
                wait_until_ready([engine], say)
                found[system] = measured(engine, specs, seconds)
                say(f"{system}: {json.dumps(found[system])}")
            except Exception:
                say(engine.log_tail())
                raise
            finally:
                engine.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=1300)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for each engine")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    venv = Path(os.environ.get("INFERWAY_VLLM_VENV", ROOT / ".venv-vllm"))
    specs = hostile_specs(given.seed, given.draws)
    found = run(venv / "bin" / "vllm", specs, given.seconds, lambda line: print(line, flush=True))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
