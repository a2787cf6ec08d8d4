"""What is sent, and when: sessions of turns, whose bodies are made of the conversation so far, and
their intended times. Seeded, pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from random import Random
from typing import Any

import msgspec

Message = Mapping[str, Any]  # {"role": …, "content": …}, as OpenAI has it

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session. Its chat is what was said before and `messages`; but if `fields` or
    `prompt` bring `messages` or a `prompt` themselves, that is sent and nothing else."""

    messages: Sequence[Message] = ()  # what is new: the user's, before the first turn the system's
    fields: Mapping[str, Any] = field(default_factory=dict)  # further ones: max_tokens, tools, …
    think: float = 0.0  # seconds from the answer before to this turn, where it has no time
    answer: str | None = None  # what the history keeps in place of the server's own answer
    prompt: Callable[[], Mapping[str, Any]] | None = None  # long ones are made when they are sent


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow each other: none is sent before the one before is answered.

    `at` has the intended times of the first of them, in seconds of the stage; turns beyond it come
    `think` seconds after the answer before. Closed loops look at `think` alone.
    """

    number: int
    turns: Sequence[Turn]
    at: Sequence[float] = ()


class Conversation:
    """The history of a session, which the one that sends the session writes."""

    def __init__(self) -> None:
        self._history: list[Message] = []

    def ask(self, turn: Turn, defaults: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the path and the body of the turn, with `defaults` under its own fields."""
        body = {**defaults, **turn.fields, **(turn.prompt() if turn.prompt else {})}
        if "prompt" in body:
            return COMPLETIONS, msgspec.json.encode(body)
        if "messages" not in body:
            self._history += turn.messages
            body["messages"] = self._history
        return CHATS, msgspec.json.encode(body)

    def hear(self, turn: Turn, answer: str) -> None:
        """Add the answer to `turn`: the server's, or the one that the turn brings in its place."""
        said = answer if turn.answer is None else turn.answer
        self._history.append({"role": "assistant", "content": said})


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds without end, `rate` a second, of people who know nothing of
    each other."""
    rng = Random(seed)
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


def first_times(times: Iterator[float], *, seconds: float | None, count: int | None) -> list[float]:
    """Return the times before `seconds`, and `count` of them at most. At least one of the limits is
    given."""
    return list(takewhile(lambda at: seconds is None or at < seconds, islice(times, count)))


def interleaved(
    sessions: Iterator[Session], times: Sequence[float], live: int, seed: int
) -> list[Session]:
    """Return sessions of which each of `times` gets the next turn of one of `live`; one that is
    over makes place for another. So requests come at the very times, whatever the sessions'
    lengths.

    Whose turn it is is drawn among the half that has waited longest, so that answers have time to
    come. The same seed draws the same, whatever the server does. In the order of first times."""
    rng = Random(seed)
    begun: list[tuple[Session, list[float]]] = []  # with the times that its turns have got
    waiting: deque[tuple[Session, list[float]]] = deque()
    for time in times:
        if len(waiting) < live and (new := next(sessions, None)) is not None:
            begun.append((new, []))
            session, at = begun[-1]
        elif waiting:
            place = rng.randrange((len(waiting) + 1) // 2)
            session, at = waiting[place]
            del waiting[place]
        else:
            break  # there are no more sessions
        at.append(time)
        if len(at) < len(session.turns):
            waiting.append((session, at))
    return [replace(s, turns=s.turns[: len(at)], at=tuple(at)) for s, at in begun]
