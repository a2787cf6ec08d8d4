"""Two prompts that are nearly the same: where they part, what differs there, and how much of the
one the other one has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.model import TokenIds
from inferway.prompts.served import LocalPrompts
from inferway_console.records.alignment import (
    WINDOW,
    Hashes,
    Rejoining,
    going_on,
    num_moved,
    rejoin,
    shared,
    window_hashes,
)
from inferway_console.records.differences import DifferenceKind, kind_of

FEW_TOKENS = 96  # that differ
MOST_INSERTED = 2_048  # tokens of a list that has grown
MOST_DROPPED = 8_192

ORDERS = (DifferenceKind.TOOL_ORDER, DifferenceKind.KEY_ORDER, DifferenceKind.ORDER)

_PIECE_BYTES = 140  # a number in a dict and in a list
_OWN_BYTES = 600
_BEFORE, _WIDE = 24, 1_536  # tokens that are made text of: around the place, and of parts in order
_MOVED = 2 * WINDOW  # pieces that come in another order
_STUB, _BEHIND = 48, 96  # tokens: of what stands in the place of dropped ones, and behind it
_LEFT_OF_DROPPED = 0.9  # of its pieces: else it was moved
_FEW_LEFT = 4  # tokens, on the side that lacks something
_NEAR = 512  # tokens, in which shorter parts may have been moved
_PERMUTED = 0.9  # of the tokens that differ are the same
_HEAD = 32  # characters that a message is found by
# What may be someone's own words, where it stands in a message of theirs.
_USERS_OWN = frozenset(
    {DifferenceKind.TEXT, DifferenceKind.NUMBER, DifferenceKind.GROWING_LIST, *ORDERS}
)
# What templates write between two messages.
_TURN = re.compile(r"<[|｜].{1,40}?[|｜]>|\[/?INST\]|<(?:start|end)_of_turn>")
# What stands in the place of what was left out.
_NOTE = re.compile(r"\b(?:omitted|elided|truncated|removed|cleared|left out|too long)\b", re.I)

Named = tuple[DifferenceKind, tuple[str, str]]  # and the texts around the place


@dataclass(slots=True, eq=False, repr=False)
class RememberedPrompt:
    """A prompt that is kept to compare others with."""

    token_ids: TokenIds
    pieces: Sequence[int]
    arguments: int  # a hash of what its template was asked for

    @property
    def num_bytes(self) -> int:
        return int(self.token_ids.nbytes) + len(self.pieces) * _PIECE_BYTES + _OWN_BYTES


class PromptPair(NamedTuple):
    """A prompt and one before it, with the hashes of both, and where they part."""

    prompt: RememberedPrompt
    other: RememberedPrompt
    hashes: Hashes
    others: Hashes
    parted: int

    def texts(self, local: LocalPrompts, left: int, right: int) -> tuple[str, str]:
        """Return both as text, from a little before the place up to these tokens."""
        start = max(0, self.parted - _BEFORE)
        return (
            local.decode(self.prompt.token_ids[start:left]),
            local.decode(self.other.token_ids[start:right]),
        )


def paired(
    prompt: RememberedPrompt, hashes: Hashes, other: RememberedPrompt, parted: int
) -> PromptPair:
    return PromptPair(prompt, other, hashes, window_hashes(other.token_ids), parted)


def what_differs(pair: PromptPair, local: LocalPrompts, asked: str) -> Named | None:
    """Return the kind, and the texts around the place; None if it is none of what breaks caches:
    too much differs, or what a user has said. `asked`: the first message of one."""
    again = rejoin(pair.hashes, pair.others, pair.parted, MOST_INSERTED)
    if again is None:
        return None
    named = _named(pair, again, local)
    if named is not None and named[0] in _USERS_OWN and _is_said(pair, again, local, asked):
        return None
    return named


def _named(pair: PromptPair, again: Rejoining, local: LocalPrompts) -> Named | None:
    parted = pair.parted
    ours, theirs = again.left - parted, again.right - parted
    around = pair.texts(local, again.left + WINDOW, again.right + WINDOW)
    near = slice(parted, parted + _WIDE)
    if num_moved(pair.hashes[near], pair.others[near]) >= _MOVED or _is_permuted(pair):
        wide = pair.texts(local, parted + _WIDE, parted + _WIDE)
        return kind_of(*wide, are_moved=True), around
    if pair.prompt.arguments != pair.other.arguments:
        return DifferenceKind.TEMPLATE_ARGUMENT, around
    if max(ours, theirs) <= FEW_TOKENS:
        kind = kind_of(*around)
        if kind is DifferenceKind.TEXT and theirs > ours:
            note = local.decode(pair.prompt.token_ids[parted : again.left])
            kind = DifferenceKind.SHORTENED if _NOTE.search(note) else kind
        return kind, around
    has_grown = theirs <= _FEW_LEFT and kind_of(*around) is DifferenceKind.GROWING_LIST
    return (DifferenceKind.GROWING_LIST, around) if has_grown else None


def _is_said(pair: PromptPair, again: Rejoining, local: LocalPrompts, asked: str) -> bool:
    """Return whether they part in this message, and are the same only behind its end."""
    if not asked:
        return False
    ids, start = pair.prompt.token_ids, max(0, pair.parted - MOST_INSERTED)
    before = local.decode(ids[start : pair.parted])
    begin = before.rfind(asked[: max(1, min(len(asked), _HEAD))])
    if begin < 0:  # they may part in its first words
        whole = local.decode(ids[start : again.left + WINDOW])
        begin = whole.find(asked, max(0, len(before) - _HEAD))
        return 0 <= begin <= len(before)
    end = len(local.decode(ids[start : again.left + WINDOW]))
    return len(before) < begin + len(asked) <= end


def shortened(pair: PromptPair, local: LocalPrompts) -> Named | None:
    """Return the texts around the place where turns have been dropped, or a long part of one; None
    if none have."""
    dropped, parted = _dropped(pair), pair.parted
    if dropped is None:
        return None
    if dropped.left - parted <= _FEW_LEFT:
        text = local.decode(pair.other.token_ids[parted : dropped.right])
        if not _TURN.search(text):
            return None
    around = pair.texts(local, dropped.left + WINDOW, min(dropped.right, parted + _WIDE))
    return DifferenceKind.SHORTENED, around


def _dropped(pair: PromptPair) -> Rejoining | None:
    """Return where the prompt goes on with what comes later in the other one, and what comes there
    first is not in it any more: a note stands in its place, at most."""
    parted = pair.parted
    near = pair.hashes[parted : parted + _STUB + _BEHIND]
    if len(near) < WINDOW:
        return None
    found = going_on(near, pair.others[parted : parted + MOST_DROPPED])
    if found is None or found.left > _STUB:
        return None
    again = Rejoining(parted + found.left, parted + found.right)
    dropped = pair.others[parted : max(again.right - WINDOW, parted) + 1]
    is_gone = shared(dropped, pair.hashes[parted:]).mean() < _LEFT_OF_DROPPED
    is_note = found.left <= _FEW_LEFT or found.right - found.left > FEW_TOKENS
    return again if is_gone and is_note else None


def _is_permuted(pair: PromptPair) -> bool:
    """Return whether what differs near the place is nearly the same tokens in both, in another
    order: parts that are too short to be pieces have been moved."""
    parted = pair.parted
    near = slice(parted, parted + _NEAR)
    _, at, other = np.intersect1d(pair.hashes[near], pair.others[near], return_indices=True)
    steady = np.abs(at - other) <= _FEW_LEFT  # what stands side by side
    if not steady.any():
        return False
    ours = _apart(pair.prompt.token_ids[parted:], at[steady])
    theirs = _apart(pair.other.token_ids[parted:], other[steady])
    most = max(ours.total(), theirs.total())
    return most >= WINDOW and (ours & theirs).total() >= _PERMUTED * most


def _apart(ids: TokenIds, places: NDArray[np.intp]) -> Counter[int]:
    """Return the tokens up to the last of these pieces that are in none of them."""
    is_apart = np.ones(int(places.max()) + WINDOW, np.bool_)
    is_apart[(places[:, None] + np.arange(WINDOW)).ravel()] = False
    return Counter(ids[: len(is_apart)][is_apart].tolist())


def num_lost(pair: PromptPair, start: int) -> int:
    """Return how many tokens behind `start` the other one has, too."""
    return int(shared(pair.hashes[start:], pair.others[pair.parted :]).sum()) + WINDOW - 1


def num_common(pair: PromptPair, start: int) -> int:
    """Return how many tokens behind `start` the other one has behind where they part, in any
    order."""
    ours = Counter(pair.prompt.token_ids[start:].tolist())
    return (ours & Counter(pair.other.token_ids[pair.parted :].tolist())).total()
