"""The endpoint of a session's requests, for the scorer and the filter that keep them together.

Two strategies (llm-d-router ebab687, util/sessionaffinity). `encoded_endpoint_header`: the answer
names the endpoint in a header, base64 of its name, and the client sends that again with its next
request. `session_id`: the client names its session, and we remember where it went; a session moves
only when its endpoint is gone.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.model import Candidates, Column, Endpoint, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.plugin import RequestListener
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway.scheduling.session_id import (
    AGENT_IDENTITY,
    SESSION_ID,
    NamesSession,
    header_bytes,
    session_header,
)

TOKEN_HEADER = "x-session-token"
SESSION_HEADER = "x-session-id"
MOST_SESSIONS = 1_000_000  # remembered; beyond, the one unused for the longest time is forgotten

Seconds = Annotated[float, Meta(gt=0)]


class TokenConfig(Parameters, frozen=True):
    header: str = ""  # "": x-session-token


class SessionSource(Parameters, frozen=True):
    header: str = ""
    # or what another plugin reads: SessionID of the producer, or agent-identity of another plugin
    attribute: str = ""
    producer: str = ""


class SessionIdConfig(Parameters, frozen=True):
    sources: tuple[SessionSource, ...] = ()  # the first that a request has; none: x-session-id
    eviction_ttl_seconds: Seconds = 300.0  # unused for so long, a session is forgotten
    eviction_sweep_seconds: Seconds = 10.0  # not in force: the next request sweeps


class SessionParameters(Parameters, frozen=True):
    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    encoded_endpoint_header_config: TokenConfig = TokenConfig()
    session_id_config: SessionIdConfig = SessionIdConfig()
    profile_name: str = ""  # whose endpoint is kept; "": the one that answers


NOT_IN_FORCE = frozenset({"sessionIdConfig.evictionSweepSeconds"})


class Session(Protocol):
    """A strategy of session affinity."""

    def endpoint(self, request: LLMRequest) -> str | None:
        """Return the name of the endpoint that the request's session is at, if it has one."""

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None: ...


@dataclass(slots=True)
class SessionTracking:
    """The common part of the session affinity scorer and filter."""

    session: Session
    _rows: PerEndpoint[dict[str, int]] = field(default_factory=lambda: PerEndpoint(rows_by_name))

    def row(self, request: LLMRequest, candidates: Candidates) -> int | None:
        """Return the row of the session's endpoint; None if it has none, or that is no
        candidate."""
        name = self.session.endpoint(request)
        return None if name is None else self._rows(candidates.endpoints).get(name)

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        return self.session.follow(request, candidates, choice)


class SessionAffinity(SessionTracking):
    """Rates 1 for the session's endpoint, 0 for all others; 0 for all without a session."""

    __slots__ = ()

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        scores = np.zeros(len(candidates.endpoints))
        row = self.row(request, candidates)
        if row is not None:
            scores[row] = 1.0
        return scores


class SessionAffinityFilter(SessionTracking):
    """Keeps the session's endpoint alone; all, where it has none or that is not a candidate."""

    __slots__ = ()

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        row = self.row(request, candidates)
        if row is None:
            return np.ones(len(candidates.endpoints), np.bool_)
        kept = np.zeros(len(candidates.endpoints), np.bool_)
        kept[row] = True
        return kept


def session(parameters: SessionParameters, building: Building) -> Session:
    """Return the strategy that the parameters ask for. Raises ConfigError."""
    if parameters.strategy == "encoded_endpoint_header":
        config = parameters.encoded_endpoint_header_config
        header = header_bytes(config.header) or TOKEN_HEADER.encode()
        return TokenSession(header, parameters.profile_name)
    named = parameters.session_id_config
    sources = [_source(each, n, building) for n, each in enumerate(named.sources)]
    default = [session_header(SESSION_HEADER)]
    return NamedSession(sources or default, named.eviction_ttl_seconds, parameters.profile_name)


def _source(source: SessionSource, number: int, building: Building) -> NamesSession:
    where = f"sessionIdConfig.sources[{number}]"
    if bool(source.header.strip()) == bool(source.attribute):
        raise ConfigError(
            f"{where}: header {source.header!r}, attribute {source.attribute!r}; expected one of"
            " the two"
        )
    if source.header:
        return session_header(source.header)
    name = source.producer or building.sole_plugin_of(_producer_of(source))
    found = building.plugins.get(name)
    if not isinstance(found, NamesSession):
        raise ConfigError(
            f"{where}: attribute {source.attribute!r} of producer {source.producer!r} is read by no"
            f" plugin; expected a producer of type {SESSION_ID} or {AGENT_IDENTITY}"
        )
    return found


