"""Warm prefixes of a drained engine, which each worker hands over of its own requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inferway.cluster.bus.messages import Drain, Message
from inferway.fleet.hand_over import HandOverState, Progress

# Of several workers' states the first one here counts.
_FIRST = (
    HandOverState.RUNNING,
    HandOverState.FAILED,
    HandOverState.OUT_OF_TIME,
    HandOverState.STOPPED,
    HandOverState.DONE,
    HandOverState.NONE,
)

_COUNTS = ("left", "handed_over", "failed", "skipped", "tokens")


class WorkersHandOver:
    """`fleet.draining.HandsOver`, by the workers that `tell_all` reaches."""

    def __init__(
        self, tell_all: Callable[[Message], None], num_workers: int, clock: Callable[[], float]
    ) -> None:
        """`clock`: the director's, which machines' processes share."""
        self._tell_all = tell_all
        self._num_workers = num_workers
        self._clock = clock
        self._ends_at: dict[str, float] = {}  # by engine that was asked for
        self._told: dict[int, dict[str, Progress]] = {}  # by the worker's place, by engine

    def drain(self, engine: str, seconds: float) -> None:
        self._ends_at[engine] = self._clock() + seconds
        for told in self._told.values():
            told.pop(engine, None)
        self._tell_all(Drain(engine, seconds))

    def resume(self, engine: str) -> None:
        if self._ends_at.pop(engine, None) is not None:
            self._tell_all(Drain(engine, None))

    def move_streams(self, engine: str, seconds: float | None) -> None:
        self._tell_all(Drain(engine, seconds, moves_streams=True))

    def progress(self, engine: str) -> Progress | None:
        ends_at = self._ends_at.get(engine)
        if ends_at is None:
            return None
        parts = [told[engine] for told in self._told.values() if engine in told]
        if len(parts) < self._num_workers and self._clock() < ends_at:
            parts.append(Progress(HandOverState.RUNNING))  # of those that have not told yet
        return _added_up(parts, ends_at)

    def heard(self, place: int, told: Mapping[str, Progress]) -> None:
        """Take over what a worker tells, by engine."""
        self._told[place] = dict(told)

    def ended(self, place: int) -> None:
        """A worker has ended, and hands over nothing any more."""
        self._told.pop(place, None)


def _added_up(parts: Sequence[Progress], ends_at: float) -> Progress:
    state = min((part.state for part in parts), key=_FIRST.index, default=HandOverState.NONE)
    counts = {name: sum([getattr(part, name) for part in parts]) for name in _COUNTS}
    why = next((part.why for part in parts if part.state is state), "")
    return Progress(state, why, ends_at=ends_at, **counts)
