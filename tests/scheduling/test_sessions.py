"""Sessions stay where they are: the scorer, the filter and both strategies."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request, target, with_header

from inferway.errors import ConfigError
from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.registry import Building
from inferway.scheduling.session_id import NamesSession
from inferway.scheduling.sessions import (
    NamedSession,
    Session,
    SessionAffinity,
    SessionAffinityFilter,
    SessionIdConfig,
    SessionParameters,
    SessionSource,
    TokenConfig,
    TokenSession,
    session,
)

TABLE = candidates(3)


def sent(
    strategy: Session, ask: LLMRequest, table: Candidates, row: int, now: float = 0.0, **more: int
) -> dict[bytes, bytes]:
    """The request goes to that row, and `more` to those of other profiles; what the answer says."""
    others = {profile: target(table, other) for profile, other in more.items()}
    choice = SchedulingResult((target(table, row),), others=others, profile="decode")
    follower = strategy.follow(ask, table, choice)
    if follower is None:
        return {}
    follower.on_attempt(choice.targets[0], now)
    return dict(follower.on_head(200))


def token(name: str) -> LLMRequest:
    return with_header("x-session-token", b64encode(name.encode()))


def test_the_endpoint_that_the_token_names_is_preferred() -> None:
    assert SessionAffinity(TokenSession()).score(token("e1"), TABLE).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("value", [b64encode(b"gone"), b"not base64!", b"/w==", b""])
def test_a_token_that_names_nobody_prefers_nobody(value: bytes) -> None:
    ask = with_header("x-session-token", value)

    assert SessionAffinity(TokenSession()).score(ask, TABLE).tolist() == [0.0, 0.0, 0.0]
    assert SessionAffinityFilter(TokenSession()).keep(ask, TABLE).all()


def test_the_answer_tells_the_token_of_who_answered() -> None:
    scorer = SessionAffinity(TokenSession())
    choice = SchedulingResult((target(TABLE, 0), target(TABLE, 2)))
    follower = scorer.follow(request(), TABLE, choice)
    assert follower is not None

    for each in choice.targets:  # the first was lost, the second answers
        follower.on_attempt(each, 0.0)
    headers = follower.on_head(200)

    assert headers == ((b"x-session-token", b64encode(b"e2")),)
    back = request(headers=headers)
    assert scorer.score(back, TABLE).tolist() == [0.0, 0.0, 1.0]


def test_an_engine_that_fails_keeps_nobody() -> None:
    follower = TokenSession().follow(request(), TABLE, SchedulingResult((target(TABLE, 0),)))
    follower.on_attempt(target(TABLE, 0), 0.0)

    assert follower.on_head(503) == ()


def test_the_filter_leaves_the_sessions_endpoint_alone() -> None:
    assert SessionAffinityFilter(TokenSession()).keep(token("e1"), TABLE).tolist() == [
        False,
        True,
        False,
    ]


def test_a_profiles_endpoint_may_be_kept() -> None:
    prefill = TokenSession(profile="prefill")

    assert sent(prefill, request(), TABLE, 0, prefill=2) == {b"x-session-token": b64encode(b"e2")}
    assert sent(prefill, request(), TABLE, 0) == {}
    decode = TokenSession(profile="decode")
    assert sent(decode, request(), TABLE, 0, prefill=2) == {b"x-session-token": b64encode(b"e0")}


SESSION = with_header("x-session-id", b"s1")


def test_a_named_session_goes_where_it_first_went() -> None:
    named = NamedSession()
    assert sent(named, SESSION, TABLE, 1) == {}

    assert SessionAffinity(named).score(SESSION, TABLE).tolist() == [0.0, 1.0, 0.0]
    assert SessionAffinity(named).score(request(), TABLE).tolist() == [0.0, 0.0, 0.0]


def test_a_named_session_that_was_outvoted_stays() -> None:
    named = NamedSession()
    sent(named, SESSION, TABLE, 1)
    sent(named, SESSION, TABLE, 0)

    assert named.endpoint(SESSION) == "e1"


def test_a_named_session_moves_when_its_endpoint_is_gone() -> None:
    named = NamedSession()
    sent(named, SESSION, TABLE, 2)
    sent(named, SESSION, candidates(2), 0)

    assert named.endpoint(SESSION) == "e0"


def test_a_named_session_is_forgotten_when_it_is_not_used() -> None:
    named = NamedSession(seconds=300.0)
    other = with_header("x-session-id", b"s2")
    sent(named, SESSION, TABLE, 1, now=0.0)
    sent(named, other, TABLE, 2, now=200.0)
    sent(named, SESSION, TABLE, 1, now=250.0)
    sent(named, with_header("x-session-id", b"s3"), TABLE, 0, now=520.0)

    assert [named.endpoint(ask) for ask in (SESSION, other)] == ["e1", None]


def test_headers_are_read_in_order() -> None:
    sources = (SessionSource(header="X-Chat"), SessionSource(header="x-user"))
    config = SessionIdConfig(sources=sources)
    named = session(SessionParameters(strategy="session_id", session_id_config=config), Building())
    both = request(headers=((b"x-user", b"u"), (b"x-chat", b"c")))
    sent(named, both, TABLE, 1)

    assert named.endpoint(with_header("x-chat", b"c")) == "e1"
    assert named.endpoint(with_header("x-user", b"u")) is None


def test_another_header_may_carry_the_token() -> None:
    config = TokenConfig(header="X-Where")
    made = session(SessionParameters(encoded_endpoint_header_config=config), Building())

    assert made.endpoint(with_header("x-where", b64encode(b"e2"))) == "e2"


@pytest.mark.parametrize(
    "source",
    [
        SessionSource(attribute="agent-identity"),
        SessionSource(attribute="SessionID", producer="nobody"),
        SessionSource(header="x-s", attribute="SessionID"),
        SessionSource(),
    ],
)
def test_what_nobody_reads_is_refused(source: SessionSource) -> None:
    config = SessionIdConfig(sources=(source,))

    with pytest.raises(ConfigError, match=r"sources\[0\]: (header|attribute) '"):
        session(SessionParameters(strategy="session_id", session_id_config=config), Building())


def named_by(**parameters: str) -> NamesSession:
    kind = TYPES["session-id-producer"]
    made = kind.build(msgspec.convert(parameters, kind.parameters), Building())
    assert isinstance(made, NamesSession)
    return made


# llm-d-router ebab687, dataproducer/sessionid/producer_test.go
@pytest.mark.parametrize(
    ("parameters", "header", "name"),
    [
        ({"headerName": "x-session-id"}, ("x-session-id", "user-42"), "user-42"),
        ({"headerName": " X-Session-ID "}, ("x-session-id", "  user-42  "), "user-42"),
        ({"headerName": "x-session-id"}, ("other", "irrelevant"), ""),
        ({"headerName": "x-session-id"}, ("x-session-id", ""), ""),
        ({"cookieName": "llm-d-session"}, ("cookie", "llm-d-session=abc123"), "abc123"),
        (
            {"cookieName": "llm-d-session"},
            ("cookie", "csrf=xyz; llm-d-session=abc123; theme=dark"),
            "abc123",
        ),
        ({"cookieName": "llm-d-session"}, ("cookie", "csrf=xyz; theme=dark"), ""),
        ({"cookieName": "llm-d-session"}, ("cookie", ""), ""),
        ({"cookieName": "llm-d-session"}, ("cookie", "llm-d-session"), ""),
    ],
)
def test_a_session_is_named_by_a_header_or_a_cookie(
    parameters: dict[str, str], header: tuple[str, str], name: str
) -> None:
    headers = ((header[0].encode(), header[1].encode()),)

    assert named_by(**parameters).session(headers) == name.encode()


@pytest.mark.parametrize("parameters", [{}, {"headerName": "x", "cookieName": "y"}])
def test_a_session_has_one_name(parameters: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected one of the two"):
        named_by(**parameters)


def test_a_producer_may_name_the_session() -> None:
    scheduling = load_scheduling(
        {
            "plugins": [
                {
                    "type": "session-affinity-scorer",
                    "parameters": {
                        "strategy": "session_id",
                        "sessionIdConfig": {
                            "sources": [
                                {"attribute": "agent-identity"},
                                {"attribute": "SessionID", "producer": "session-id-producer"},
                            ]
                        },
                    },
                },
                {"type": "session-id-producer", "parameters": {"cookieName": "chat"}},
                {"type": "agent-identity"},
            ]
        }
    )
    asks = [with_header("cookie", b"chat=7"), with_header("x-claude-code-session-id", b"c")]
    for ask, row in zip(asks, (2, 1), strict=True):
        for following in scheduling.following:
            choice = SchedulingResult((target(TABLE, row),))
            follower = following.follow(ask, TABLE, choice)
            assert follower is not None
            follower.on_attempt(target(TABLE, row), 0.0)

    chosen = [scheduling.chooser.choose(ask, TABLE).targets[0].endpoint.engine for ask in asks]

    assert chosen == ["e2", "e1"]
