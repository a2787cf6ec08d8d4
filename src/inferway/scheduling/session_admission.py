"""The sessions of agents that are alive, what each of them holds in caches, whether a new one has
room beside them, and at which endpoint.

A session is alive from when it is let in. Between two of its turns, while a tool runs, its prompt
and its answers lie in a cache, and are worth as much as it is probable that it comes back: of the
sessions that had been away as long, the share that did. How long they stay away is learned, from
when an answer has ended until the next turn comes; one that has been away for four times as long as
99 of 100 is over. Sessions grow, so each counts at least the mean of what sessions hold. A new one
has room while what all count, each times that probability, is no more than a share of the caches.

A session stays at one endpoint, whose cache holds it: elsewhere it would be computed again, and
push out about as much of others. A new one goes where those that are alive take the least share of
the cache. docs/flow-control.md says what that is good for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from inferway.model import Candidates, Column, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.lineage import Lineage
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway.scheduling.registry import Parameters, PluginType
from inferway.scheduling.session_id import AGENT_HEADERS, SessionHeaders, header_bytes
from inferway.scheduling.sessions import rows_by_name

NAME = "session-admission"
MOST_SESSIONS = 20_000  # alive; beyond, the one that has been away for the longest time is over
FIRST_TOKENS = 16_384.0  # of a first turn, before any is known
_OWN_HEADER = b"x-inferway-session"  # of a request that names no session: as it is found here
_HEADERS = (*AGENT_HEADERS, "x-session-id", _OWN_HEADER.decode())
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
_PLENTY = 0.5  # of a cache; while sessions take less of it, they need not stay
_MEAN_OF = 2048  # turns, about: what a session holds
# A session leaves its endpoint if its answer is expected to begin so many times as late as
# elsewhere, and so much: that may be because a first prompt's start is cached elsewhere.
_TIMES_LATER, _MS_LATER = 2.0, 5_000.0

Key = tuple[str, bytes]  # the model, and the session's name


class SessionAdmissionParameters(Parameters, frozen=True):
    cache_share: Annotated[float, Meta(gt=0, le=1)] = 0.95
    max_wait_seconds: Annotated[float, Meta(gt=0)] = 600.0  # then a new session is let in anyway
    session_headers: tuple[str, ...] = ()  # before the usual ones
    by_messages: bool = True  # a chat with tools that names no session goes on with one


@dataclass(slots=True)
class Returns:
    """The times that sessions stay away between their turns, and how many did not come back."""

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
        """The time after which a session that stays away is over."""
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
    home: str = ""  # the endpoint that its last turn went to; "": none has gone
    num_turns: int = 0  # at the engines


@dataclass(slots=True)
class LiveSessions:
    """The sessions of one model that are alive, those that have been away the longest first."""

    most: int = MOST_SESSIONS
    alive: OrderedDict[bytes, LiveSession] = field(default_factory=OrderedDict)
    returns: Returns = field(default_factory=Returns)
    sizes: Mapping[str, float] = field(default_factory=dict)  # of caches: tokens, by endpoint
    tokens: float = 0.0  # of all
    first_tokens: float = FIRST_TOKENS
    mean_tokens: float = 0.0  # that a session holds when a turn has ended
    num_first: int = 0
    num_ended: int = 0  # turns
    entered: float = -inf  # when the last one was let in
    # As it was when all were looked at, and what has come since:
    _looked: float = -inf
    _expected: float = 0.0  # tokens
    _at: dict[str, float] = field(default_factory=dict)  # the same of each home

    def knows(self, name: bytes, now: float) -> bool:
        """Return whether that session is alive."""
        self.forget(now)
        return name in self.alive

    def has_room(self, share: float, now: float) -> bool:
        """Return whether a new session has room within that share of the caches; the only one
        always has, and each while no size is known."""
        if not self.alive or not self.sizes:
            return True
        self._look(now)
        needed = self._expected + self._counted(self.first_tokens)
        return needed <= share * sum(self.sizes.values())

    def is_overdue(self, came: float, most_seconds: float, now: float) -> bool:
        """Return whether a session that came then has waited for long enough to be let in without
        room: for so many seconds, and for a tenth of them no session has been let in."""
        return now - came >= most_seconds and now - self.entered >= most_seconds * _PACE

    def homes(self, name: bytes, endpoints: Collection[str], now: float) -> Sequence[str]:
        """Return at which of these endpoints a session's next turn finds its cache, or is to have
        it; none if that does not matter, because there is plenty of room."""
        self._look(now)
        session = self.alive.get(name)
        if session is not None and session.home in endpoints:
            return [] if self._filled(session.home) < _PLENTY else [session.home]
        filled = {each: self._filled(each) for each in endpoints}
        roomy = [each for each, share in filled.items() if share < _PLENTY]
        return roomy or [min(filled, key=filled.__getitem__)]

    def _filled(self, endpoint: str) -> float:
        """Return the share of the endpoint's cache that sessions take; 1 is the largest's."""
        size = self.sizes.get(endpoint) or max(self.sizes.values(), default=1.0)
        return self._at.get(endpoint, 0.0) / size

    def expected_tokens(self, now: float) -> float:
        """Return what the sessions count, those that have a turn at an engine or come back."""
        return sum(tokens for _, tokens in self._each(now))

    def enter(self, name: bytes, now: float) -> None:
        """Count the session as alive."""
        if name in self.alive:
            return
        while len(self.alive) >= self.most:
            self._drop(next(iter(self.alive)))
        self.alive[name] = LiveSession(self.first_tokens, now)
        self.entered = now
        self.tokens += self.first_tokens
        self._expected += self._counted(self.first_tokens)

    def begin(self, name: bytes, tokens: float, home: str, now: float) -> None:
        """Note that a turn with a prompt of so many tokens goes to that endpoint."""
        self.enter(name, now)
        session = self.alive[name]
        if not session.home:
            self.num_first = min(self.num_first + 1, _LEARNED)
            self.first_tokens += (tokens - self.first_tokens) / self.num_first
        elif not session.num_turns:
            self.returns.came_back(now - session.since)
        session.num_turns += 1
        self._touch(name, session, tokens, now)
        self.move(name, home)

    def move(self, name: bytes, home: str) -> None:
        """Note that the session's turn goes to that endpoint."""
        session = self.alive.get(name)
        if session is not None and session.home != home:
            session.home = home
            self._at[home] = self._at.get(home, 0.0) + self._counted(session.tokens)

    def end(self, name: bytes, tokens: float | None, now: float) -> None:
        """A turn has ended; the session holds so many tokens, if that is known."""
        if tokens is not None:
            self.num_ended = min(self.num_ended + 1, _MEAN_OF)
            self.mean_tokens += (tokens - self.mean_tokens) / self.num_ended
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

    def _look(self, now: float) -> None:
        """Add up what the sessions count, unless that was done lately."""
        if 0 <= now - self._looked < _LOOK_SECONDS:
            return
        self.forget(now)
        self._looked, self._expected, self._at = now, 0.0, {}
        for home, tokens in self._each(now):
            self._expected += tokens
            self._at[home] = self._at.get(home, 0.0) + tokens

    def _each(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield the home of each session, and what it counts."""
        place, share = -1, 1.0
        for session in self.alive.values():
            tokens = self._counted(session.tokens)
            if not session.num_turns:
                away = now - session.since
                at = bisect_right(_BOUNDS, away)
                if at != place:  # those that have been away as long are neighbours
                    place, share = at, self.returns.probability(away)
                tokens *= share
            yield session.home, tokens

    def _counted(self, tokens: float) -> float:
        return max(tokens, self.mean_tokens)

    def _touch(self, name: bytes, session: LiveSession, tokens: float, now: float) -> None:
        self.tokens += tokens - session.tokens
        session.tokens, session.since = tokens, now
        self.alive.move_to_end(name)

    def _drop(self, name: bytes) -> None:
        self.tokens -= self.alive.pop(name).tokens
        if not self.alive:
            self.tokens = 0.0


def _is_late(expected_ms: Column | None, row: int) -> bool:
    """Return whether the answer would begin there much later than elsewhere."""
    if expected_ms is None:
        return False
    least: float = np.fmin.reduce(expected_ms)
    return bool(expected_ms[row] > _TIMES_LATER * least + _MS_LATER)


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
    abstains: bool = False  # from rating endpoints: it does not know of all turns
    _headers: SessionHeaders = field(init=False)
    _lineage: Lineage = field(default_factory=Lineage)
    _rows: PerEndpoint[dict[str, int]] = field(default_factory=lambda: PerEndpoint(rows_by_name))

    def __post_init__(self) -> None:
        names = (*self.parameters.session_headers, *_HEADERS)
        self._headers = SessionHeaders(tuple([header_bytes(name) for name in names]))

    def session(self, headers: Headers) -> bytes:
        """Return the name of the session that a request belongs to; b"" if it does not say."""
        return self._headers.session(headers)[:_LONGEST_NAME]

    def named(self, request: LLMRequest) -> LLMRequest:
        """Return the request with a header that names its session, if its messages tell it and no
        header does."""
        if not self.parameters.by_messages or self.session(request.headers):
            return request
        name = self._lineage.session(request)
        if not name:
            return request
        return msgspec.structs.replace(request, headers=(*request.headers, (_OWN_HEADER, name)))

    def of(self, model: str) -> LiveSessions:
        """Return the sessions of a model."""
        found = self.models.get(model)
        if found is None:
            found = self.models[model] = LiveSessions()
        return found

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        """Return 1 for the endpoint where the request's session is, or is to be, and 0 for all
        others; 0 for all if it is of no session, or would begin there much later than elsewhere.
        """
        scores = np.zeros(len(candidates.endpoints))
        name = self.session(request.headers)
        if not name or self.abstains:
            return scores
        rows = self._rows(candidates.endpoints)
        homes = self.of(request.target_model).homes(name, rows, candidates.now)
        scores[[rows[each] for each in homes]] = 1.0
        if len(homes) == 1 and _is_late(candidates.get(EXPECTED_TTFT_MS), rows[homes[0]]):
            scores[:] = 0.0
        return scores

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
        home = target.endpoint.name
        if self._has_begun:
            self.sessions.move(self.name, home)
        else:
            self._has_begun = True
            self.sessions.begin(self.name, self.tokens, home, now)
        return ()

    def on_end(self, ending: RequestOutcome) -> None:
        if not self._has_begun:
            return
        usage = ending.usage
        tokens = self.tokens if usage is None else float(usage.prompt + usage.completion)
        self.sessions.end(self.name, tokens, ending.now)


TYPE = PluginType(
    NAME,
    "lets a new session of an agent wait while the caches are full of others that will come back,"
    " and scores 1 for the endpoint where a session is kept, else 0",
    lambda parameters, building: SessionAdmission(parameters),
    SessionAdmissionParameters,
)
