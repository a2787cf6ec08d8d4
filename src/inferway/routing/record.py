"""The record of one request until its answer has ended: for the access log and the metrics.

The request's journey writes it; whoever logs or counts the answer reads it once the journey is
closed. It holds names, numbers and reasons, and nothing of a body. When the tokens of a streamed
answer passed us, `timing` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from inferway.openai_api.token_events import bears_tokens
from inferway_structured.sse import num_events

if TYPE_CHECKING:
    from inferway.model import Target
    from inferway.openai_api.usage import Usage


class LegOutcome(StrEnum):
    """The outcome of a leg of a request whose prompt one engine computes for another, as metrics
    have it."""

    OK = "ok"
    # of a prefill leg whose answer is not used
    NO_PARAMETERS = "no-parameters"
    MALFORMED = "malformed"
    OTHER_PROMPT = "other-prompt"
    TOO_LATE = "lease"
    # of one that has no answer
    FAILED = "failed"
    REFUSED = "refused"
    TIMED_OUT = "timed-out"
    TOO_LARGE = "too-large"
    FULL = "full"
    NOT_EDITED = "body"
    NO_BOOTSTRAP = "no-bootstrap"
    CLIENT_GONE = "client-gone"
    # of a decode leg whose engine did not answer with the blocks of another one
    RECOMPUTED = "recomputed"
    OTHER_ENGINE = "other-engine"


class Record(msgspec.Struct):
    """The record of one request. Times are seconds of the director's clock."""

    opened_at: float
    model: str = ""  # that the client asked for, as it wrote it: of any length
    target_model: str = ""  # that it was sent on as; empty until that is known
    known_model: str = ""  # the one of them that engines or rules name; empty: neither
    reason: str = ""  # why the engine was chosen (model.Reason); empty until that is decided
    target: Target | None = None  # that was tried last
    attempts: int = 0
    continued: int = 0  # times that its engine was lost in the middle, and another went on
    prefill_target: Target | None = None  # whose blocks the answering engine got
    prefill_seconds: float = 0.0  # that its prefill legs took, whatever came of them
    begun_at: float = 0.0  # when the first piece of the answer came; 0.0: none has come
    waited: float = 0.0  # seconds, for its turn (flow)
    decided_in: float = 0.0  # seconds, until it was known where it goes, without that wait
    is_streamed: bool = False  # it is to be answered in pieces
    prompt_tokens: int = 0  # as we have counted them; 0: unknown
    reused_tokens: int = 0  # of these, as many as we believe that the engine can reuse
    edits: Sequence[bytes] = ()  # what of the client's bytes was changed
    is_timed: bool = False  # something is generated, and `timing` counts it
    # The times of a streamed answer, written by `timing`:
    first_at: float = 0.0  # when its first tokens came; 0.0: none have come
    last_at: float = 0.0
    events: int = 0  # that carry tokens: one each, unless the engine speculates
    two_events: int = 0  # bytes: the events of a stream are about equally long
    longest: float = 0.0  # seconds between two pieces with tokens
    median: float = 0.0  # an estimate of the same, to some percent; 0.0: there were no two
    usage: Usage | None = None  # what the engine has counted; None: it has not told
    outcome: str = ""  # scheduling.plugin.RequestOutcome; empty: the journey is not closed
    kept: object = None  # what `records.recorder` has noted of it


# "These whole events go to the client now", and whose they are.
Passed = Callable[[Record, bytes], None]

# The fourth byte from the end of {"choices":[{...}]} and a blank line. Nearly every event with
# tokens ends so, and of those without only the role's does, which comes first.
_BRACKET = ord("]")
_STEP_UP, _STEP_DOWN = 1.05, 1 / 1.05  # of the estimated median
_SHORTEST = 24  # bytes of an event with a choice: [DONE] has 14


def timing(clock: Callable[[], float], firsts: list[float], gaps: list[float]) -> Passed:
    """Adds to `firsts` the seconds from a request to its first tokens, and to `gaps` those between
    two pieces that carry tokens; what is known of a single stream is in its record.

    It is called for every piece of every stream: a piece that looks like those before it is not
    searched, and gaps are handed on as they are, to be put in a histogram's buckets later, all
    together. A function for all streams: as a method it would take 7 % more time, and an object
    for each stream would take as long as a piece (scripts/latency_cost.py).
    """

    def passed(record: Record, events: bytes) -> None:
        try:
            if len(events) < record.two_events and events[-4] == _BRACKET:
                now = clock()
                gap = now - record.last_at
                gaps.append(gap)
                record.last_at = now
                record.events += 1
                # A step up or down by a share: it comes to where as many are above as below.
                median, longest = record.median, record.longest
                record.median = (median * _STEP_UP or gap) if gap > median else median * _STEP_DOWN
                record.longest = gap if gap > longest else longest
                return
        except IndexError:  # it is shorter than that
            return
        # The first ones; the last ones; several at a time.
        if len(events) < _SHORTEST or not bears_tokens(events):
            return
        now = clock()
        number = num_events(events) or 1
        if record.first_at:
            gap = now - record.last_at
            gaps.append(gap)
            record.longest = max(record.longest, gap)
            record.median = record.median or gap
        else:
            record.first_at = now
            record.two_events = 2 * len(events) // number
            firsts.append(now - record.opened_at)
        record.last_at = now
        record.events += number

    return passed
