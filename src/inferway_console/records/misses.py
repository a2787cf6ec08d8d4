"""Reasons for less reuse of a prompt than was possible: from what was known when it was decided,
and from what the engine has said. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferway.kv.events.removals import Removal
from inferway.routing.record import Record
from inferway_console.records.decided import DecidedRequest
from inferway_console.records.ms_in_words import ms_in_words
from inferway_console.records.record import A_TRY, Miss, MissKind


def of_decision(record: Record, noted: DecidedRequest, chosen: int) -> Sequence[Miss]:
    """Return why not the endpoint that held the most was chosen, and whether the engine has kept to
    itself what it reused. `chosen`: the blocks that the one held that was tried last."""
    elsewhere = noted.elsewhere
    found: tuple[Miss, ...] = ()
    if elsewhere is not None and elsewhere.blocks > max(chosen, noted.reachable):
        found = (_filtered(elsewhere.blocks - chosen, f"{elsewhere.endpoint}: {elsewhere.why}"),)
    elif noted.reachable > chosen:
        found = (_not_chosen(record, noted, noted.reachable - chosen),)
    layout = _held_in_vain(record, noted)
    if layout is not None:
        found = (*found, layout)
    usage = record.usage
    is_silent = usage is None or usage.cached is None
    if is_silent and record.reused_tokens and noted.tells and record.outcome == "ok":
        size = noted.block_size or 1
        return (*found, Miss(MissKind.SILENT, record.reused_tokens // size))
    return found


def _held_in_vain(record: Record, noted: DecidedRequest) -> Miss | None:
    """Return blocks held of full attention that the engine's other caches do not allow."""
    target = record.target
    reuse = None if target is None else noted.found.reuse.get(target.endpoint.holder)
    if target is None or reuse is None or not noted.block_size:
        return None
    whole = reuse.tokens // noted.block_size
    if reuse.held_blocks <= whole:
        return None
    detail = (
        f"{target.endpoint.name}: holds {reuse.held_blocks} blocks, reuses {whole}: {reuse.why}"
    )
    return Miss(MissKind.LAYOUT, reuse.held_blocks - whole, detail)


def _not_chosen(record: Record, noted: DecidedRequest, blocks: int) -> Miss:
    holder, target, surpassed = noted.reached, record.target, noted.surpassed
    if target is not None and target.endpoint is not noted.endpoint:
        if surpassed is None:
            return _filtered(blocks, f"{holder.name}: it failed the request")
        return _filtered(blocks, f"{holder.name}: {noted.endpoint.name} failed the request")
    if not noted.has_costs:
        return Miss(MissKind.MOVED_FOR_LOAD, blocks, f"{holder.name}: others had a higher score")
    if surpassed is not None and surpassed.spared_ms > 0:
        detail = f"{holder.name}: saved {ms_in_words(surpassed.spared_ms)}"
        return Miss(MissKind.MOVED_FOR_LOAD, blocks, detail)
    if noted.picked_by.endswith(A_TRY):
        return _filtered(blocks, f"{holder.name}: another one was tried, which is hardly known")
    return _filtered(blocks, f"{holder.name}: the scheduling left it out")


def _filtered(blocks: int, detail: str) -> Miss:
    return Miss(MissKind.FILTERED, blocks, detail)


class Evidence(NamedTuple):
    """The findings at an endpoint when a request had ended that reused less than was believed."""

    believed: int  # blocks that the index said it held when the request was decided
    held: int  # the same, as of now
    removal: Removal | None  # since, of one of those that were not delivered
    is_under_other: MissKind | None  # its first block was sent there with another salt or adapter
    context: int | None  # tokens that the engine takes
    is_current: bool = True  # its events are as far as the engine is


class Verdict(NamedTuple):
    misses: tuple[Miss, ...]
    is_wrong: bool  # the picture of the engine, and nothing tells why


def of_delivery(record: Record, noted: DecidedRequest, short: int, evidence: Evidence) -> Verdict:
    """Return why `short` blocks less were delivered than were believed to be there."""
    usage, size = record.usage, noted.block_size
    if usage is None or usage.cached is None:
        raise ValueError("the engine has not said what it reused")
    if usage.prompt != record.prompt_tokens and record.prompt_tokens and _is_known(record):
        return _innocent(_other_tokens(record, noted, short, usage.prompt, evidence.context))
    believed = record.reused_tokens // size
    # what was on its way there counted as held, and was not known to be
    unproven = min(short, max(believed - evidence.believed, 0))
    rest = short - unproven
    misses = []
    is_wrong = False
    if unproven:
        detail = "another request was computing it, and the engine has not kept it"
        misses.append(Miss(MissKind.NEVER_STORED, unproven, detail))
    if rest:
        miss, is_wrong = _known_to_be_there(noted, rest, evidence, believed - short)
        misses.append(miss)
    return Verdict(tuple(misses), is_wrong)


def _known_to_be_there(
    noted: DecidedRequest, blocks: int, evidence: Evidence, delivered: int
) -> tuple[Miss, bool]:
    removal = evidence.removal
    if removal is not None:
        when = f"{1000 * (removal.at - noted.at):.0f} ms after it was decided"
        batch = "" if removal.seq is None else f" {removal.seq}"
        if removal.keys is None:
            return Miss(MissKind.RESTART, blocks, f"all was dropped, {when}"), False
        return Miss(MissKind.EVICTED, blocks, f"event batch{batch}, {when}"), False
    if not evidence.is_current:
        return Miss(MissKind.STALE, blocks, "the engine's events were not up to date"), False
    if evidence.held < evidence.believed and evidence.held <= delivered:
        return Miss(MissKind.EVICTED, blocks, "an event batch that is no longer known"), False
    if evidence.is_under_other is not None and not delivered:
        kind = evidence.is_under_other
        return Miss(kind, blocks, "the engine's events do not tell them apart"), False
    return Miss(MissKind.STALE, blocks, "no event of the engine has told that it is gone"), True


def _other_tokens(
    record: Record, noted: DecidedRequest, short: int, counted: int, context: int | None
) -> Miss:
    ours = record.prompt_tokens
    detail = f"the engine has counted {counted} tokens, we {ours}"
    is_cut = noted.may_cut or (context is not None and ours >= context)
    if counted < ours and is_cut:
        return Miss(MissKind.TRUNCATED, short, detail)
    return Miss(MissKind.DIFFERS, short, detail)


def _innocent(miss: Miss) -> Verdict:
    return Verdict((miss,), is_wrong=False)


def _is_known(record: Record) -> bool:
    """Return whether the prompt was known to its end: of others only a prefix was counted."""
    return record.reason in ("kv-aware", "remote")
