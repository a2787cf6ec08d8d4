"""What breaks caches, from live traffic: prompts that are nearly the same and part early, because a
few tokens near their start differ.

A sample of prompts is looked at, off the request path. Each is compared with the prompts before it
that have most of its pieces (alignment.WINDOW tokens in a row, wherever they stand). It is *broken*
if

- it parts from such a prompt,
- most of what comes behind, and LEAST_LOST tokens of it, stands in that prompt all the same,
- no engine holds it up to there, and
- either what differs is short, or the same pieces come in another order.

An engine had computed these tokens, and computes them again. Prompts that go on, branch into
something else, or merely quote the same text are not broken. The few tokens around the place are
made text of in memory, to name what differs (`differences`); what is kept are a word and numbers.
The texts themselves are kept only where an operator has asked for that.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.errors import InferwayError, crash_report, panic_as_error
from inferway.kv.index.protocol import MatchResult
from inferway.model import TokenIds
from inferway.openai_api.requests import Body
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.served import ServedModel
from inferway.records.alignment import (
    WINDOW,
    Hashes,
    Rejoining,
    common_prefix,
    going_on,
    num_moved,
    rejoin,
    shared,
    window_hashes,
)
from inferway.records.differences import REMEDIES, DifferenceKind, kind_of
from inferway.routing.journey import Routed

log = logging.getLogger("inferway")

MAX_BYTES = 4 << 20  # of all prompts that are remembered
LOOKS_A_SECOND = 10
MOST_TOKENS = 16_384  # of a prompt are looked at
LEAST_LOST = 256  # tokens: less is not worth a word
LEAST_SHARE = 0.5  # of what comes behind the place where they part
FEW_TOKENS = 96  # that differ
MOST_INSERTED = 2_048  # tokens of a list that has grown
MOST_DROPPED = 8_192
MOST_BREAKERS = 256
SHOWN = 10
LEAST_REQUESTS = 3  # once is chance, twice may be a trial

_CANDIDATES = 4  # prompts that have the most of another one's pieces
_ONE_IN = np.uint64(32)  # of the pieces are remembered
_NONE = np.uint64(0)
_PIECE_BYTES = 140  # a number in a dict and in a list
_OWN_BYTES = 600
_BEFORE, _WIDE = 24, 1_536  # tokens that are made text of: around the place, and of parts in order
_MOVED = 2 * WINDOW  # pieces that come in another order
_STUB, _BEHIND = 48, 96  # tokens: of what stands in the place of dropped ones, and behind it
_LEFT_OF_DROPPED = 0.9  # of its pieces: else it was moved
_FEW_LEFT = 4  # tokens, on the side that lacks something
_NEAR = 512  # tokens, in which shorter parts may have been moved
_PERMUTED = 0.9  # of the tokens that differ are the same
_ORDERS = (DifferenceKind.TOOL_ORDER, DifferenceKind.KEY_ORDER, DifferenceKind.ORDER)
# What templates write between two messages.
_TURN = re.compile(r"<[|｜].{1,40}?[|｜]>|\[/?INST\]|<(?:start|end)_of_turn>")

_Sharers = tuple[str, str | None]  # model, and cache salt


class Look(msgspec.Struct, frozen=True):
    """A prompt that is to be looked at, as its request had it."""

    model: ServedModel
    body: Body
    token_ids: TokenIds
    block_size: int
    found: MatchResult
    at: float


@dataclass(slots=True, eq=False, repr=False)
class _Remembered:
    token_ids: TokenIds
    pieces: Sequence[int]
    arguments: int  # a hash of what its template was asked for

    @property
    def num_bytes(self) -> int:
        return int(self.token_ids.nbytes) + len(self.pieces) * _PIECE_BYTES + _OWN_BYTES


class _Pair(NamedTuple):
    """A prompt and one before it, with the hashes of both, and where they part."""

    prompt: _Remembered
    other: _Remembered
    hashes: Hashes
    others: Hashes
    parted: int

    def texts(self, local: ModelPrompts, left: int, right: int) -> tuple[str, str]:
        """Return both as text, from a little before the place up to these tokens."""
        start = max(0, self.parted - _BEFORE)
        return (
            local.decode(self.prompt.token_ids[start:left]),
            local.decode(self.other.token_ids[start:right]),
        )


@dataclass(slots=True)
class _Group:
    """Prompts that could share blocks."""

    prompts: dict[_Remembered, None] = field(default_factory=dict)  # a set; the newest is the last
    owners: dict[int, _Remembered] = field(default_factory=dict)  # piece -> the last that has it


@dataclass(slots=True)
class Breaker:
    """One cause, at about one place of a model's prompts."""

    requests: int = 0
    lost_tokens: int = 0
    last_at: float = 0.0
    first_token: int = 0  # the earliest place where prompts have parted
    block_size: int = 0
    example: tuple[str, str] | None = None  # only where texts are kept


