"""What /metrics shows of requests that ask for the shape of their answer."""

from __future__ import annotations

from collections.abc import Iterator

from inferway.gate.counts import GateCounts
from inferway.gate.gate import Gate
from inferway.metrics import Family, counter, gauge
from inferway.prompts.metrics import helper_families
from inferway_structured.helper.helper import HelperStats


def structured_families(gate: Gate | None) -> Iterator[Family]:
    """Without a gate, no samples."""
    counts = GateCounts() if gate is None else gate.counts
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
        {(valid,): n for valid, n in counts.answers.items()},
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
        value=0 if gate is None else len(gate.quarantine),
    )
    yield from helper_families({} if gate is None else _helpers(gate))


def _helpers(gate: Gate) -> dict[str, HelperStats]:
    """By their work."""
    helpers = {} if gate.trial is None else {"structured-trial": gate.trial.helper.stats}
    if gate.library is not None and gate.library.helper is not None:
        helpers["structured"] = gate.library.helper.stats
    return helpers
