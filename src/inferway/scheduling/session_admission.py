"""Which sessions of agents are alive, what each of them holds in caches, and whether a new one has
room beside them.

A session is alive from when it is let in. Between two of its turns, while a tool runs, its prompt
and its answers lie in a cache, and are worth as much as it is probable that it comes back: of the
sessions that had been away as long, the share that did. How long they stay away is learned, from
when an answer has ended until the next turn comes; one that has been away for four times as long as
99 of 100 is over. A new one has room while what all hold, each times that probability, and what a
first turn usually brings, is no more than a share of the caches. docs/flow-control.md says what
that is good for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated

from msgspec import Meta

from inferway.model import Candidates, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway.scheduling.producers.session_id import AGENT_HEADERS, SessionHeaders, header_bytes
from inferway.scheduling.registry import Parameters, PluginType

NAME = "session-admission"
MOST_SESSIONS = 20_000  # alive; beyond, the one that has been away for the longest time is over
FIRST_TOKENS = 16_384.0  # of a first turn, before any is known
_HEADERS = (*AGENT_HEADERS, "x-session-id")
_LONGEST_NAME = 256  # bytes; of a longer one only these count
_BEGIN_SECONDS = 600.0  # away for so long a session is over, before any has come back
_LEAST_SECONDS = 60.0  # and for so long at least
_RESUMED = 0.99
_TIMES = 4.0
_LOOK_SECONDS = 0.5  # 20,000 sessions take a few milliseconds to add up
# Before more is known, one turn in twenty is its session's last; that counts as ten at most.
_LAST, _MOST_LAST = 0.05, 10.0
_OLD = 4096  # gaps; then all counts are halved
_BOUNDS = [0.25 * 2 ** (step / 4) for step in range(60)]  # seconds; up to 1.9 hours
_PACE = 0.1
_LEARNED = 16  # first turns count, about

Key = tuple[str, bytes]  # the model, and the session's name


class SessionAdmissionParameters(Parameters, frozen=True):
    cache_share: Annotated[float, Meta(gt=0, le=1)] = 0.75
    max_wait_seconds: Annotated[float, Meta(gt=0)] = 600.0  # then a new session is let in anyway
    session_headers: tuple[str, ...] = ()  # before the usual ones


@dataclass(slots=True)
class Returns:
    """How long sessions stay away between their turns, and how many did not come back."""

    longer: list[float] = field(default_factory=lambda: [0.0] * (len(_BOUNDS) + 1))  # by `_BOUNDS`
    back: float = 0.0
    over: float = 0.0

    def came_back(self, seconds: float) -> None:
        self.longer[bisect_right(_BOUNDS, seconds)] += 1.0
        self.back += 1.0
        if self.back + self.over > _OLD:
            self.longer = [count / 2 for count in self.longer]
            self.back /= 2
            self.over /= 2

    def probability(self, seconds: float) -> float:
        """Return how probable it is that one comes back that has been away for so long."""
        place = bisect_right(_BOUNDS, seconds)
        still = sum(self.longer[place:]) + 1.0
        return still / (still + self.over + min(self.back * _LAST, _MOST_LAST))

    @property
    def most_seconds(self) -> float:
        """Who has been away for longer is over."""
        if not self.back:
            return _BEGIN_SECONDS
        left = self.back * (1.0 - _RESUMED)
        for place in range(len(_BOUNDS), -1, -1):
            left -= self.longer[place]
            if left < 0:
                break
        bound = _BOUNDS[min(place, len(_BOUNDS) - 1)]
        return max(_LEAST_SECONDS, _TIMES * bound)


@dataclass(slots=True)
class LiveSession:
    """One session that has been let in."""

    tokens: float  # of its prompt and the answers
    since: float  # when its last turn came or ended
    num_turns: int = 0  # at the engines
    is_new: bool = True  # its first prompt is not known


@dataclass(slots=True)
class LiveSessions:
    """The sessions of one model that are alive, those that have been away the longest first."""

    most: int = MOST_SESSIONS
    alive: OrderedDict[bytes, LiveSession] = field(default_factory=OrderedDict)
    returns: Returns = field(default_factory=Returns)
    tokens: float = 0.0  # of all
    first_tokens: float = FIRST_TOKENS
    num_first: int = 0
    entered: float = -inf  # when the last one was let in
    _looked: float = -inf  # when what follows was added up
    _unexpected: float = 0.0  # tokens of those that will not come back

    def knows(self, name: bytes, now: float) -> bool:
        """Return whether that session is alive."""
        self.forget(now)
        return name in self.alive

    def has_room(self, cache_tokens: float, now: float) -> bool:
        """Return whether a new session has room within so many tokens; the only one always has."""
        most = cache_tokens - self.first_tokens
        if self.tokens <= most or not self.alive:
            return True
        if not 0 <= now - self._looked < _LOOK_SECONDS:
            self.forget(now)
            self._looked, self._unexpected = now, self.tokens - self.expected_tokens(now)
        return self.tokens - self._unexpected <= most

    def is_overdue(self, came: float, most_seconds: float, now: float) -> bool:
        """Return whether a session that came then has waited for long enough to be let in without
        room: for so many seconds, a tenth of which nobody has been let in."""
        return now - came >= most_seconds and now - self.entered >= most_seconds * _PACE

    def expected_tokens(self, now: float) -> float:
        """Return what those hold that come back."""
        returns, tokens = self.returns, 0.0
        place, share = -1, 1.0
        for session in self.alive.values():
            if session.num_turns:
                tokens += session.tokens
                continue
            away = now - session.since
            at = bisect_right(_BOUNDS, away)
            if at != place:  # those that have been away as long are neighbours
                place, share = at, returns.probability(away)
            tokens += session.tokens * share
        return tokens

    def enter(self, name: bytes, now: float) -> None:
        """Count the session as alive."""
        if name in self.alive:
            return
        while len(self.alive) >= self.most:
            self._drop(next(iter(self.alive)))
        self.alive[name] = LiveSession(self.first_tokens, now)
        self.entered = now
        self.tokens += self.first_tokens

    def begin(self, name: bytes, tokens: float, now: float) -> None:
        """A turn with a prompt of so many tokens goes to an engine."""
        self.enter(name, now)
        session = self.alive[name]
        if session.is_new:
            session.is_new = False
            self.num_first = min(self.num_first + 1, _LEARNED)
            self.first_tokens += (tokens - self.first_tokens) / self.num_first
        elif not session.num_turns:
            self.returns.came_back(now - session.since)
        session.num_turns += 1
        self._touch(name, session, tokens, now)

    def end(self, name: bytes, tokens: float | None, now: float) -> None:
        """A turn has ended; the session holds so many tokens, if that is known."""
        session = self.alive.get(name)
        if session is not None:
            session.num_turns = max(0, session.num_turns - 1)
            self._touch(name, session, session.tokens if tokens is None else tokens, now)

    def forget(self, now: float) -> None:
        """Forget the sessions that are over."""
        before = now - self.returns.most_seconds
        for name in list(_while_away(self.alive, before)):
            self.returns.over += 1.0
            self._drop(name)

    def _touch(self, name: bytes, session: LiveSession, tokens: float, now: float) -> None:
        self.tokens += tokens - session.tokens
        session.tokens, session.since = tokens, now
        self.alive.move_to_end(name)

    def _drop(self, name: bytes) -> None:
        self.tokens -= self.alive.pop(name).tokens
        if not self.alive:
            self.tokens = 0.0


def _while_away(alive: OrderedDict[bytes, LiveSession], before: float) -> Iterator[bytes]:
    for name, session in alive.items():
        if session.since >= before:
            return
        if not session.num_turns:
            yield name


@dataclass(slots=True)
class SessionAdmission:
    """The live sessions of all models, and what is told of them."""

    parameters: SessionAdmissionParameters = field(default_factory=SessionAdmissionParameters)
    models: dict[str, LiveSessions] = field(default_factory=dict)
    _headers: SessionHeaders = field(init=False)

    def __post_init__(self) -> None:
        names = (*self.parameters.session_headers, *_HEADERS)
        self._headers = SessionHeaders(tuple([header_bytes(name) for name in names]))

    def session(self, headers: Headers) -> bytes:
        """Return the name of the session that a request belongs to; b"" if it does not say."""
        return self._headers.session(headers)[:_LONGEST_NAME]

    def of(self, model: str) -> LiveSessions:
        """Return the sessions of a model."""
        found = self.models.get(model)
        if found is None:
            found = self.models[model] = LiveSessions()
        return found

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        name = self.session(request.headers)
        if not name:
            return None
        tokens = float(request.num_prompt_tokens)
        return _TurnListener(self.of(request.target_model), name, tokens)


@dataclass(slots=True)
class _TurnListener(RequestListener):
    """Tells the sessions of one turn."""

    sessions: LiveSessions
    name: bytes
    tokens: float
    _has_begun: bool = False

    def on_attempt(self, target: Target, now: float) -> Headers:
        if not self._has_begun:
            self._has_begun = True
            self.sessions.begin(self.name, self.tokens, now)
        return ()

    def on_end(self, ending: RequestOutcome) -> None:
        if not self._has_begun:
            return
        usage = ending.usage
        tokens = self.tokens if usage is None else float(usage.prompt + usage.completion)
        self.sessions.end(self.name, tokens, ending.now)


TYPE = PluginType(
    NAME,
    "lets a new session of an agent wait while the caches are full of others that will come back",
    lambda parameters, building: SessionAdmission(parameters),
    SessionAdmissionParameters,
)
