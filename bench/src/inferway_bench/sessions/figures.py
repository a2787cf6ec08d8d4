"""What a run of agents is judged by."""

from __future__ import annotations

import msgspec
import numpy as np

from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import Outcome
from inferway_bench.sessions.agents import Agents

# A turn is good whose first token comes within so many times what it takes on an idle engine that
# holds what the session has said before, and so many seconds:
GOOD_TIMES, GOOD_SECONDS = 2.0, 1.0


class SessionFigures(msgspec.Struct, frozen=True):
    """The turns and sessions of a stretch of time."""

    goodput: float  # good turns a second
    turns: float  # a second
    sessions: float  # that end, an hour
    cached: float  # %, of prompt tokens
    ttft_p50: float  # seconds, of all turns but the first of each session
    ttft_p90: float
    first_p50: float  # seconds to the first token of a session, with what it waited
    first_p90: float
    session_p50: float  # minutes, from its first turn until it ends; waiting and all


def figures(
    agents: Agents, engine: EngineSpec, outcome: Outcome, since: float, until: float
) -> SessionFigures:
    """Return those of the turns whose first token came, and the sessions that ended, between."""
    first_token = outcome.arrived + outcome.ttft
    counts = (outcome.num_ended > 0) & (first_token >= since) & (first_token < until)
    good = counts & (outcome.ttft <= agents.idle_seconds(engine) * GOOD_TIMES + GOOD_SECONDS)
    later, first = outcome.ttft[counts & ~agents.first], outcome.ttft[counts & agents.first]
    ended = _ended(agents, outcome, since, until)
    prompts = agents.workload.columns.prompt_tokens[counts]
    seconds = until - since
    return SessionFigures(
        goodput=float(good.sum()) / seconds,
        turns=float(counts.sum()) / seconds,
        sessions=len(ended) / seconds * 3600,
        cached=float(outcome.cached_tokens[counts].sum() / max(1, prompts.sum())) * 100,
        ttft_p50=_percentile(later, 50),
        ttft_p90=_percentile(later, 90),
        first_p50=_percentile(first, 50),
        first_p90=_percentile(first, 90),
        session_p50=_percentile(ended / 60, 50),
    )


def _ended(agents: Agents, outcome: Outcome, since: float, until: float) -> np.ndarray:
    """The seconds that each session took which ended between."""
    ends = outcome.arrived + outcome.latency
    began = np.zeros(int(agents.session.max()) + 1)
    began[agents.session[agents.first]] = outcome.arrived[agents.first]
    last = agents.last & (outcome.num_ended > 0) & (ends >= since) & (ends < until)
    took: np.ndarray = ends[last] - began[agents.session[last]]
    return took


def _percentile(values: np.ndarray, which: float) -> float:
    return float(np.percentile(values, which)) if len(values) else 0.0
