"""A simulated fleet, said in words."""

from __future__ import annotations

from inferway.bench.policies.engine import EngineSpec
from inferway.bench.policies.simulate import FleetSpec


def engines_line(fleet: FleetSpec) -> str:
    """How many, and what a step takes."""
    engine = fleet.engine
    slow = f"{fleet.num_slow} of them {fleet.slow_factor:g} × slower" if fleet.num_slow else "alike"
    return (
        f"{fleet.num_engines:,} engines, {slow}. A step takes {step_words(engine)}; at most "
        f"{engine.max_batched_tokens:,} tokens a step and {engine.max_num_seqs} requests a batch"
    )


def step_words(engine: EngineSpec) -> str:
    """What a step takes."""
    context = attention = beside = scatter = ""
    if engine.context_seconds:
        context = f" with {engine.context_seconds * 1e6:.4g} µs for each token before it"
    if engine.attention_tokens:
        attention = f", twice that where it looks at {engine.attention_tokens:,} tokens"
    if engine.beside != 1.0:
        beside = f"; {engine.beside:.4g} times all that while another engine computes"
    if engine.scatter:
        scatter = f"; give or take {engine.scatter:.1%}"
    return (
        f"{engine.step_seconds * 1e3:.4g} ms, {engine.decode_seconds * 1e3:.4g} ms for each "
        f"request that decodes{context} and {engine.prefill_seconds * 1e6:.4g} µs for each prompt "
        f"token that is computed{attention}{beside}{scatter}"
    )


def lateness_line(fleet: FleetSpec) -> str:
    """How old is what gateways know."""
    return (
        f"Metrics are scraped every {fleet.scrape_seconds * 1e3:,g} ms, KV events arrive "
        f"{fleet.event_delay * 1e3:g} ms after the step that made them"
    )
