"""`python -m tests.fuzz`: a million inputs on all cores, guided by coverage (atheris, which is
libFuzzer); the figures into docs/results/fuzz.json. Status 1 on any input for which `checks.check`
does not hold; it is shown, and kept in tests/fuzz/found/ for tests/fuzz/test_fuzz.py.

Coverage is of our Python; llhttp is compiled, and seen through what it calls.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from tests.fuzz.corpus import dictionary, seeds

from inferway_bench.machine import this_machine

FOUND = Path(__file__).parent / "found"
RUNS = 1_000_000
MAX_BYTES = 2048
_STEP = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)")
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")


def main() -> int:
    options = _options()
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        corpus = place / "corpus"
        corpus.mkdir()
        first = list(seeds())
        for number, seed in enumerate(first):
            (corpus / f"{number:04}").write_bytes(seed)
        (place / "words").write_text(dictionary())
        began = time.monotonic()
        workers = [_start(place, number, options) for number in range(options.jobs)]
        failed = [worker.wait() != 0 for worker in workers]
        seconds = time.monotonic() - began
        outputs = [
            (place / f"output-{number}").read_text(errors="replace")
            for number in range(options.jobs)
        ]
    reports = [_report(output) for output in outputs]
    for output, broken in zip(outputs, failed, strict=True):
        if broken:
            print(output[-4000:])
    runs = sum(report["runs"] for report in reports)
    print(f"{runs:,} inputs in {seconds:.0f} s, {sum(failed)} of {len(failed)} workers failed")
    if options.out is not None and not any(failed):
        result = {
            "machine": msgspec.to_builtins(this_machine()),
            "fuzzer": "atheris (libFuzzer), Python coverage of frontends.http and upstream",
            "inputs": runs,
            "wrong": 0,
            "seeds": len(first),
            "seconds": round(seconds),
            "workers": reports,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return any(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="inputs, of all workers together")
    parser.add_argument("--seconds", type=int, default=0, help="no longer than this; 0: no limit")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first worker")
    parser.add_argument("--out", type=Path, help="where the figures go, as docs/results/fuzz.json")
    return parser.parse_args()


def _start(place: Path, number: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Workers share what they find worth keeping."""
    arguments = [
        *[sys.executable, "-m", "tests.fuzz.worker", str(place / "corpus")],
        *[f"-runs={-(-options.runs // options.jobs)}", f"-seed={options.seed + number}"],
        *[f"-max_total_time={options.seconds}", f"-max_len={MAX_BYTES}", "-reload=10"],
        *[f"-dict={place / 'words'}", f"-artifact_prefix={FOUND}/", "-timeout=20"],
    ]
    with (place / f"output-{number}").open("wb") as output:
        return subprocess.Popen(arguments, stdout=output, stderr=output)


def _report(output: str) -> dict[str, Any]:
    steps, done = _STEP.findall(output), _DONE.search(output)
    runs, edges, features, corpus = map(int, steps[-1]) if steps else (0, 0, 0, 0)
    return {
        "runs": int(done[1]) if done else runs,
        "edges": edges,
        "features": features,
        "corpus": corpus,
    }


if __name__ == "__main__":
    sys.exit(main())