@dataclass(slots=True, repr=False)
class CacheBreakers:
    """A routing.journey.Observer, which takes a microsecond or two; `work` does the rest, in any
    one thread. `keeps_text`: what differs is kept as text, one example of each."""

    keeps_text: bool = False
    max_bytes: int = MAX_BYTES
    seen: int = 0  # requests with a prompt
    looked_at: int = 0
    num_bytes: int = 0
    breakers: dict[tuple[str, DifferenceKind, int], Breaker] = field(default_factory=dict)
    _began: float | None = None
    _second: int = -1
    _looks: int = 0
    _waiting: deque[Look] = field(default_factory=lambda: deque(maxlen=2 * LOOKS_A_SECOND))
    _kept: OrderedDict[_Remembered, _Sharers] = field(default_factory=OrderedDict)  # last seen last
    _groups: dict[_Sharers, _Group] = field(default_factory=dict)

    def __call__(self, routed: Routed, _: float) -> None:
        if not routed.prompts:
            return
        self.seen += 1
        now = routed.candidates.now
        if int(now) != self._second:
            self._second, self._looks = int(now), 0
        elif self._looks >= LOOKS_A_SECOND:
            return
        block_size, items = next(iter(routed.prompts.items()))
        if len(items) != 1 or len(items[0].prompt.token_ids) < LEAST_LOST:
            return
        self._looks += 1
        item = items[0]
        self._waiting.append(
            Look(
                *(routed.model, routed.request.body, item.prompt.token_ids, block_size),
                *(item.found, now),
            )
        )

    @property
    def has_work(self) -> bool:
        """Whether prompts wait to be looked at."""
        return bool(self._waiting)

    def work(self, is_over: Callable[[], bool] | None = None) -> None:
        """Look at the prompts that wait. Once `is_over` says so, those that are left are let go."""
        while self._waiting:
            look = self._waiting.popleft()
            try:
                self._look(look)
            except InferwayError as e:
                log.debug("a prompt could not be compared with others: %s", e)
            except BaseException as e:
                report = crash_report(panic_as_error(e))
                log.error("a prompt could not be compared with others: %s", report)
            if is_over is not None and is_over():
                self._waiting.clear()

    def told(self, now: float, limit: int = SHOWN) -> dict[str, Any]:
        """Return the causes that cost the most, the most first, for people and programs to read."""
        seconds = max(now - (now if self._began is None else self._began), 60.0)
        times = self.seen / max(self.looked_at, 1) * 86_400 / seconds
        items = list(self.breakers.items())  # `work` may add to them meanwhile
        known = [item for item in items if item[1].requests >= LEAST_REQUESTS]
        known.sort(key=lambda item: -item[1].lost_tokens)
        return {
            "requests": self.seen,
            "looked_at": self.looked_at,
            "seconds": round(seconds, 1),
            "breakers": [_told(key, each, times, now) for key, each in known[:limit]],
        }

    def _look(self, look: Look) -> None:
        if self._began is None:
            self._began = look.at
        self.looked_at += 1
        ids = look.token_ids[:MOST_TOKENS].copy()
        hashes = window_hashes(ids)
        pieces: list[int] = hashes[hashes % _ONE_IN == _NONE].tolist()
        sharers = (look.model.name, look.body.cache_salt)
        group = self._groups.setdefault(sharers, _Group())
        prompt = _Remembered(ids, pieces, _arguments(look.body))
        other = _most_alike(prompt, group)
        if other is not None:
            pair = _paired(prompt, hashes, other, common_prefix(ids, other.token_ids))
            nearest, longest = _nearest(prompt, group, other, pair.parted)
            if longest >= min(len(ids), len(nearest.token_ids)) - WINDOW:
                self._forget(nearest)  # one of them goes on where the other ends
                if len(nearest.token_ids) > len(ids):
                    prompt = nearest
            else:
                self._note(look, _paired(prompt, hashes, nearest, longest), pair)
        self._keep(sharers, prompt)

    def _note(self, look: Look, nearest: _Pair, most_alike: _Pair) -> None:
        """Note it if the prompt could have gone on with what the one nearest to it has, or the one
        that is the most alike."""
        held = max(look.found.blocks.values(), default=0) * look.block_size
        start = max(nearest.parted, held)
        behind = len(nearest.prompt.token_ids) - start
        least = max(LEAST_LOST, LEAST_SHARE * behind)
        most = _num_lost(most_alike, start)
        local = look.model.prompts.local
        if most < least or local is None:
            return
        shortened = _shortened(most_alike, local)
        if shortened is not None:
            self._add(look, most_alike.parted, most, *shortened)
            return
        for pair in (nearest, most_alike):
            lost = most if pair is most_alike else _num_lost(pair, start)
            named = _what_differs(pair, local) if lost >= least else None
            if named is not None:
                if named[0] in _ORDERS:  # parts may be shorter than pieces
                    most = max(most, _num_common(pair, start))
                self._add(look, pair.parted, max(lost, most), *named)
                return

    def _add(
        self, look: Look, parted: int, lost: int, kind: DifferenceKind, example: tuple[str, str]
    ) -> None:
        size = look.block_size
        place = _place_class(parted // size)
        key = (look.model.name, kind, place)
        breaker = self.breakers.get(key)
        if breaker is None:
            if len(self.breakers) >= MOST_BREAKERS:
                del self.breakers[min(self.breakers, key=lambda k: self.breakers[k].lost_tokens)]
            breaker = self.breakers[key] = Breaker(first_token=parted, block_size=size)
        breaker.requests += 1
        breaker.lost_tokens += lost
        breaker.last_at = look.at
        breaker.first_token = min(breaker.first_token, parted)
        if self.keeps_text:
            breaker.example = example

    def _keep(self, sharers: _Sharers, prompt: _Remembered) -> None:
        group = self._groups.setdefault(sharers, _Group())
        group.prompts[prompt] = None
        group.owners.update(dict.fromkeys(prompt.pieces, prompt))
        self._kept[prompt] = sharers
        self.num_bytes += prompt.num_bytes
        while self.num_bytes > self.max_bytes and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, prompt: _Remembered) -> None:
        sharers = self._kept.pop(prompt)
        self.num_bytes -= prompt.num_bytes
        group = self._groups[sharers]
        group.prompts.pop(prompt, None)
        for piece in prompt.pieces:
            if group.owners.get(piece) is prompt:
                del group.owners[piece]
        if not group.prompts:
            del self._groups[sharers]


