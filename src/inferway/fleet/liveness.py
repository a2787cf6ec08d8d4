"""Limits after which a silent engine counts as lost. No I/O; times in seconds, by one clock.

An engine is two programs: an API server, which answers, and a core, which computes. Each can stand
still (a frozen process, a hung GPU, a node without power or network) while its connections stay
open, so that nothing breaks. What tells:

of     sign of life                            late when it has not come for
API    an answer to what it is asked           SILENT_SECONDS, or longer by its slowest of late;
                                               one that came when the engine had been given up
                                               makes it SURE_SECONDS at most
core   other counters of its load, KV events   QUIET_SECONDS, or longer by its longest pause of
                                               late, or EXPECTED_TIMES what its prompts should take
                                               (UNKNOWN_SECONDS if nobody knows)
       an answer to a try: one token, which    half of that
       is asked for after half of the time

The core is judged only while it has work that it could go on with, and only if its counters move
with each token. A long prefill moves them with each chunk. A chunk of seconds, or a compilation,
keeps the try waiting as well, so that only time tells: an engine that has not generated any token
yet has FIRST_SECONDS. That its cache fills does not end them, for a cache may fill before the first
step is compiled.

Nobody is judged that soon unless another engine has answered meanwhile: else the fault may be this
process's, or the network's, and PATIENT_SECONDS count. What came before this process stood still
itself counts from when it went on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferway.fleet.load import Load

SILENT_SECONDS = 2.5
QUIET_SECONDS = 2.5
UNKNOWN_SECONDS = 5.0
LATE_TIMES = 4.0
# One short hiccup must not have the next outage go unnoticed: from here on, less is added.
SURE_SECONDS = 5.0
SURE_TIMES = 1.5
EXPECTED_TIMES = 3.0
FIRST_SECONDS = 10.0
PATIENT_SECONDS = 30.0
LEARNED_SECONDS = 10.0
# What an engine has shown of late: half of it counts after so many seconds.
HALF_LIFE_SECONDS = 120.0

_LONG_AGO = float("-inf")


@dataclass(slots=True)
class Slowest:
    """The longest time of late, which is forgotten by half in HALF_LIFE_SECONDS."""

    _seconds: float = 0.0
    _at: float = 0.0

    def note(self, seconds: float, now: float) -> None:
        """Learn a time; one over LEARNED_SECONDS was an outage, which tells nothing of others."""
        if seconds <= LEARNED_SECONDS:
            self._seconds, self._at = max(seconds, self.seconds(now)), now

    def seconds(self, now: float) -> float:
        return float(self._seconds * 0.5 ** ((now - self._at) / HALF_LIFE_SECONDS))


@dataclass(slots=True)
class Liveness:
    """The signs of life of one engine. Written by `watch.EngineWatch`."""

    answered: float | None = None  # its API, for the last time
    progressed: float | None = None  # its core, for the last time
    asked: float | None = None  # since when its API owes an answer
    tried: float | None = None  # since when its core owes the answer to a try
    rested: float = _LONG_AGO  # when it last had nothing to do
    works: bool = False  # it has something to do since
    has_generated: bool = False  # a token, ever, since it came
    takes_no_tries: bool = False  # it cannot be asked for a token
    load: Load | None = None  # that it told last
    # Seconds that its prompts should take, when it told its load last and the time before: a prompt
    # leaves that sum with its first token, which the counters of its load show later.
    expected: tuple[float, float] = (0.0, 0.0)
    answers: Slowest = field(default_factory=Slowest)  # of its API
    pauses: Slowest = field(default_factory=Slowest)  # of its core

    def is_asked(self, now: float) -> None:
        """Note that the engine's API is asked something; it may owe an answer already."""
        if self.asked is None:
            self.asked = now

    def has_answered(self, now: float, awake: float, *, was_out: bool = False) -> None:
        """Note an answer of the engine's API. `was_out`: the engine had been given up before; it
        may have been slow only, but one that stands still twice is not waited for longer."""
        if self.asked is not None:
            seconds = now - max(self.asked, awake)
            if was_out and seconds <= LEARNED_SECONDS:
                seconds = min(seconds, SURE_SECONDS / SURE_TIMES)
            self.answers.note(seconds, now)
            self.asked = None
        self.answered = now

    def has_progressed(self, now: float, awake: float, *, generated: bool) -> None:
        """Note that the core has computed something; `generated`: a token is part of it."""
        if self.works and self.has_generated:
            self.pauses.note(now - self.quiet_since(awake), now)
        self.has_generated |= generated
        self.progressed = now

    def has_answered_try(self, now: float) -> None:
        """Note that the core has answered a try; the time before it is not counted as a pause."""
        self.has_generated, self.progressed = True, now

    def has_work(self, now: float, *, works: bool) -> None:
        """Note whether the engine has work that its core could go on with."""
        if not (works and self.works):
            self.rested = now
        self.works = works

    def comes(self, now: float) -> None:
        """Reset the progress and the learned delays: the engine may be another process by now."""
        self.progressed, self.rested, self.has_generated = None, now, False
        self.answers, self.pauses = Slowest(), Slowest()
        self.expected = (0.0, 0.0)

    def has_told(self, load: Load, expected: float | None) -> None:
        """Note the load that the engine told. `expected`: seconds that its prompts should take."""
        self.load, self.expected = load, (expected or 0.0, self.expected[0])

    # how it is; `awake`: since when this process goes on

    def is_silent(self, now: float, awake: float) -> bool:
        """Return whether the engine's API has owed an answer for too long."""
        if self.asked is None:
            return False
        late = max(SILENT_SECONDS, _late(self.answers.seconds(now)))
        return now - max(self.asked, awake) > late

    def is_quiet(self, now: float, awake: float, expected: float | None) -> bool:
        """Return whether the engine's core has computed nothing for so long that it is to be tried.
        `expected`: seconds that what it has to compute should take; None: it is not known."""
        return now - self.quiet_since(awake) > self._patience(now, expected) / 2

    def is_stalled(self, now: float, awake: float, expected: float | None) -> bool:
        """Return whether the core has computed nothing for too long, and not answered a try."""
        if self.tried is None:
            return False
        patience = self._patience(now, expected)
        is_try_late = now - max(self.tried, awake) > patience / 2
        return is_try_late and now - self.quiet_since(awake) > patience

    def quiet_since(self, awake: float) -> float:
        progressed = _LONG_AGO if self.progressed is None else self.progressed
        return max(progressed, self.rested, awake)

    def _patience(self, now: float, expected: float | None) -> float:
        known = max(*self.expected, expected or 0.0)
        should = max(EXPECTED_TIMES * known, UNKNOWN_SECONDS if expected is None else 0.0)
        if not self.has_generated:
            return max(FIRST_SECONDS, should)
        return max(QUIET_SECONDS, _late(self.pauses.seconds(now)), should)


def _late(longest: float) -> float:
    """Return after how many seconds something is late that took so long of late, at most."""
    return min(LATE_TIMES * longest, max(SURE_SECONDS, SURE_TIMES * longest))
