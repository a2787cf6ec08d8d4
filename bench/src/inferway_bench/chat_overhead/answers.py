"""A sample of the load -> what one request of a pair took. Pure."""

from __future__ import annotations

import msgspec

from inferway_bench.chat_overhead.workload import Arm, Kind, Planned
from inferway_bench.loading.samples import Sample


class Outcome(msgspec.Struct, frozen=True):
    """One request. Times in microseconds; None where there is nothing to tell."""

    pair: int
    kind: Kind
    arm: Arm
    lag_us: int  # how much later than planned it left
    error: str | None = None
    ttft_us: int | None = None  # from sending to the first token's chunk
    itl_us: float | None = None  # mean time between tokens; of one token there is none
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # as the engine says
    matched_blocks: int | None = None  # as the gateway says
    engine: str | None = None


def outcome(planned: Planned, sample: Sample) -> Outcome:
    """What is not a whole stream of at least one token, with its usage, is an error."""
    sent = sample.intended if sample.sent is None else sample.sent
    lag_us = round((sent - sample.intended) * 1e6)
    error = sample.error
    if error is None and sample.completion_tokens is None:
        error = "a stream without usage"
    if error is not None:
        said = f"{error}: {sample.detail}" if sample.detail else error
        return Outcome(planned.pair, planned.kind, planned.arm, lag_us, said)
    headers, itl, ttft = sample.headers or {}, sample.itl, sample.ttft_sent
    return Outcome(
        pair=planned.pair,
        kind=planned.kind,
        arm=planned.arm,
        lag_us=lag_us,
        ttft_us=None if ttft is None else round(ttft * 1e6),
        itl_us=None if itl is None else round(itl * 1e6, 1),
        prompt_tokens=sample.prompt_tokens,
        completion_tokens=sample.completion_tokens,
        cached_tokens=sample.cached_tokens,
        matched_blocks=_number(headers.get("x-inferway-matched-blocks")),
        engine=headers.get("x-inferway-engine"),
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
