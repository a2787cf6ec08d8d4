"""When the tokens of streamed answers passed us.

It is called for every piece of every stream: a piece that looks like those before it is not
searched, and gaps are handed on as they are, to be put in a histogram's buckets later, together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from inferway.openai_api.token_events import bears_tokens
from inferway_structured.sse import num_events

if TYPE_CHECKING:
    from inferway.steps.record import Record

# "These whole events go to the client now", and whose they are.
Passed = Callable[["Record", bytes], None]

# The fourth byte from the end of {"choices":[{...}]} and a blank line. Nearly every event with
# tokens ends so, and of those without only the role's does, which comes first.
_BRACKET = ord("]")
_SHORTEST = 24  # bytes of an event with a choice: [DONE] has 14


def timing(clock: Callable[[], float], firsts: list[float], gaps: list[float]) -> Passed:
    """Adds to `firsts` the seconds from a request to its first tokens, and to `gaps` those between
    two pieces that carry tokens; what is known of a single stream is in its record.

    A function for all streams: as a method it would take 7 % more time, and an object for each
    stream would take as long as a piece (scripts/latency_cost.py).
    """

    def passed(record: Record, events: bytes) -> None:
        try:
            if len(events) < record.two_events and events[-4] == _BRACKET:
                now = clock()
                gaps.append(now - record.last_at)
                record.last_at = now
                record.events += 1
                return
        except IndexError:  # it is shorter than that
            return
        # The first ones; the last ones; several at a time.
        if len(events) < _SHORTEST or not bears_tokens(events):
            return
        now = clock()
        number = num_events(events) or 1
        if record.first_at:
            gaps.append(now - record.last_at)
        else:
            record.first_at = now
            record.two_events = 2 * len(events) // number
            firsts.append(now - record.opened_at)
        record.last_at = now
        record.events += number

    return passed
