"""When sessions and their turns are meant to be sent. Seeded, pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from random import Random

from inferway_bench.loading.workload import Session


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
