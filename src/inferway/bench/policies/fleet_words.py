"""A simulated fleet, said in words."""

from __future__ import annotations

from inferway.bench.policies.simulate import FleetSpec


def engines_line(fleet: FleetSpec) -> str:
    """How many, and what a step takes."""
    engine = fleet.engine
    attention = ""
    if engine.attention_tokens:
        attention = f", twice that where it looks at {engine.attention_tokens:,} tokens"
    slow = f"{fleet.num_slow} of them {fleet.slow_factor:g} × slower" if fleet.num_slow else "alike"
    return (
        f"{fleet.num_engines:,} engines, {slow}. A step takes {engine.step_seconds * 1e3:g} ms, "
        f"{engine.decode_seconds * 1e3:g} ms for each request that decodes and "
        f"{engine.prefill_seconds * 1e6:g} µs for each prompt token that is computed{attention}; "
        f"at most {engine.max_batched_tokens:,} tokens a step and {engine.max_num_seqs} requests a "
        "batch"
    )


def lateness_line(fleet: FleetSpec) -> str:
    """How old is what gateways know."""
    return (
        f"Metrics are scraped every {fleet.scrape_seconds * 1e3:,g} ms, KV events arrive "
        f"{fleet.event_delay * 1e3:g} ms after the step that made them"
    )
