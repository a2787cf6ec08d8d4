"""Cache breakers in live traffic: prompts that are nearly the same and part early, because a few
tokens near their start differ.

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
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np

from inferway.errors import InferwayError, crash_report, panic_as_error
from inferway.extension import Extension, Snapshot
from inferway.kv.index.prefix_lengths import different_lengths
from inferway.kv.index.protocol import MatchResult
from inferway.model import TokenIds, block_size_of
from inferway.openai_api.requests import Body
from inferway.prompts.served import ServedModel
from inferway.routing.journey import Routed
from inferway.telemetry.added_up import added_up
from inferway_console.records.alignment import WINDOW, common_prefix, window_hashes
from inferway_console.records.differences import REMEDIES, DifferenceKind
from inferway_console.records.prompt_pair import (
    ORDERS,
    PromptPair,
    RememberedPrompt,
    num_common,
    num_lost,
    paired,
    shortened,
    what_differs,
)

log = logging.getLogger("inferway")

MAX_BYTES = 4 << 20  # of all prompts that are remembered
LOOKS_A_SECOND = 10
MOST_TOKENS = 16_384  # of a prompt are looked at
LEAST_LOST = 256  # tokens: less is not worth a word
LEAST_SHARE = 0.5  # of what comes behind the place where they part
MOST_BREAKERS = 256
SHOWN = 10
LEAST_REQUESTS = 3  # once is chance, twice may be a trial

_CANDIDATES = 4  # prompts that have the most of another one's pieces
_ONE_IN = np.uint64(32)  # of the pieces are remembered
_NONE = np.uint64(0)
_Sharers = tuple[str, str | None]  # model, and cache salt


class Look(msgspec.Struct, frozen=True):
    """A prompt that is to be looked at, as its request had it."""

    model: ServedModel
    body: Body
    token_ids: TokenIds
    block_size: int
    found: MatchResult
    at: float


@dataclass(slots=True)
class _Group:
    """Prompts that could share blocks."""

    # a set; the newest is the last
    prompts: dict[RememberedPrompt, None] = field(default_factory=dict)
    # piece -> the last that has it
    owners: dict[int, RememberedPrompt] = field(default_factory=dict)


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
class CacheBreakers(Extension):
    """An extension, which takes a microsecond or two; `work` does the rest, in any
    one thread. `keeps_text`: what differs is kept as text, one example of each."""

    name: ClassVar[str] = "breakers"

    keeps_text: bool = False
    max_bytes: int = MAX_BYTES
    seen: int = 0  # requests with a prompt
    looked_at: int = 0
    tokens: Counter[str] = field(default_factory=Counter)  # by model, of what was looked at
    num_bytes: int = 0
    breakers: dict[tuple[str, DifferenceKind, int], Breaker] = field(default_factory=dict)
    _others: Sequence[dict[str, Any]] = ()  # what other processes have told last
    _began: float | None = None
    _second: int = -1
    _looks: int = 0
    _waiting: deque[Look] = field(default_factory=lambda: deque(maxlen=2 * LOOKS_A_SECOND))
    # last seen last
    _kept: OrderedDict[RememberedPrompt, _Sharers] = field(default_factory=OrderedDict)
    _groups: dict[_Sharers, _Group] = field(default_factory=dict)

    def on_request(self, routed: Routed, seconds: float) -> None:  # noqa: ARG002
        if not routed.prompts:
            return
        self.seen += 1
        now = routed.candidates.now
        if int(now) != self._second:
            self._second, self._looks = int(now), 0
        elif self._looks >= LOOKS_A_SECOND:
            return
        cut, items = next(iter(routed.prompts.items()))
        if len(items) != 1 or len(items[0].prompt.token_ids) < LEAST_LOST:
            return
        self._looks += 1
        item = items[0]
        self._waiting.append(
            Look(
                *(routed.model, routed.request.body, item.prompt.token_ids, block_size_of(cut)),
                *(item.found, now),
            )
        )

    @property
    def has_work(self) -> bool:
        """True if prompts wait to be looked at."""
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
        """Return the causes that cost the most, the most first, for people and programs to read; of
        all processes that serve together."""
        own = self.own(now, limit)
        if not self._others:
            return own
        parts = [own, *self._others]
        whole = added_up(parts, same=("model", "kind", "blocks"), least=("last_seconds_ago",))
        whole["seconds"] = max(part["seconds"] for part in parts)
        for each in whole["breakers"]:  # each has told the share of its own tokens
            each["share"] = round(each["share"] / len(self._others), 4)
        whole["breakers"] = sorted(whole["breakers"], key=lambda each: -each["lost_tokens"])[:limit]
        return whole

    def snapshot(self, since: int) -> Snapshot:  # noqa: ARG002
        return Snapshot(msgspec.msgpack.encode(self.own(time.monotonic())))

    def merge(self, parts: Sequence[bytes]) -> None:
        self._others = [msgspec.msgpack.decode(part) for part in parts]

    def own(self, now: float, limit: int = SHOWN) -> dict[str, Any]:
        """Return the same of this process alone."""
        seconds = max(now - (now if self._began is None else self._began), 60.0)
        times = self.seen / max(self.looked_at, 1) * 86_400 / seconds
        items = list(self.breakers.items())  # `work` may add to them meanwhile
        known = [item for item in items if item[1].requests >= LEAST_REQUESTS]
        known.sort(key=lambda item: -item[1].lost_tokens)
        return {
            "requests": self.seen,
            "looked_at": self.looked_at,
            "seconds": round(seconds, 1),
            "breakers": [
                {**_told(key, each, times, now), "share": self._share(key[0], each)}
                for key, each in known[:limit]
            ],
        }

    def _share(self, model: str, found: Breaker) -> float:
        """Return which part of the model's prompt tokens the breaker has cost."""
        return round(found.lost_tokens / max(self.tokens[model], 1), 4)

    def _look(self, look: Look) -> None:
        if self._began is None:
            self._began = look.at
        self.looked_at += 1
        self.tokens[look.model.name] += len(look.token_ids)
        ids = look.token_ids[:MOST_TOKENS].copy()
        hashes = window_hashes(ids)
        pieces: list[int] = hashes[hashes % _ONE_IN == _NONE].tolist()
        sharers = (look.model.name, look.body.cache_salt)
        group = self._groups.setdefault(sharers, _Group())
        prompt = RememberedPrompt(ids, pieces, _arguments(look.body))
        other = _most_alike(prompt, group)
        if other is not None:
            pair = paired(prompt, hashes, other, common_prefix(ids, other.token_ids))
            nearest, longest = _nearest(prompt, group, other, pair.parted)
            goes_on = longest >= min(len(ids), len(nearest.token_ids)) - WINDOW
            if nearest is not other:
                self._note(look, paired(prompt, hashes, nearest, longest), pair)
            elif not goes_on:
                self._note(look, pair, pair)
            if goes_on:  # one of them, where the other ends
                self._forget(nearest)
                if len(nearest.token_ids) > len(ids):
                    prompt = nearest
        self._keep(sharers, prompt)

    def _note(self, look: Look, nearest: PromptPair, most_alike: PromptPair) -> None:
        """Note it if the prompt could have gone on with what the one nearest to it has, or the one
        that is the most alike."""
        held = max(different_lengths(look.found.blocks), default=0) * look.block_size
        start = max(nearest.parted, held)
        behind = len(nearest.prompt.token_ids) - start
        least = max(LEAST_LOST, LEAST_SHARE * behind)
        most = num_lost(most_alike, start)
        local = look.model.prompts.local
        if most < least or local is None:
            return
        dropped = shortened(most_alike, local)
        if dropped is not None:
            self._add(look, most_alike.parted, most, *dropped)
            return
        asked = _first_asked(look.body)
        for pair in (most_alike,) if nearest is most_alike else (nearest, most_alike):
            lost = most if pair is most_alike else num_lost(pair, start)
            named = what_differs(pair, local, asked) if lost >= least else None
            if named is not None:
                if named[0] in ORDERS:  # parts may be shorter than pieces
                    most = max(most, num_common(pair, start))
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

    def _keep(self, sharers: _Sharers, prompt: RememberedPrompt) -> None:
        group = self._groups.setdefault(sharers, _Group())
        group.prompts[prompt] = None
        group.owners.update(dict.fromkeys(prompt.pieces, prompt))
        self._kept[prompt] = sharers
        self.num_bytes += prompt.num_bytes
        while self.num_bytes > self.max_bytes and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, prompt: RememberedPrompt) -> None:
        sharers = self._kept.pop(prompt)
        self.num_bytes -= prompt.num_bytes
        group = self._groups[sharers]
        group.prompts.pop(prompt, None)
        for piece in prompt.pieces:
            if group.owners.get(piece) is prompt:
                del group.owners[piece]
        if not group.prompts:
            del self._groups[sharers]


def _most_alike(prompt: RememberedPrompt, group: _Group) -> RememberedPrompt | None:
    """Return who has the most of its pieces; None: nobody has any. What many have belongs to the
    last of them alone, so that a few are compared."""
    votes = Counter(filter(None, map(group.owners.get, prompt.pieces)))
    own = set(prompt.pieces)
    candidates = [each for each, _ in votes.most_common(_CANDIDATES)]
    return max(candidates, key=lambda each: len(own.intersection(each.pieces)), default=None)


def _nearest(
    prompt: RememberedPrompt, group: _Group, other: RememberedPrompt, parted: int
) -> tuple[RememberedPrompt, int]:
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


def _arguments(body: Body) -> int:
    """Return a hash of what asks the template for something else than messages and tools do."""
    named = ("chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "output_config")
    return hash(repr([getattr(body, name, None) for name in named]))


def _first_asked(body: Body) -> str:
    """Return the text of a user's first message; nothing if there is none."""
    for message in getattr(body, "messages", ()):
        if isinstance(message, dict) and message.get("role") == "user":
            text = message.get("content")
            return text.strip() if isinstance(text, str) else ""
    return ""


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