def _most_alike(prompt: _Remembered, group: _Group) -> _Remembered | None:
    """Return who has the most of its pieces; None: nobody has any. What many have belongs to the
    last of them alone, so that a few are compared."""
    votes = Counter(filter(None, map(group.owners.get, prompt.pieces)))
    own = set(prompt.pieces)
    candidates = [each for each, _ in votes.most_common(_CANDIDATES)]
    return max(candidates, key=lambda each: len(own.intersection(each.pieces)), default=None)


def _num_lost(pair: _Pair, start: int) -> int:
    """Return how many tokens behind `start` the other one has, too."""
    return int(shared(pair.hashes[start:], pair.others[pair.parted :]).sum()) + WINDOW - 1


def _num_common(pair: _Pair, start: int) -> int:
    """Return how many tokens behind `start` the other one has behind where they part, in any
    order."""
    ours = Counter(pair.prompt.token_ids[start:].tolist())
    return (ours & Counter(pair.other.token_ids[pair.parted :].tolist())).total()


def _nearest(
    prompt: _Remembered, group: _Group, other: _Remembered, parted: int
) -> tuple[_Remembered, int]:
    """Return which prompt has the most of it from the start, and how many tokens; `other` has it up
    to where they are `parted`."""
    ids = prompt.token_ids
    if parted >= len(ids):
        return other, parted
    nearest, longest = other, parted
    following = ids[parted]
    for each in reversed(group.prompts):
        theirs = each.token_ids
        if len(theirs) > parted and theirs[parted] == following:
            same = common_prefix(ids, theirs)
            if same > longest:
                nearest, longest = each, same
    return nearest, longest


