"""A decision -> why the request goes where it goes, for people and programs to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inferway.fleet.columns import STATES
from inferway.kv.index.protocol import MatchResult, Tier
from inferway.model import Candidates, HolderId, Target
from inferway.routing.director import Weighed
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import (
    COST_MS,
    DECODE_MS,
    PREFILL_MS,
    TERMS_MS,
    TRANSFER_MS,
    is_try,
)
from inferway_console.records.ms_in_words import ms_in_words
from inferway_console.records.packing import LATE, TERMS

TIERS = ("gpu", "cpu", "storage")  # the names of kv.index.protocol's
ON_ITS_WAY = "on-its-way"  # blocks of a prompt that is being computed there

# The terms in words: what of them makes one endpoint dearer than another.
WORDS = {
    "fixed": "it is slower whatever is asked",
    "own": "more tokens of the prompt must be computed there",
    "pairs": "more of a long prompt must be computed there",
    "waiting": "more tokens wait ahead",
    "queue": "more requests wait ahead",
    "batch": "more requests run there",
    LATE: "its first request waits longer than it should",
    "others": "it would cost other requests more",
}


class CandidateView(msgspec.Struct, frozen=True):
    """The figures of one endpoint, as they were known."""

    endpoint: str
    chosen: bool
    blocks: int  # of the prompt that it holds, from the first on without a hole
    prompt_blocks: int
    block_size: int
    runs: Sequence[tuple[str, int]]  # of the blocks it holds: where they lie, how many
    picture: str  # how true what is believed of its cache is
    in_flight: int
    running: int
    waiting: int
    expected_ttft_ms: float | None = None  # None: not expected by milliseconds
    terms: Mapping[str, float] | None = None  # what that is made up of
    others_ms: float | None = None  # what the request costs others there
    cost_ms: float | None = None  # in all
    legs: Mapping[str, float] | None = None  # of a request in two legs
    score: float | None = None  # only of those that are tried
    why_not: str = ""  # empty: it is chosen
    reuse: str = ""  # why it reuses less than it holds; empty: it reuses all, or nothing is held


def candidate_views(weighed: Weighed) -> list[CandidateView]:
    """Return all candidates: the chosen one, those that would be tried after it, then the others
    by what they cost."""
    targets = {target.endpoint.holder: target for target in weighed.choice.targets}
    order = {holder: place for place, holder in enumerate(targets)}
    candidates = weighed.candidates
    cost = candidates.get(COST_MS)
    rows = sorted(
        range(len(candidates.endpoints)),
        key=lambda row: (
            order.get(candidates.endpoints[row].holder, len(order)),
            0.0 if cost is None else cost.item(row),
        ),
    )
    first = next(iter(targets), None)
    chosen = None if first is None else candidates.rows.get(first)
    return [_view(weighed, row, chosen, targets) for row in rows]


def why(weighed: Weighed, views: Sequence[CandidateView]) -> str:
    """Return in a sentence why the first of the candidates is chosen."""
    if not views:
        return "no endpoint is left"
    chosen, reason = views[0], weighed.reason
    if len(views) == 1:
        return f"{chosen.endpoint} is the only endpoint that may get it"
    if reason.is_by_load:
        return f"nothing is known of its prompt ({reason}), so load alone decides"
    rows = [weighed.candidates.rows.get(each.endpoint.holder) for each in weighed.choice.targets]
    if rows and rows[0] is not None and is_try(weighed.candidates, rows[0]):
        return (
            f"{chosen.endpoint} is tried: it is hardly known, has nothing to do, and is expected to"
            f" cost {ms_in_words(chosen.cost_ms or 0.0)}"
        )
    held = f"{chosen.blocks} of {chosen.prompt_blocks} blocks are held there"
    if chosen.reuse:
        held = f"{chosen.blocks} of {chosen.prompt_blocks} blocks are reused there ({chosen.reuse})"
    longest = max(views, key=lambda view: view.blocks)
    if longest.blocks > chosen.blocks:
        more = "" if longest.cost_ms is None else f", and {longest.why_not}"
        return f"{held}; {longest.endpoint} holds {longest.blocks}{more}"
    if chosen.cost_ms is None:
        return f"{held}, and its score is the highest"
    return (
        f"{held}, which nobody exceeds; its first token is expected after"
        f" {ms_in_words(chosen.expected_ttft_ms or 0.0)}, and its cost in all,"
        f" {ms_in_words(chosen.cost_ms)}, is the least"
    )


def tier_runs(found: MatchResult, holder: HolderId, blocks: int) -> list[tuple[str, int]]:
    """Return where the first `blocks` of a prompt lie at the holder, in runs. Blocks that it is
    believed to get, beyond those that it has, are on their way."""
    held = min(found.blocks.get(holder, 0), blocks)
    lower: Mapping[Tier, int] = found.lower.get(holder, {})
    runs: list[tuple[str, int]] = []
    start, tier = 0, 0
    for place, below in sorted((place, tier) for tier, place in lower.items()):
        if place >= held:
            break
        if place > start:
            runs.append((_tier(tier), place - start))
        start, tier = place, below
    if held > start:
        runs.append((_tier(tier), held - start))
    if blocks > held:
        runs.append((ON_ITS_WAY, blocks - held))
    return runs


def _tier(tier: Tier) -> str:
    return TIERS[min(tier, len(TIERS) - 1)]


def _view(
    weighed: Weighed, row: int, chosen: int | None, targets: Mapping[HolderId, Target]
) -> CandidateView:
    candidates = weighed.candidates
    endpoint = candidates.endpoints[row]
    size = int(candidates.block_sizes[row])
    items = weighed.prompts.get(int(candidates.cuts[row]), ())
    blocks = int(candidates.matched_blocks[row]) if weighed.prompts else 0
    runs: list[tuple[str, int]] = []
    if len(items) == 1:
        runs = tier_runs(items[0].found, endpoint.holder, blocks)
    elif blocks:
        runs = [(_tier(0), blocks)]
    target = targets.get(endpoint.holder)
    return CandidateView(
        endpoint=endpoint.name,
        chosen=row == chosen,
        blocks=blocks,
        prompt_blocks=int(candidates.prompt_blocks[row]) if weighed.prompts else 0,
        block_size=size,
        runs=runs,
        picture=str(STATES[int(candidates.states[row])]),
        in_flight=int(candidates.in_flight[row]),
        running=int(candidates.running[row]),
        waiting=int(candidates.waiting[row]),
        score=None if target is None else _rounded(target.score),
        why_not=_why_not(candidates, row, chosen),
        reuse=_reuse(items[0].found, endpoint.holder, size) if len(items) == 1 else "",
        **_costs(candidates, row),
    )


def _reuse(found: MatchResult, holder: HolderId, size: int) -> str:
    reuse = found.reuse.get(holder)
    if reuse is None or reuse.tokens >= reuse.held_blocks * size:
        return ""
    return f"holds {reuse.held_blocks} blocks, reuses {reuse.tokens // size}: {reuse.why}"


def _costs(candidates: Candidates, row: int) -> dict[str, Any]:
    ttft, cost = candidates.get(EXPECTED_TTFT_MS), candidates.get(COST_MS)
    if ttft is None or cost is None:
        return {}
    expected, whole = ttft.item(row), cost.item(row)
    legs = {
        name: _rounded(column.item(row))
        for name, key in (
            ("prefill_ms", PREFILL_MS),
            ("decode_ms", DECODE_MS),
            ("transfer_ms", TRANSFER_MS),
        )
        if (column := candidates.get(key)) is not None
    }
    return {
        "expected_ttft_ms": _rounded(expected),
        "terms": {name: _rounded(part) for name, part in _terms(candidates, row).items()},
        "others_ms": _rounded(whole - expected),
        "cost_ms": _rounded(whole),
        "legs": legs or None,
    }


def _terms(candidates: Candidates, row: int) -> dict[str, float]:
    terms, ttft = candidates.get(TERMS_MS), candidates.get(EXPECTED_TTFT_MS)
    if terms is None or ttft is None:
        return {}
    parts = dict(zip(TERMS, terms[row].tolist(), strict=True))
    late = ttft.item(row) - sum(parts.values())
    return parts | ({LATE: late} if late > 0.01 else {})


def _why_not(candidates: Candidates, row: int, chosen: int | None) -> str:
    if chosen is None or row == chosen:
        return ""
    cost, ttft = candidates.get(COST_MS), candidates.get(EXPECTED_TTFT_MS)
    if cost is None or ttft is None:
        return "its score is not the highest, or a filter left it out"
    more = cost.item(row) - cost.item(chosen)
    if more <= 0.0:
        if more == 0.0:
            return "as good; equals take turns"
        if is_try(candidates, chosen):
            return f"cheaper, but {candidates.endpoints[chosen].name} is tried: it is hardly known"
        return "cheaper, but a filter or another scorer went before"
    ours = _terms(candidates, row) | {"others": cost.item(row) - ttft.item(row)}
    theirs = _terms(candidates, chosen) | {"others": cost.item(chosen) - ttft.item(chosen)}
    most = max(ours, key=lambda name: ours[name] - theirs.get(name, 0.0))
    return f"costs {ms_in_words(more)} more, above all because {WORDS[most]}"


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if value == value and abs(value) != float("inf") else None
