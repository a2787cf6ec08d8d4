"""What a client heard -> whether it may have heard that. No I/O.

An answer is whole, or says that it is not: an error with OpenAI's body, an error event at a
stream's end, or a connection that breaks in the middle. Whatever came of it before is the
beginning of what this request said, and of no other's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.soak.waits import NOTED_SECONDS, Wait

# What may be said while engines die: no engine, no answer, not in time, too many at once.
ERRORS = frozenset({429, 502, 503, 504})
MAX_SHOWN = 20


@dataclass(slots=True)
class Heard:
    """One answer, as far as it came."""

    said: str  # what the engine has to say back
    request_id: str
    kind: str  # of the client
    stream: bool
    status: int = 0  # 0: there was no answer
    answered_id: str = ""
    attempts: int = 1
    body: bytes = b""
    broken: str = ""  # how the connection ended, if not well
    left: bool = False  # the client went away by itself
    milliseconds: float = 0.0
    engines: list[str] = field(default_factory=list)  # that have answered
    waits: list[tuple[float, float]] = field(default_factory=list)  # when they began, seconds

    def waited(self) -> list[Wait]:
        """Return its waits, by what was waited for."""
        words = 0 if self.stream else len(self.said.split())
        # An answer names the engine that gave it, and not those that were tried before.
        engines = tuple(self.engines) if self.attempts == 1 else ()
        return [Wait(began, seconds, words, engines) for began, seconds in self.waits]


@dataclass(slots=True)
class Tally:
    """Of a whole run."""

    asked: Counter[str] = field(default_factory=Counter)  # by kind of client
    ends: Counter[str] = field(default_factory=Counter)
    retried: int = 0  # whole answers of another engine than the first tried
    wrong: int = 0
    stuck: int = 0
    shown: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0  # of those that ended by themselves
    longest: float = 0.0  # of all waits, in seconds
    waits: list[Wait] = field(default_factory=list)  # of NOTED_SECONDS and more

    def add(self, heard: Heard) -> bool:
        """Whether it was answered as a whole."""
        self.asked[heard.kind] += 1
        try:
            end = judged(heard)
        except Wrong as e:
            end = "wrong"
            self.wrong += 1
            self.show(f"{heard.kind} {heard.request_id}: {e}")
        self.ends[end] += 1
        self.retried += end == "whole" and heard.attempts > 1
        if not heard.left and heard.kind != "slow":
            self.slowest_ms = max(self.slowest_ms, heard.milliseconds)
        waits = heard.waited()
        self.longest = max([self.longest, *(wait.seconds for wait in waits)])
        self.waits += [wait for wait in waits if wait.seconds >= NOTED_SECONDS]
        return end == "whole"

    def add_stuck(self, kind: str, request_id: str, seconds: float) -> None:
        self.asked[kind] += 1
        self.ends["stuck"] += 1
        self.stuck += 1
        self.show(f"{kind} {request_id}: no end within {seconds:g} s")

    def show(self, text: str) -> None:
        if len(self.shown) < MAX_SHOWN:
            self.shown.append(text)


class Wrong(Exception):
    """Nobody may hear this."""


def judged(heard: Heard) -> str:
    """How it ended: whole, left, error STATUS, error event, cut. Raises Wrong."""
    if heard.status == 0:
        if heard.left:
            return "left"
        raise Wrong(f"no answer at all: {heard.broken}")
    if heard.answered_id != heard.request_id:
        raise Wrong(f"the answer's id is {heard.answered_id!r}")
    if heard.status != 200:
        return _error(heard)
    return _stream(heard) if heard.stream else _whole(heard)


def _error(heard: Heard) -> str:
    if heard.left:
        return "left"
    if heard.status not in ERRORS:
        raise Wrong(f"status {heard.status}: {heard.body[:300]!r}")
    if heard.broken:
        raise Wrong(f"status {heard.status}, and broken: {heard.broken}")
    _error_message(heard.body)
    return f"error {heard.status}"


def _error_message(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        message, _ = error["message"], error["type"]
    except (msgspec.DecodeError, KeyError, TypeError) as e:
        raise Wrong(f"not an error as OpenAI says it: {body[:300]!r}") from e
    return str(message)


def _whole(heard: Heard) -> str:
    if heard.left:
        return "left"
    if heard.broken:
        return "cut"
    try:
        answer: Any = msgspec.json.decode(heard.body)
    except msgspec.DecodeError as e:
        raise Wrong(f"200 with a body that ends early: {heard.body[-200:]!r}") from e
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    if text != heard.said or choice["finish_reason"] != "stop":
        raise Wrong(f"another's answer: {_difference(text, heard.said)}")
    return "whole"


def _stream(heard: Heard) -> str:
    *events, rest = heard.body.split(b"\n\n")
    text, end = _read(events)
    if not heard.said.startswith(text):
        raise Wrong(f"another's answer: {_difference(text, heard.said)}")
    if heard.left:
        return "left"
    if not end:
        if not heard.broken:
            raise Wrong(f"a stream that ends well without its end, after {len(text)} characters")
        return "cut"
    if rest or heard.broken:
        raise Wrong(f"ended, and then {rest[:200]!r} {heard.broken}")
    if end == "whole" and text != heard.said:
        raise Wrong(f"[DONE] after a part: {_difference(text, heard.said)}")
    return end


def _read(events: list[bytes]) -> tuple[str, str]:
    """The text of a stream's events, and how it ends: whole, error event, or nothing."""
    text, end = "", ""
    for event in events:
        if event.startswith(b":"):
            continue
        if end:
            raise Wrong(f"more after the end: {event[:200]!r}")
        if not event.startswith(b"data: "):
            raise Wrong(f"not an event: {event[:200]!r}")
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            end = "whole"
        elif data.startswith(b'{"error"'):
            _error_message(data)
            end = "error event"
        else:
            text += _delta(data)
    return text, end


def _delta(data: bytes) -> str:
    try:
        choices = msgspec.json.decode(data)["choices"]
    except (msgspec.DecodeError, KeyError) as e:
        raise Wrong(f"an event that nobody can read: {data[:200]!r}") from e
    if not choices:
        return ""
    choice = choices[0]
    return (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]


def _difference(got: str, said: str) -> str:
    """Where the two part; our texts are drawn words, nothing private."""
    at = next((i for i, (a, b) in enumerate(zip(got, said, strict=False)) if a != b), -1)
    at = min(len(got), len(said)) if at < 0 else at
    return f"at {at}: {got[at : at + 60]!r} instead of {said[at : at + 60]!r}"