def _producer_of(source: SessionSource) -> str:
    return AGENT_IDENTITY if source.attribute == AGENT_IDENTITY else SESSION_ID


def _needs(parameters: SessionParameters) -> Sequence[str]:
    if parameters.strategy != "session_id":
        return ()
    sources = [each for each in parameters.session_id_config.sources if each.attribute]
    return [each.producer or _producer_of(each) for each in sources]


def rows_by_name(endpoints: Sequence[Endpoint]) -> dict[str, int]:
    return {endpoint.name: row for row, endpoint in enumerate(endpoints)}


def _used(choice: SchedulingResult, profile: str, target: Target) -> Endpoint | None:
    """The endpoint that `profile` chose; None if it chose none for this request."""
    if profile in ("", choice.profile):
        return target.endpoint
    other = choice.others.get(profile)
    return None if other is None else other.endpoint


@dataclass(frozen=True, slots=True)
class TokenSession:
    """The strategy `encoded_endpoint_header`: the endpoint travels in a header."""

    header: bytes = TOKEN_HEADER.encode()
    profile: str = ""

    def endpoint(self, request: LLMRequest) -> str | None:
        token = request.header(self.header)
        if not token:
            return None
        try:
            return b64decode(token, validate=True).decode()
        except (Error, UnicodeDecodeError):
            return None  # not ours; the answer brings a new one

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        return _SessionTokenListener(self, choice)


@dataclass(slots=True)
class _SessionTokenListener(RequestListener):
    session: TokenSession
    choice: SchedulingResult
    _endpoint: Endpoint | None = None

    def on_attempt(self, target: Target, now: float) -> Headers:
        self._endpoint = _used(self.choice, self.session.profile, target)
        return ()

    def on_head(self, status: int) -> Headers:
        if self._endpoint is None or status >= 500:
            return ()
        return ((self.session.header, b64encode(self._endpoint.name.encode())),)


@dataclass(slots=True)
class NamedSession:
    """Affinity by session_id. The first request of a session that is on its way binds it."""

    sources: Sequence[NamesSession] = (session_header(SESSION_HEADER),)
    seconds: float = 300.0
    profile: str = ""
    # session -> (name of the endpoint, when it was last used), the last used last
    _at: OrderedDict[bytes, tuple[str, float]] = field(default_factory=OrderedDict)
    _names: PerEndpoint[dict[str, int]] = field(default_factory=lambda: PerEndpoint(rows_by_name))

    def endpoint(self, request: LLMRequest) -> str | None:
        name = self._session(request)
        at = None if name is None else self._at.get(name)
        return None if at is None else at[0]

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        name = self._session(request)
        if name is None:
            return None
        at = self._at.get(name)
        is_gone = at is not None and at[0] not in self._names(candidates.endpoints)
        return _SessionBindingListener(self, name, choice, is_gone)

    def bind(self, name: bytes, endpoint: str, now: float, *, is_gone: bool) -> None:
        """Have the session at `endpoint`, where its request goes."""
        at = self._at.get(name)
        if at is None or at[0] == endpoint or is_gone:
            self._at[name] = (endpoint, now)
            self._at.move_to_end(name)
        while len(self._at) > MOST_SESSIONS or self._oldest() < now - self.seconds:
            self._at.popitem(last=False)

    def _oldest(self) -> float:
        return next(iter(self._at.values()))[1] if self._at else float("inf")

    def _session(self, request: LLMRequest) -> bytes | None:
        for source in self.sources:
            name = source.session(request.headers)
            if name:
                return name
        return None


@dataclass(slots=True)
class _SessionBindingListener(RequestListener):
    session: NamedSession
    name: bytes
    choice: SchedulingResult
    is_gone: bool

    def on_attempt(self, target: Target, now: float) -> Headers:
        endpoint = _used(self.choice, self.session.profile, target)
        if endpoint is not None:
            self.session.bind(self.name, endpoint.name, now, is_gone=self.is_gone)
        return ()


SCORER = PluginType(
    "session-affinity-scorer",
    "scores 1 for the endpoint of the request's session (x-session-token or x-session-id), else 0",
    lambda parameters, building: SessionAffinity(session(parameters, building)),
    SessionParameters,
    needs=_needs,
    not_in_force=NOT_IN_FORCE,
)
FILTER = PluginType(
    "session-affinity-filter",
    "keeps the endpoint of the request's session; all endpoints if it has no session, or its "
    "endpoint is gone",
    lambda parameters, building: SessionAffinityFilter(session(parameters, building)),
    SessionParameters,
    needs=_needs,
    not_in_force=NOT_IN_FORCE,
)
