"""A request's session or agent, as a header or a cookie names it: for plugins that keep sessions
together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from inferway.errors import ConfigError
from inferway.model import Headers
from inferway.scheduling.registry import Building, Parameters, PluginType

SESSION_ID = "session-id-producer"
AGENT_IDENTITY = "agent-identity"

# Claude Code's, opencode's, Codex' since 0.131, Codex' before.
AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")


@runtime_checkable
class NamesSession(Protocol):
    """Reads of a request's headers which session it belongs to."""

    def session(self, headers: Headers) -> bytes:
        """Return the session's name; b"" if they do not say."""


@dataclass(frozen=True, slots=True)
class SessionHeaders:
    """Reads the first of these headers that says something."""

    names: tuple[bytes, ...]

    def session(self, headers: Headers) -> bytes:
        for wanted in self.names:
            for name, value in reversed(headers):
                if name == wanted and value.strip():
                    return value.strip()
        return b""


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """Reads the cookie of this name."""

    name: bytes

    def session(self, headers: Headers) -> bytes:
        cookies = next((value for key, value in reversed(headers) if key == b"cookie"), b"")
        for pair in cookies.split(b";"):
            name, equals, value = pair.strip().partition(b"=")
            if equals and name == self.name:
                return value.strip()
        return b""


class AgentIdentity(SessionHeaders):
    """Reads which agent sends a request: whose share of the engines it takes, if it is of no tenant
    (llm-d-router ebab687, requestheader/agentidentity)."""

    __slots__ = ()


class SessionIdParameters(Parameters, frozen=True):
    header_name: str = ""
    cookie_name: str = ""


class AgentIdentityParameters(Parameters, frozen=True):
    additional_session_headers: tuple[str, ...] = ()  # before the others


def session_header(name: str) -> SessionHeaders:
    """Return the reader of the header of that name."""
    return SessionHeaders((header_bytes(name),))


def header_bytes(name: str) -> bytes:
    """Return the header's name as requests have it."""
    return name.strip().lower().encode("latin-1", "replace")


def _session_id(parameters: SessionIdParameters, building: Building) -> NamesSession:
    header, cookie = parameters.header_name.strip(), parameters.cookie_name.strip()
    if bool(header) == bool(cookie):
        raise ConfigError(f"headerName {header!r}, cookieName {cookie!r}; expected one of the two")
    return session_header(header) if header else SessionCookie(cookie.encode("latin-1", "replace"))


def _agent_identity(parameters: AgentIdentityParameters, building: Building) -> AgentIdentity:
    names = (*parameters.additional_session_headers, *AGENT_HEADERS)
    return AgentIdentity(tuple([header_bytes(name) for name in names]))


TYPES = (
    PluginType(
        SESSION_ID,
        "reads a session's name from the header headerName or the cookie cookieName, for "
        "sessionIdConfig.sources",
        _session_id,
        SessionIdParameters,
    ),
    PluginType(
        AGENT_IDENTITY,
        "reads the header in which an agent (Claude Code, opencode, Codex) names its session: for "
        "fairness between the sessions of no tenant, and for sessionIdConfig.sources",
        _agent_identity,
        AgentIdentityParameters,
    ),
)
