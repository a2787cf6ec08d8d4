"""Metric families of requests that ask for the shape of their answer."""

from __future__ import annotations

from collections.abc import Iterator

from inferway.metrics import Family, counter, gauge
from inferway.prompts.metrics import helper_families
from inferway.routing.structured_gate.counts import GateCounts
from inferway.routing.structured_gate.gate import Gate
from inferway_structured.sandbox.sandbox import SandboxStats


def structured_families(gate: Gate | None) -> Iterator[Family]:
    """Yield the metrics of structured output; without a gate they have no samples."""
    counts = GateCounts() if gate is None else gate.counts
    verdicts = None if gate is None else gate.verdicts
    answers = {} if verdicts is None else verdicts.counts.answers.snapshot()
    num_quarantined = 0 if gate is None else len(gate.quarantine)
    if verdicts is not None:
        num_quarantined += len(verdicts.quarantine)
    yield counter(
        "gate_requests",
        "Requests that ask for a shape of their answer, by the kind of the shape and by outcome.",
        ["kind", "outcome"],
        dict(counts.requests),
    )
    yield counter(
        "gate_check_seconds",
        "Seconds that requests waited for the check of their shape, in total.",
        value=counts.waited,
    )
    yield counter(
        "gate_answers",
        "Answers to requests with a shape, by whether the answer has the shape:"
        " true, false or unknown.",
        ["valid"],
        {(valid,): n for valid, n in answers.items()},
    )
    yield counter(
        "gate_warmed",
        "Shapes that engines were to compile in advance, by outcome: sent, failed or dropped.",
        ["outcome"],
        {(outcome,): n for outcome, n in counts.warmed.items()},
    )
    yield gauge(
        "gate_quarantined",
        "Shapes that are refused now because they have crashed an engine or a trial compile.",
        value=num_quarantined,
    )
    yield from helper_families({} if gate is None else _helpers(gate))


def _helpers(gate: Gate) -> dict[str, SandboxStats]:
    """Return the counters of the gate's helper processes, by their work."""
    if gate.verdicts is None:
        return {}
    return {work: helper.stats for work, helper in gate.verdicts.library.helpers.items()}
