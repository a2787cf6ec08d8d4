"""How long clients waited, and how much of that no engine has taken. No I/O.

A wait is the time until an answer that is no stream, until a stream's first event, or from one
event to the next, whatever then came: an error ends it as well. What its engine has taken of it:

- what such a wait takes at an engine like it that nothing happens to, which is asked beside the
  gateway all the time (`Yardstick`), so that what the machine takes is in it; and twice that, for
  all clients may be at one engine (`--time-factor-under-load 2`);
- if the engine that answered was slowed down then: as many times that, while it was; where more
  than one engine was tried, or none has answered, any engine may have been the slow one;
- all the time in which every engine was in trouble: nobody could have answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.soak.history import History

SLOWER = 30.0  # times, that engines are slowed down
UNDER_LOAD = 2.0
NOTED_SECONDS = 1.0  # a shorter wait is not kept
_FEW_WORDS = 20  # of which an answer tells nothing of the time that a word takes


@dataclass(frozen=True, slots=True)
class Wait:
    began: float  # seconds since the epoch
    seconds: float
    words: int  # of an answer that comes as a whole; 0: of a stream's next event
    engines: Sequence[str] = ()  # that it was spent at; empty: not known

    @property
    def ended(self) -> float:
        return self.began + self.seconds


@dataclass(slots=True)
class Yardstick:
    """What an engine takes that nothing happens to."""

    longest: float = 0.0  # of a stream's waits, in seconds
    _of_words: list[float] = field(default_factory=list)  # seconds for each, of whole answers

    def note(self, wait: Wait) -> None:
        if not wait.words:
            self.longest = max(self.longest, wait.seconds)
        elif wait.words >= _FEW_WORDS:
            self._of_words.append(wait.seconds / wait.words)

    @property
    def seconds_a_word(self) -> float:
        return median(self._of_words) if self._of_words else 0.0

    def needed(self, wait: Wait) -> float:
        """Return the seconds that the same takes at one of many engines that are well."""
        return UNDER_LOAD * (self.longest + wait.words * self.seconds_a_word)


def beyond(wait: Wait, yardstick: Yardstick, history: History) -> float:
    """Return the seconds of a wait that no engine has taken."""
    needed = yardstick.needed(wait)
    engines = wait.engines or history.engines
    slow = history.slow_seconds(engines, wait.began, wait.ended)
    nobody = history.nobody_seconds(wait.began, wait.ended)
    return max(0.0, wait.seconds - needed - min(slow, (SLOWER - 1) * needed) - nobody)


def longest_beyond(
    waits: Iterable[Wait], yardstick: Yardstick, history: History
) -> tuple[float, Wait | None]:
    """Return the longest one, in seconds, and the wait that had it."""
    found: tuple[float, Wait | None] = (0.0, None)
    for wait in waits:
        seconds = beyond(wait, yardstick, history)
        if seconds > found[0]:
            found = seconds, wait
    return found
