"""Causes that break the caches of conversations: where the prompt of a next turn begins to differ
from the one before, and by what.

A sample of conversations is followed, an agent's or anybody's: no more than MOST_CONVERSATIONS at
a time and LOOKS_A_SECOND. What is kept of a prompt is hashes and numbers: some of its block keys,
which are chained and so say how far two prompts are equal, and a hash of each tool and of each line
of the system prompt, which say what differs. No text is kept; the line that differs is looked at
while its request is here.

A turn is *kept* if its prompt begins with nearly all of the one before. Some of the end may differ:
templates drop the reasoning of earlier turns. Otherwise it is *broken*, by the first of

tools-order      the same tools, in another order
tools            other tools
hash             a line of the system prompt, in a hash, an id or a `cch=`
time             ... in a date or a time
system           ... in anything else
inline-system    another number of system messages among the others
history          what was said before
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from typing import Any

import msgspec

from inferway.extension import Extension
from inferway.model import BlockKey, block_size_of
from inferway.openai_api.requests import (
    BILLING_HEADER,
    Body,
)
from inferway.routing.journey import Routed
from inferway.telemetry.clients import AGENT_BYTES, family, user_agent

JsonObject = dict[str, Any]

MOST_CONVERSATIONS = 256
LOOKS_A_SECOND = 10
GONE_AFTER = 600.0  # seconds without a turn: its place may be taken

_KEPT = 0.8  # of the earlier prompt's blocks
_SHORTEST = 4  # blocks: less is no evidence
_MOST_LINES, _MOST_TOOLS, _MOST_MESSAGES = 2_000, 1_000, 16
_ENDS = 256  # characters of a text that tell a conversation from others, at both of its ends

_HASH = re.compile(r"cch=|\b[0-9a-f]{8}-[0-9a-f]{4}-|\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.I)
_TIME = re.compile(
    r"\b\d{4}-\d\d-\d\d|\b\d{1,2}:\d\d\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d{1,2}\b"
    r"|\b\d{1,2} (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b1[6-9]\d{8}\b",
    re.I,
)


class Seen(msgspec.Struct, frozen=True):
    """A conversation as it was at its last turn."""

    at: float
    num_messages: int
    num_blocks: int
    marks: Sequence[tuple[int, BlockKey]]  # some blocks' places and keys, the last one's among them
    tools: Sequence[int]
    lines: Sequence[int]  # of the system prompt
    num_inline: int  # system messages among the others


@dataclass(slots=True)
class Conversations(Extension):
    """Counts broken turns. `today`: the date, where clocks are wrong or tests run."""

    today: Callable[[], date] = date.today
    looked_at: int = 0  # requests
    with_tools: int = 0
    with_inline_system: int = 0
    dated: int = 0  # that have today's date near the start of their system prompt
    turns: int = 0  # that follow another
    kept: int = 0
    # (cause, client's family) -> turns; and those of them that differ in the first block
    broken: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_first_block: Counter[tuple[str, str]] = field(default_factory=Counter)
    _seen: OrderedDict[int, Seen] = field(default_factory=OrderedDict)
    _second: int = -1
    _looks: int = 0

    def on_request(self, routed: Routed, seconds: float) -> None:  # noqa: ARG002
        now = routed.candidates.now
        if int(now) != self._second:
            self._second, self._looks = int(now), 0
        elif self._looks >= LOOKS_A_SECOND:
            return
        body = routed.request.body
        messages = body.turns
        if messages is None or not routed.prompts:
            return
        opening = _opening(messages)
        if opening is None:
            return
        request = routed.request
        client = user_agent(request.headers)
        whose = (type(body), client, routed.model.name, request.tenant, body.cache_salt)
        name = hash((opening, whose))
        if name in self._seen or self._has_room(now):
            self._looks += 1
            self._look(name, routed, messages, client)

    def _has_room(self, now: float) -> bool:
        if len(self._seen) < MOST_CONVERSATIONS:
            return True
        name, oldest = next(iter(self._seen.items()))
        if now - oldest.at < GONE_AFTER:
            return False
        del self._seen[name]
        return True

    def _look(
        self, name: int, routed: Routed, messages: Sequence[JsonObject], client: bytes
    ) -> None:
        cut, items = next(iter(routed.prompts.items()))
        block_size = block_size_of(cut)
        keys, body = items[0].prompt.block_keys, routed.request.body
        lines = _system_lines(body, messages)
        inline = sum(_is_system(message) for message in islice(messages, 1, None))
        before = self._seen.get(name)
        self._seen[name] = seen = Seen(
            routed.candidates.now,
            len(messages),
            len(keys),
            [(place, keys[place]) for place in _places(len(keys))],
            [hash(repr(tool)) for tool in islice(body.tools or (), _MOST_TOOLS)],
            [hash(line) for line in lines],
            inline,
        )
        self._seen.move_to_end(name)
        self.looked_at += 1
        self.with_tools += bool(seen.tools)
        self.with_inline_system += inline > 0
        self.dated += _has_date(lines, self.today(), 4 * block_size)
        if before is not None and before.num_messages < seen.num_messages:
            self._compare(before, seen, lines, keys, family(client[:AGENT_BYTES]))

    def _compare(
        self, before: Seen, seen: Seen, lines: Sequence[str], keys: Sequence[BlockKey], client: str
    ) -> None:
        if before.num_blocks < _SHORTEST:
            return
        self.turns += 1
        equal = [place for place, key in before.marks if place < len(keys) and keys[place] == key]
        num_equal = equal[-1] + 1 if equal else 0
        if num_equal >= _KEPT * before.num_blocks:
            self.kept += 1
            return
        cause = _cause(before, seen, lines)
        self.broken[cause, client] += 1
        if not num_equal:
            self.in_first_block[cause, client] += 1

    def told(self) -> JsonObject:
        """Return what is known so far, for people and programs to read."""
        return {
            "requests": self.looked_at,
            "with_tools": self.with_tools,
            "with_inline_system": self.with_inline_system,
            "dated": self.dated,
            "turns": self.turns,
            "kept": self.kept,
            "broken": [
                {
                    "cause": cause,
                    "client": client,
                    "turns": turns,
                    "in_first_block": self.in_first_block[cause, client],
                }
                for (cause, client), turns in self.broken.most_common()
            ],
        }


def _opening(messages: Sequence[JsonObject]) -> object | None:
    """Return what tells a conversation from others: the ends of the first thing that its user
    says. None if that is not near the beginning."""
    for message in islice(messages, _MOST_MESSAGES):
        if message.get("role") == "user":
            texts = _texts(message.get("content"))
            return tuple([(len(text), text[:_ENDS], text[-_ENDS:]) for text in islice(texts, 8)])
    return None


def _texts(content: object) -> Iterable[str]:
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list):
        return ()
    parts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return (text for text in parts if isinstance(text, str))


def _is_system(message: JsonObject) -> bool:
    return message.get("role") in ("system", "developer")


def _system_lines(body: Body, messages: Sequence[JsonObject]) -> list[str]:
    """The lines of the system prompt, without those that engines drop."""
    texts: list[str] = []
    for given in (getattr(body, "system", None), getattr(body, "instructions", None)):
        texts += _texts(given)
    if messages and _is_system(messages[0]):
        texts += _texts(messages[0].get("content"))
    lines: list[str] = []
    for text in texts:
        found = text.splitlines()
        lines += found[1:] if text.startswith(BILLING_HEADER) else found
    return lines[:_MOST_LINES]


def _places(num_blocks: int) -> list[int]:
    """The blocks whose keys are remembered: each half as far again as the one before, and the
    last ones, which most turns have in common."""
    found, place = {0}, 1.0
    while place < num_blocks - 1:
        found.add(int(place))
        place *= 1.5
    found.update((int(_KEPT * num_blocks), num_blocks - 1))
    return sorted(place for place in found if 0 <= place < num_blocks)


def _cause(before: Seen, seen: Seen, lines: Sequence[str]) -> str:
    if before.tools != seen.tools:
        return "tools-order" if sorted(before.tools) == sorted(seen.tools) else "tools"
    if before.lines != seen.lines:
        pairs = zip(before.lines, seen.lines, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        return "system" if same is None else _kind(lines[same])
    return "history" if before.num_inline == seen.num_inline else "inline-system"


def _kind(line: str) -> str:
    """Return what in a line of the system prompt is likely to be new each time."""
    if _HASH.search(line):
        return "hash"
    return "time" if _TIME.search(line) else "system"


def _has_date(lines: Sequence[str], today: date, num_chars: int) -> bool:
    """Return whether the first characters have this day's date."""
    text, seen = "", 0
    for line in lines:
        text += line[: num_chars - seen] + "\n"
        seen += len(line)
        if seen >= num_chars:
            break
    day, year = today.day, today.year
    months = (today.strftime("%B"), today.strftime("%b"))
    written = [today.isoformat(), today.strftime("%d.%m.%Y"), today.strftime("%m/%d/%Y")]
    for month in months:
        written += [f"{month} {day}, {year}", f"{month} {day} {year}", f"{day} {month} {year}"]
        written += [f"{month} {day:02}, {year}", f"{month} {day:02} {year}"]
    return any(each in text for each in written)
