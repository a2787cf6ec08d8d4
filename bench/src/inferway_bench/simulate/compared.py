"""The same chats over HTTP and simulated, side by side: the same prompts in the same blocks at the
same times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import fmean

import numpy as np

from inferway.kv.blocks.keys import BlockHasher
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.loading.samples import Sample
from inferway_bench.loading.workload import Conversation, Session
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.requests import Outcome, SimRequest, Workload
from inferway_bench.policies.simple import Divided
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError

# Of engines whose times scatter, a run is one of many that could have been: ours reuses 1.5 points
# more or less from one to the next.
DRAWS = 16
_NEXT_DRAW = 10_000  # seeds


@dataclass(frozen=True, slots=True)
class Sent:
    """The chats of one seed, answered through one router."""

    router: str
    policy: str  # that simulates it
    seed: int
    samples: Sequence[Sample]
    workload: Workload  # the same as a simulation gets them
    rows: Mapping[int, int] | None = None  # where each session was, if the policy goes by that

    def __post_init__(self) -> None:
        """Raises BenchError when requests failed: then a simulation has others."""
        failed = [sample for sample in self.samples if not sample.ok]
        if failed or len(self.samples) != len(self.workload.requests):
            said = failed[0].detail or failed[0].error if failed else "some were not sent"
            raise BenchError(
                f"{self.router}: {len(failed)} of {len(self.samples)} requests failed: {said}"
            )

    @property
    def ttft(self) -> float:
        """The mean of what was measured, in seconds."""
        return float(np.mean([sample.ttft for sample in self.samples]))

    def simulated(self, fleet: FleetSpec) -> list[Outcome]:
        """Simulate the chats; more than once where times scatter."""
        rows, named, work = self.rows, policy_named(self.policy), self.workload
        make = named if rows is None else lambda _: Policy(Divided(rows))
        seeds = range(self.seed, self.seed + _NEXT_DRAW * DRAWS, _NEXT_DRAW)
        return [
            simulate(work, work.own_rate, fleet, make, seed)
            for seed in (seeds if fleet.engine.is_random else seeds[:1])
        ]

    def simulated_ttft(self, fleet: FleetSpec) -> float:
        """Return the mean of what is simulated on a fleet, in seconds."""
        return fmean(float(outcome.ttft.mean()) for outcome in self.simulated(fleet))


def compared(sent: Sent, fleet: FleetSpec) -> dict[str, float]:
    """Return the mean figures of the chats, measured and simulated; times in ms, shares in %."""
    samples, workload = sent.samples, sent.workload
    simulated = [one.figures(workload, workload.own_rate) for one in sent.simulated(fleet)]
    cached = sum(s.cached_tokens or 0 for s in samples) / sum(s.prompt_tokens or 0 for s in samples)
    return {
        "requests": len(samples),
        "rate": workload.own_rate,
        "ttft": sent.ttft * 1e3,
        "simulated_ttft": fmean(one.ttft for one in simulated),
        "itl": fmean(s.itl for s in samples if s.itl is not None) * 1e3,
        "simulated_itl": fmean(one.itl for one in simulated),
        "cached": cached * 100,
        "simulated_cached": fmean(one.cached for one in simulated),
    }


def as_workload(sessions: Sequence[Session], prompts: EnginePrompts, block_tokens: int) -> Workload:
    """Return all turns of `sessions` at their intended times. Their answers are replaced by what
    the sessions say, so none of an answer's blocks is reused; but they are kept, and displace
    others."""
    hasher = BlockHasher(block_tokens)
    requests, numbers = [], count(1)
    for session in sessions:
        conversation = Conversation()
        for turn, at in zip(session.turns, session.at, strict=True):
            _, body = conversation.ask(turn, {"model": "any"})
            ids = np.array(prompts.token_ids(body), np.uint32)
            blocks, output = tuple(hasher.keys(ids)), int(turn.fields["max_tokens"])
            # the last token of an answer is not computed
            num_answer = (len(ids) + output - 1) // block_tokens - len(blocks)
            requests.append(
                SimRequest(
                    blocks=blocks,
                    prompt_tokens=len(ids),
                    output_tokens=output,
                    session=session.number,
                    start=at,
                    # no key is negative
                    answer_blocks=tuple(-next(numbers) for _ in range(num_answer)),
                )
            )
            conversation.hear(turn, "")
    requests.sort(key=lambda request: request.start)
    return Workload("sent", "chats that were sent over HTTP", block_tokens, requests)
