"""When the tokens of one streamed answer passed us.

It is called for every piece of every stream: a piece that looks like those before it is not
searched, and gaps are handed on as they are, to be put in a histogram's buckets later, together.
"""

from __future__ import annotations

from collections.abc import Callable

from inferway.openai_api.token_events import bears_tokens, num_events

# The fourth byte from the end of {"choices":[{...}]} and a blank line. Nearly every event with
# tokens ends so, and of those without only the role's does, which comes first.
_BRACKET = ord("]")
_SHORTEST = 24  # bytes of an event with a choice: [DONE] has 14


class TokenTimes:
    """Whoever passes the answer on writes it. Times are seconds of `clock`; 0.0: none yet."""

    __slots__ = (
        *("_add_first", "_add_gap", "_clock", "_opened_at", "_two_events"),
        *("events", "first_at", "last_at"),
    )

    def __init__(
        self,
        opened_at: float,
        clock: Callable[[], float],
        add_first: Callable[[float], object],
        add_gap: Callable[[float], object],
    ) -> None:
        """`add_first` gets the seconds from `opened_at` to the first tokens; `add_gap` those
        between two pieces that carry tokens."""
        self._opened_at = opened_at
        self._clock = clock
        self._add_first = add_first
        self._add_gap = add_gap
        self._two_events = 0  # bytes: the events of a stream are about equally long
        self.first_at = 0.0
        self.last_at = 0.0
        self.events = 0  # that carry tokens: one each, unless the engine speculates

    def passed(self, events: bytes) -> None:
        """These whole events go to the client now (scripts/latency_cost.py: what it takes)."""
        try:
            is_usual = len(events) < self._two_events and events[-4] == _BRACKET
        except IndexError:  # it is shorter than that
            is_usual = False
        if not is_usual:
            self._passed_unusual(events)
            return
        now = self._clock()
        self._add_gap(now - self.last_at)
        self.last_at = now
        self.events += 1

    def _passed_unusual(self, events: bytes) -> None:
        """The first ones; the last ones; several at a time."""
        if len(events) < _SHORTEST or not bears_tokens(events):
            return
        now, number = self._clock(), max(1, num_events(events))
        if self.first_at:
            self._add_gap(now - self.last_at)
        else:
            self.first_at = now
            self._add_first(now - self._opened_at)
            self._two_events = 2 * len(events) // number
        self.last_at = now
        self.events += number
