"""Who is let in, and as whom."""

from __future__ import annotations

from time import monotonic

import pytest

from inferway.config import FlowSettings, ServeSettings
from inferway.errors import ForbiddenError, TooManyGuessesError, UnauthorizedError
from inferway.http.auth import Auth, admins_are_local
from inferway.http.guesses import MOST_OF_ONE
from inferway.http.message import Request
from inferway.http.request_queue import RequestQueue
from inferway.routing.limits.callers import AdminKey, Callers, KeySettings, hash_of, new_key
from inferway.routing.limits.failover import FailoverPolicy
from inferway.scheduling.load import load_scheduling

USER, ADMIN, STRANGER = new_key(), new_key(), new_key()
NAMES = {USER: "user", ADMIN: "boss", STRANGER: "stranger"}  # a test has the same name in every run
CALLERS = Callers(
    [
        KeySettings(name="user", hash=hash_of(USER), tenant="team", priority=2),
        KeySettings(name="boss", hash=hash_of(ADMIN), admin=True),
    ]
)


def auth(*, admin_key: bool = False, keys: bool = False) -> Auth:
    control = RequestQueue(FlowSettings(), lambda _: [], monotonic)
    return Auth(
        *(FailoverPolicy(monotonic), control),
        AdminKey("s3cret") if admin_key else None,
        CALLERS if keys else None,
    )


def bearing(key: str | None) -> Request:
    request = Request.to("POST", b"/v1/chat/completions", 0.0)
    request.headers = [(b"host", b"h")]
    if key is not None:
        request.headers.append((b"authorization", b"Bearer " + key.encode()))
    request.fields = dict(request.headers)
    return request


@pytest.mark.parametrize(
    ("admin_key", "keys", "key", "tenant", "priority", "is_admin", "travels_on"),
    [
        (False, False, None, "", None, True, True),
        (False, False, "engines own", "", None, True, True),
        (True, False, None, "", None, False, True),
        (True, False, "engines own", "", None, False, True),
        (True, False, "s3cret", "", None, True, False),
        (False, True, USER, "team", 2, False, False),
        (False, True, ADMIN, "boss", 0, True, False),
        (True, True, USER, "team", 2, False, False),
        (True, True, "s3cret", "admin", 0, True, False),
    ],
    ids=NAMES.get,
)
def test_a_request_is_its_bearers(
    admin_key: bool,
    keys: bool,
    key: str | None,
    tenant: str,
    priority: int | None,
    is_admin: bool,
    travels_on: bool,
) -> None:
    request = bearing(key)

    caller = auth(admin_key=admin_key, keys=keys).caller(request)

    assert (caller.tenant, caller.priority, caller.admin) == (tenant, priority, is_admin)
    carried = b"authorization" in dict(request.headers)
    assert carried == (b"authorization" in request.fields) == (travels_on and key is not None)


@pytest.mark.parametrize("key", [None, "", "s3cret", STRANGER], ids=NAMES.get)
def test_with_keys_nobody_else_is_let_in_and_that_is_counted(key: str | None) -> None:
    guarded = auth(keys=True)

    with pytest.raises(UnauthorizedError):
        guarded.caller(bearing(key))
    with pytest.raises(UnauthorizedError):
        guarded.check(bearing(key))
    with pytest.raises(UnauthorizedError):
        guarded.check_admin(bearing(key))

    assert (guarded.refused, guarded.requests) == (3, {})


@pytest.mark.parametrize("admins_only", [False, True])
@pytest.mark.parametrize("key", [None, "s3cret", USER, ADMIN, STRANGER], ids=NAMES.get)
@pytest.mark.parametrize("admin_key", [False, True])
@pytest.mark.parametrize("keys", [False, True])
def test_who_would_be_let_in_is_told_without_counting(
    keys: bool, admin_key: bool, key: str | None, admins_only: bool
) -> None:
    asked, held = (auth(admin_key=admin_key, keys=keys) for _ in range(2))
    try:
        (held.check_admin if admins_only else held.check)(bearing(key))
        is_let_in = True
    except (UnauthorizedError, ForbiddenError):
        is_let_in = False

    assert asked.lets_in(bearing(key), admins_only=admins_only) == is_let_in
    assert asked.refused == 0


