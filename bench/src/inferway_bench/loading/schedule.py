"""When sessions and their turns are meant to be sent. Seeded, pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from random import Random

from inferway_bench.loading.workload import Session, first_turns


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds without end, `rate` a second, of people who know nothing of
    each other."""
    rng = Random(seed)
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


def uniform(rate: float) -> Iterator[float]:
    """Yield arrival times in seconds without end, `rate` a second, at equal distances."""
    number = 0
    while True:
        number += 1
        yield number / rate


def first_times(times: Iterator[float], *, seconds: float | None, count: int | None) -> list[float]:
    """Return the times before `seconds`, and `count` of them at most. At least one of the limits is
    given."""
    found: list[float] = []
    for at in islice(times, count):
        if seconds is not None and at >= seconds:
            break
        found.append(at)
    return found


def scaled(sessions: Iterable[Session], factor: float) -> Iterator[Session]:
    """Yield the sessions with their own times multiplied by `factor`: 0.5 is twice as fast. The
    first turn of the first one comes at once."""
    begin: float | None = None
    for session in sessions:
        if begin is None:
            begin = session.at[0] if session.at else 0.0
        yield replace(session, at=tuple([(at - begin) * factor for at in session.at]))


def interleaved(
    sessions: Iterator[Session], times: Sequence[float], live: int, seed: int
) -> list[Session]:
    """Return sessions of which each of `times` gets the next turn of one of `live`; one that is
    over makes place for another. So requests come at the very times, whatever the sessions'
    lengths.

    Whose turn it is is drawn among the half that has waited longest, so that answers have time to
    come. The same seed draws the same, whatever the server does. In the order of first times."""
    rng = Random(seed)
    waiting: deque[_Open] = deque()
    begun: list[_Open] = []
    for at in times:
        if len(waiting) < live and (session := next(sessions, None)) is not None:
            chosen = _Open(session)
            begun.append(chosen)
        elif waiting:
            chosen = _taken(waiting, rng)
        else:
            break  # there are no more sessions
        chosen.at.append(at)
        if len(chosen.at) < len(chosen.session.turns):
            waiting.append(chosen)
    return [opened.planned() for opened in begun]


class _Open:
    """A session on its way, and the times that its turns have got."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.at: list[float] = []

    def planned(self) -> Session:
        turns = first_turns(self.session.turns, len(self.at))
        return replace(self.session, turns=turns, at=tuple(self.at))


def _taken(waiting: deque[_Open], rng: Random) -> _Open:
    place = rng.randrange((len(waiting) + 1) // 2)
    chosen = waiting[place]
    del waiting[place]
    return chosen
