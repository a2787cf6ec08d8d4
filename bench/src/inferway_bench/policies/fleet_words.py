"""A simulated fleet, said in words."""

from __future__ import annotations

from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.simulate import FleetSpec


def engines_line(fleet: FleetSpec) -> str:
    """How many, and what a step takes."""
    engine = fleet.engine
    slow = "all alike"
    if fleet.num_slow:
        slow = f"{fleet.num_slow} of them {fleet.slow_factor:g} × slower"
    return (
        f"{fleet.num_engines:,} engines, {slow}. A step takes {step_words(engine)}. A step has "
        f"at most {engine.max_batched_tokens:,} tokens and {engine.max_num_seqs} requests"
    )


def step_words(engine: EngineSpec) -> str:
    """What a step takes."""
    context = attention = beside = scatter = ""
    if engine.context_seconds:
        context = f" (and {engine.context_seconds * 1e6:.4g} µs for each token of its context)"
    if engine.attention_tokens:
        attention = f" (twice that for one that attends to {engine.attention_tokens:,} others)"
    if engine.beside != 1.0:
        beside = f"; it takes {engine.beside:.4g} times as long while another engine computes"
    if engine.scatter:
        scatter = f"; step times have a standard deviation of {engine.scatter:.1%}"
    return (
        f"{engine.step_seconds * 1e3:.4g} ms, plus {engine.decode_seconds * 1e3:.4g} ms for each "
        f"request that decodes{context}, plus {engine.prefill_seconds * 1e6:.4g} µs for each "
        f"computed prompt token{attention}{beside}{scatter}"
    )


def lateness_line(fleet: FleetSpec) -> str:
    """How old is what gateways know."""
    return (
        f"Metrics are scraped every {fleet.scrape_seconds * 1e3:,g} ms, KV events arrive "
        f"{fleet.event_delay * 1e3:g} ms after the step that caused them"
    )
