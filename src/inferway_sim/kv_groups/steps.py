"""The ends of the steps in which a prompt is computed.

Rules from vLLM 0.32 (v1/core/sched/scheduler.py), written anew.
"""

from __future__ import annotations

from inferway_sim.kv_groups.spec import KvGroups


def step_end(
    config: KvGroups, *, start: int, num_tokens: int, num_prompt_tokens: int, junction: int
) -> int:
    """Return where the step ends that computes a request's tokens from `start` on. It has
    `num_tokens` tokens, the prompt's and those that it had said when it lost its place; `junction`
    is as in `RunState`."""
    end = min(num_tokens, start + config.max_num_batched_tokens)
    size = config.aligned_size
    prefill_end = max(num_prompt_tokens, num_tokens - 1)
    if size is not None and start < prefill_end:
        if end < prefill_end:
            end = end // size * size
        stops = [config.last_state(num_tokens, size)]
        if start % size:
            stops.append((start // size + 1) * size)
        if config.has_fine_hits:
            tail = config.last_state(num_prompt_tokens, config.hash_unit)
            if stops[0] < tail < num_prompt_tokens:
                stops.append(tail)
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        end = min((stop for stop in stops if start < stop < end), default=end)
    return end - _num_held_back(config, num_tokens - end)


def _num_held_back(config: KvGroups, remaining: int) -> int:
    """Return how many tokens a step leaves to the next one, so that the drafter can read ahead."""
    ahead = config.speculation.prefill_lookahead
    return ahead - remaining if 0 < remaining < ahead else 0