def from_there(key: str | None, client: str) -> Request:
    request = bearing(key)
    request.client = client
    return request


@pytest.mark.parametrize("right", ["s3cret", ADMIN], ids=NAMES.get)
def test_after_too_many_wrong_keys_an_address_is_not_heard_and_others_are(right: str) -> None:
    guarded = auth(admin_key=right == "s3cret", keys=right == ADMIN)
    for _ in range(MOST_OF_ONE):
        with pytest.raises(UnauthorizedError):
            guarded.check_admin(from_there(STRANGER, "10.0.0.1"))

    for key in (STRANGER, right):
        with pytest.raises(TooManyGuessesError):
            guarded.check_admin(from_there(key, "10.0.0.1"))
        assert not guarded.lets_in(from_there(key, "10.0.0.1"), admins_only=True)
        assert not guarded.is_admin(from_there(key, "10.0.0.1"))
    guarded.check_admin(from_there(right, "10.0.0.2"))
    assert guarded.lets_in(from_there(right, "10.0.0.2"), admins_only=True)
    with pytest.raises(UnauthorizedError):  # no key is no guess
        guarded.check_admin(from_there(None, "10.0.0.1"))


def test_wrong_keys_count_where_admins_are_told_more_than_others() -> None:
    guarded = auth(admin_key=True)
    for _ in range(MOST_OF_ONE):
        assert not guarded.is_admin(from_there(STRANGER, "10.0.0.1"))

    assert not guarded.is_admin(from_there("s3cret", "10.0.0.1"))
    assert guarded.is_admin(from_there("s3cret", "10.0.0.2"))


def test_a_callers_key_is_no_guess() -> None:
    guarded = auth(keys=True)
    for _ in range(2 * MOST_OF_ONE):
        with pytest.raises(ForbiddenError):
            guarded.check_admin(from_there(USER, "10.0.0.1"))
        assert not guarded.is_admin(from_there(USER, "10.0.0.1"))

    guarded.check_admin(from_there(ADMIN, "10.0.0.1"))


@pytest.mark.parametrize(
    ("host", "admin_port", "is_local"),
    [
        ("127.0.0.1", None, True),
        ("localhost", None, True),
        ("::1", None, True),
        ("0.0.0.0", None, False),
        ("0.0.0.0", 9090, False),
        ("unix:/run/gw", None, False),
        ("unix:/run/gw", 9090, True),  # which is on loopback then
    ],
)
def test_where_admins_are_asked_from_this_machine_alone(
    host: str, admin_port: int | None, is_local: bool
) -> None:
    settings = ServeSettings(engines=[], host=host, admin_port=admin_port)

    assert admins_are_local(settings) == is_local


def test_a_known_key_that_is_no_admins_is_forbidden() -> None:
    guarded = auth(keys=True)

    with pytest.raises(ForbiddenError, match="this path needs an admin key"):
        guarded.check_admin(bearing(USER))

    guarded.check_admin(bearing(ADMIN))


def test_without_any_key_admin_paths_are_open() -> None:
    auth().check_admin(bearing(None))
    auth().check(bearing(None))


def test_requests_are_counted_by_the_name_of_their_key() -> None:
    guarded = auth(keys=True)
    for key in (USER, USER, ADMIN):
        guarded.caller(bearing(key))

    assert guarded.requests == {"user": 2, "boss": 1}


@pytest.mark.parametrize(
    ("tenant", "headers", "share"),
    [
        ("", {}, ""),
        ("", {b"x-claude-code-session-id": b"s1"}, "s1"),
        ("team", {b"x-claude-code-session-id": b"s1"}, "team"),
        ("", {b"session_id": b"old", b"session-id": b"new"}, "new"),
    ],
)
def test_an_agent_of_no_tenant_takes_its_own_share(
    tenant: str, headers: dict[bytes, bytes], share: str
) -> None:
    asked = auth()
    request = bearing(None)
    request.headers = [*request.headers, *headers.items()]
    assert asked.share(tenant, request) == tenant

    asked.agents = load_scheduling({"plugins": [{"type": "agent-identity"}]}).agents

    assert asked.share(tenant, request) == share