def _paired(prompt: _Remembered, hashes: Hashes, other: _Remembered, parted: int) -> _Pair:
    return _Pair(prompt, other, hashes, window_hashes(other.token_ids), parted)


def _what_differs(
    pair: _Pair, local: ModelPrompts
) -> tuple[DifferenceKind, tuple[str, str]] | None:
    """Return the kind, and the texts around the place; None if it is none of what breaks caches:
    too much differs."""
    parted = pair.parted
    again = rejoin(pair.hashes, pair.others, parted, MOST_INSERTED)
    if again is None:
        return None
    ours, theirs = again.left - parted, again.right - parted
    around = pair.texts(local, again.left + WINDOW, again.right + WINDOW)
    near = slice(parted, parted + _WIDE)
    if num_moved(pair.hashes[near], pair.others[near]) >= _MOVED or _is_permuted(pair):
        wide = pair.texts(local, parted + _WIDE, parted + _WIDE)
        return kind_of(*wide, are_moved=True), around
    if pair.prompt.arguments != pair.other.arguments:
        return DifferenceKind.TEMPLATE_ARGUMENT, around
    if max(ours, theirs) <= FEW_TOKENS:
        return kind_of(*around), around
    has_grown = theirs <= _FEW_LEFT and kind_of(*around) is DifferenceKind.GROWING_LIST
    return (DifferenceKind.GROWING_LIST, around) if has_grown else None


def _shortened(
    pair: _Pair, local: ModelPrompts
) -> tuple[DifferenceKind, tuple[str, str]] | None:
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


def _dropped(pair: _Pair) -> Rejoining | None:
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


def _is_permuted(pair: _Pair) -> bool:
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


def _arguments(body: Body) -> int:
    """Return a hash of what asks the template for something else than messages and tools do."""
    named = ("chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "output_config")
    return hash(repr([getattr(body, name, None) for name in named]))


def _place_class(block: int) -> int:
    """Return the first block of those that count as one place: 0, 1 to 3, 4 to 15, ..."""
    return 0 if block == 0 else int(4 ** ((block.bit_length() - 1) // 2))


def _told(
    key: tuple[str, DifferenceKind, int], found: Breaker, times: float, now: float
) -> dict[str, Any]:
    model, kind, place = key
    remedy = REMEDIES[kind]
    told: dict[str, Any] = {
        "model": model,
        "kind": kind,
        "what": remedy.what,
        "cure": remedy.cure,
        "blocks": [place, 0 if place == 0 else 4 * place - 1],
        "first_token": found.first_token,
        "block_size": found.block_size,
        "requests": found.requests,
        "lost_tokens": found.lost_tokens,
        "tokens_a_day": round(found.lost_tokens * times),
        "last_seconds_ago": round(now - found.last_at, 1),
    }
    if found.example is not None:
        told["example"] = {"here": found.example[0], "before": found.example[1]}
    return told
