"""`python -m tests.soak`: many clients at a real gateway over simulated engines that are killed,
stopped, stalled, slowed down and cut off all the time; the figures into docs/results/soak.json.
Status 1 on any wrong answer, any request that does not end, any client that waits for longer than
its engine took and silence may last, any engine that is declared out while it is well, and on
anything that is left of requests in the gateway.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop
from tests.soak.hosts import check_hosts
from tests.soak.soak import Plan, Result, run

from inferway_bench.machine import this_machine
from inferway_bench.processes import BenchError

SECONDS = 1800


def main() -> int:
    options = _options()
    machine = this_machine()
    if options.blackholes:
        try:
            check_hosts("--no-blackholes")
        except BenchError as e:
            sys.exit(str(e))
    directory = options.keep or Path(tempfile.mkdtemp(prefix="inferway-soak-"))
    directory.mkdir(exist_ok=True)
    plan = Plan(
        *(options.seconds, options.seed, options.clients, options.engines, options.blackholes)
    )
    print(f"{plan}; logs in {directory}", flush=True)
    result = uvloop.run(run(plan, directory, _progress))
    print(file=sys.stderr)
    _show(result)
    failures = result.failures()
    for failure in failures:
        print(f"FAILED: {failure}")
    if options.out is not None and not failures:
        figures = {"machine": msgspec.to_builtins(machine), **msgspec.to_builtins(result)}
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return bool(failures)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of trouble")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is drawn")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument(
        "--no-blackholes",
        dest="blackholes",
        action="store_false",
        help="cut no host off, which needs root and `ip`",
    )
    parser.add_argument("--keep", type=Path, help="a directory for the logs")
    parser.add_argument("--out", type=Path, help="where the figures go, as docs/results/soak.json")
    return parser.parse_args()


def _progress(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _show(result: Result) -> None:
    for name, value in msgspec.to_builtins(result).items():
        print(f"{name:12} {json.dumps(value)}")


if __name__ == "__main__":
    sys.exit(main())
