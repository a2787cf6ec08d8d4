"""Open-loop load: each request leaves at its time, whether or not others are answered.

`python -m inferway_bench.chat_overhead.load PLAN OUT --url URL` reads `Planned` and writes
`Outcome`, one JSON object a line, in the plan's order.
"""

from __future__ import annotations

import gc
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from inferway_bench.chat_overhead.answers import Outcome, outcome
from inferway_bench.chat_overhead.workload import Planned
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive
from inferway_bench.loading.workload import Session, Turn

_PATIENCE = 60.0  # seconds that an answer gets
# What the official Python client sends besides the length.
_HEADERS = {"user-agent": "OpenAI/Python 2.8.1", "authorization": "Bearer dummy"}


async def send(url: str, plan: Sequence[Planned]) -> tuple[list[Outcome], float]:
    """Outcomes in the plan's order, and the share of a core that the sending took."""
    sessions = [
        Session(number, [Turn(fields=msgspec.json.decode(planned.body))], (planned.at,))
        for number, planned in enumerate(plan)
    ]
    target = Target(url, _HEADERS, timeout=_PATIENCE, keep_headers=True)
    driven = await drive(target, sessions, Pacing(), model="", fields={}, reads_late=True)
    samples = sorted(driven.samples, key=lambda sample: sample.session)
    found = [outcome(planned, sample) for planned, sample in zip(plan, samples, strict=True)]
    return found, driven.cpu_share


def main(argv: Sequence[str]) -> None:
    """Standard output gets one JSON object: the share of a core that the sending took."""
    parser = ArgumentParser(prog="python -m inferway_bench.chat_overhead.load")
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", required=True)
    arguments = parser.parse_args(argv)
    plan = [
        msgspec.json.decode(line, type=Planned) for line in arguments.plan.read_bytes().splitlines()
    ]
    gc.disable()  # a collection would be somebody's latency
    outcomes, share = uvloop.run(send(arguments.url, plan))
    arguments.out.write_bytes(b"".join(msgspec.json.encode(o) + b"\n" for o in outcomes))
    print(f'{{"cpu_share":{share:.4f}}}')


if __name__ == "__main__":
    main(sys.argv[1:])
