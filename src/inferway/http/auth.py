"""Authentication: requests are let in by an API key, by the admin key, or without one; a key says
what its requests may take.

configured        a request without a key      an admin is
nothing           is anybody's                 everybody
the admin key     is anybody's                 who bears it
API keys          401                          who bears the admin key, or a key with `admin`

What a key says of tenant and priority holds, and headers that say so count only where there are no
keys. A key that was checked ends here: it travels to no engine and into no log.

Who has logged in to the page (`http.page`) has a cookie, which stands for the key on paths for
admins, and nowhere else. A browser sends it by itself; so what changes anything wants a header with
it that no page of another origin can send.

Wrong keys on paths for admins and at the page's login are counted together (`page.guesses`): whose
address has sent too many has to wait. Elsewhere they are not, because a key that is not ours may be
meant for an engine.

A cache is an oracle: who may ask how much of a prompt is cached can find out, block by block, what
others have asked. So scores, and the headers that say how a request was decided, are the
operator's, once a key is configured. Without keys, whoever reaches the gateway is an admin; the
page of a stranger, open in a browser on the same machine, is not meant by that:

A page of another site        the browser says so: `Origin`, which is not our host, or
                              `Sec-Fetch-Site` (Fetch Metadata)
A page whose host's name      `Host` has that name. A gateway that listens on loopback alone is
was made ours afterwards      asked for as an address or as localhost
(DNS rebinding)
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from inferway.config import ServeSettings
from inferway.errors import (
    ForbiddenError,
    TooManyGuessesError,
    UnauthorizedError,
)
from inferway.fleet.fleet import Fleet
from inferway.fleet.structured_gate import FleetEngines
from inferway.http.gate_queues import GoodputQueue, SessionQueue
from inferway.http.guesses import Guesses
from inferway.http.listening import UNIX
from inferway.http.message import Request
from inferway.http.request_queue import RequestQueue
from inferway.http.responder import Responder
from inferway.http.session_cookie import COOKIE, PAGE_HEADER, cookie_of, forget_cookie
from inferway.http.sessions import Sessions
from inferway.model import Candidates
from inferway.routing.eligible import Eligible
from inferway.routing.limits.callers import (
    CARRIERS,
    AdminKey,
    ApiCaller,
    Callers,
    read_callers,
    shows_key,
    without_credentials,
)
from inferway.routing.limits.concurrency_limiter import OtherProcesses
from inferway.routing.limits.failover import FailoverPolicy, Retries
from inferway.routing.limits.goodput_gate import GoodputGate
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.limits.request_quarantine import RequestQuarantine
from inferway.routing.limits.saturation_gate import SaturationGate
from inferway.routing.limits.session_gate import SessionGate
from inferway.routing.limits.slot import Slot
from inferway.routing.objectives import named_tenant, tenant_name
from inferway.scheduling.scheduling import Scheduling
from inferway.scheduling.session_id import NamesSession

log = logging.getLogger("inferway.forward")

_FOREIGN = (b"cross-site", b"same-site")
_LOCAL_HOST = re.compile(rb"(?:[\w-]+\.)*localhost|[0-9.]+|\[[0-9a-fA-F:.]+\]", re.IGNORECASE)
_PORT = re.compile(rb":[0-9]*$")
_CURE = "web pages may not ask this path without the admin key; set admin_key_env"

_EVERYBODY = ApiCaller(admin=True)
_ANYBODY = ApiCaller()
_ADMIN = ApiCaller(admin=True)
_NAMED_ADMIN = ApiCaller(tenant="admin", priority=0, admin=True, name="admin")


@dataclass(slots=True)
class Auth:
    """`callers` is replaced when the keys are read again."""

    failover: FailoverPolicy
    control: RequestQueue
    admin_key: AdminKey | None = None
    callers: Callers | None = None
    is_local: bool = False  # the gateway listens on loopback alone
    agents: NamesSession | None = None  # reads which agent a request is of
    sessions: Sessions = field(default_factory=lambda: Sessions(time.monotonic))
    guesses: Guesses = field(default_factory=lambda: Guesses(time.monotonic))
    refused: int = 0  # for want of a key
    requests: dict[str, int] = field(default_factory=dict)  # by name of the key
    reloads: dict[str, int] = field(default_factory=lambda: {"done": 0, "refused": 0})

    @property
    def is_guarded(self) -> bool:
        """True if all paths for requests want a key."""
        return self.callers is not None

    @property
    def knows_admins(self) -> bool:
        """True if a key can show that a client is an admin; else every client counts as one."""
        return self.admin_key is not None or self.callers is not None

    def caller(self, request: Request) -> ApiCaller:
        """Return whose request it is, which does not have the key from then on. Raises
        UnauthorizedError."""
        if COOKIE in request.fields:
            forget_cookie(request)
        if self.callers is None:
            if self.admin_key is None:
                return _EVERYBODY
            if not self.admin_key.is_carried(request.headers):
                return _ANYBODY
            request.headers = self.admin_key.without(request.headers)
            _forget_key(request)
            return _ADMIN
        caller = self._known(self.callers, request)
        request.headers = without_credentials(request.headers)
        _forget_key(request)
        self.requests[caller.name] = self.requests.get(caller.name, 0) + 1
        return caller

    def tenant(self, caller: ApiCaller, request: Request) -> str:
        """Return the tenant whose request it is; "" if nothing says so."""
        return caller.tenant if caller.name else named_tenant(request.headers)

    def share(self, tenant: str, request: Request) -> str:
        """Return the tenant whose share of the engines a request takes: where none was named, the
        agent's. No caches are kept apart by that."""
        if tenant or self.agents is None:
            return tenant
        return tenant_name(self.agents.session(request.headers))

    @property
    def keys(self) -> tuple[object, object]:
        """The keys that admins are known by now: a session goes on as long as they are the same."""
        return (self.admin_key, self.callers)

    def is_admins_key(self, key: str) -> bool:
        """Return whether it is the admin key, or the API key of an admin."""
        headers = ((CARRIERS[1], key.encode("utf-8", "surrogateescape")),)
        if self.admin_key is not None and self.admin_key.is_carried(headers):
            return True
        try:
            return self.callers is not None and self.callers.of(headers).admin
        except UnauthorizedError:
            return False

    def is_in_session(self, request: Request) -> bool:
        """Return whether an admin who has logged in has sent the request, from the page."""
        token = cookie_of(request)
        if token is None or not self.knows_admins or not self.sessions.is_open(token, self.keys):
            return False
        try:
            check_no_web_page(request, is_local=False)
        except ForbiddenError:
            return False
        return request.method in ("GET", "HEAD") or PAGE_HEADER in request.fields

    def check_admin(self, request: Request) -> None:
        """Raises UnauthorizedError or ForbiddenError unless it is an admin's, and
        TooManyGuessesError."""
        if self.is_in_session(request):
            return
        if self.callers is None and self.admin_key is None:
            check_no_web_page(request, is_local=self.is_local)
            return
        try:
            self._check_admins_key(request)
        except UnauthorizedError:
            self._hear(request, is_right=False)
            raise
        self._hear(request, is_right=True)

    def is_admin(self, request: Request) -> bool:
        """Return whether an admin has sent the request, on an open path; a wrong key counts."""
        if not self.knows_admins or self.is_in_session(request):
            return True
        admins = self._is_admins(request)
        try:
            if admins is not False:
                self._hear(request, is_right=admins is True)
        except TooManyGuessesError:
            return False
        return admins is True

    def check(self, request: Request) -> None:
        """Raises UnauthorizedError if the request has to have a key and has none."""
        if self.callers is not None:
            self._known(self.callers, request)

    def lets_in(self, request: Request, *, admins_only: bool) -> bool:
        """Return whether `check_admin`, or else `check`, would let the request in; nothing is
        counted."""
        if admins_only and self.is_in_session(request):
            return True
        if self.callers is None and not (admins_only and self.admin_key is not None):
            return True
        admins = self._is_admins(request)
        if not admins_only:
            return admins is not None
        return admins is True and self.guesses.lets_in(request.client)

    def ticket(self, responder: Responder, tenant: str) -> Slot | None:
        """Return a slot for the request; None while nothing is limited."""
        return self.control.ticket(responder, tenant)

    def _is_admins(self, request: Request) -> bool | None:
        """Return whether its key is an admin's; None if it has none that is known."""
        if self.callers is None:
            is_it = self.admin_key is not None and self.admin_key.is_carried(request.headers)
            return True if is_it else None
        try:
            return self._bearer(self.callers, request).admin
        except UnauthorizedError:
            return None

    def _check_admins_key(self, request: Request) -> None:
        if self.callers is not None:
            if not self._known(self.callers, request).admin:
                raise ForbiddenError("this path needs an admin key")
        elif self.admin_key is not None:
            self.admin_key.check(request.headers)

    def _hear(self, request: Request, *, is_right: bool) -> None:
        if shows_key(request.headers):
            self.guesses.hear(request.client, is_right=is_right)

    def _known(self, callers: Callers, request: Request) -> ApiCaller:
        try:
            return self._bearer(callers, request)
        except UnauthorizedError:
            self.refused += 1
            raise

    def _bearer(self, callers: Callers, request: Request) -> ApiCaller:
        if self.admin_key is not None and self.admin_key.is_carried(request.headers):
            return _NAMED_ADMIN
        return callers.of(request.headers)


def _forget_key(request: Request) -> None:
    for name in CARRIERS:
        request.fields.pop(name, None)


class Keys(NamedTuple):
    """The keys of admins and of callers; None where none is configured."""

    admin: AdminKey | None
    callers: Callers | None


def read_keys(settings: ServeSettings) -> Keys:
    """Return the keys that the settings name. Raises ConfigError."""
    key, path = settings.admin_key(), settings.api_keys
    return Keys(
        None if key is None else AdminKey(key), None if path is None else read_callers(Path(path))
    )


def build_auth(
    settings: ServeSettings,
    keys: Keys,
    fleet: Fleet,
    scheduling: Scheduling,
    others: OtherProcesses | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_outcome: Callable[[str, bool], None] | None = None,
    on_suspect: Callable[[str, str, bool], None] | None = None,
) -> Auth:
    """Return what the settings and the scheduling's flow control ask for. `others` keep limits
    together with this process; None: it is alone. `clock` counts seconds. `on_outcome`,
    `on_suspect`: other processes are told as OutlierDetection and RequestQuarantine tell."""
    retries = Retries(settings.retries)
    quarantine = RequestQuarantine(
        lambda: retries.settings.quarantine_seconds,
        FleetEngines(fleet).is_up,
        clock,
        lambda seconds, call: asyncio.get_running_loop().call_later(seconds, call),
        on_suspect,
    )
    standing = OutlierDetection(settings.ejection, suspended=fleet.suspended, tell=on_outcome)
    failover = FailoverPolicy(clock, standing, retries, quarantine)

    def engines_of(model: str) -> frozenset[str]:
        names = fleet.engines_of(model)
        if failover.standing.is_plain:
            return names
        return failover.standing.allowed(names, clock())

    def is_suspended(model: str) -> bool:
        """Return whether engines of it are there, and would take requests if none was suspended."""
        names = fleet.engines_of(model) if standing.suspended else frozenset()
        is_any = any(name in standing.suspended and name not in standing.drained for name in names)
        return is_any and not standing.allowed(names, clock())

    eligible = Eligible()

    def endpoints_of(model: str) -> tuple[Candidates, float]:
        candidates, standing = fleet.candidates(model), failover.standing
        num_requests = fleet.table.num_booked(candidates)
        if not standing.is_plain:
            candidates = eligible.standing(candidates, model, standing, clock())
        return candidates, num_requests

    flow = scheduling.flow_control
    gate = None if flow is None else SaturationGate(flow, endpoints_of)
    sessions = None
    if scheduling.sessions is not None:

        def cache_tokens_of(model: str) -> Mapping[str, float]:
            return fleet.cache_tokens(engines_of(model))

        session_gate = SessionGate(scheduling.sessions, cache_tokens_of, settings.flow.queue)
        sessions = SessionQueue(session_gate, clock)
    goodput = None
    if scheduling.in_time is not None:
        goodput_gate = GoodputGate(
            scheduling.in_time, lambda model: endpoints_of(model)[0], settings.flow.queue
        )
        goodput = GoodputQueue(goodput_gate, clock)
    control = RequestQueue(
        *(settings.flow, engines_of, clock, gate, sessions, others, is_suspended, goodput)
    )
    return Auth(
        failover,
        control,
        *keys,
        is_local=admins_are_local(settings),
        agents=scheduling.agents,
    )


def admins_are_local(settings: ServeSettings) -> bool:
    """Return whether paths for admins are on loopback alone. Where requests come by a Unix socket,
    which no browser opens, a port for admins is."""
    host = settings.host
    if host.startswith(UNIX):
        return settings.admin_port is not None
    return host in ("localhost", "::1") or host.startswith("127.")


def check_no_web_page(request: Request, *, is_local: bool) -> None:
    """Raises ForbiddenError for another site's page. `is_local`: loopback alone is listened on."""
    fields = request.fields
    host, origin = fields.get(b"host", b""), fields.get(b"origin")
    if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
        raise ForbiddenError(f"origin {_text(origin)}: not this gateway's own; {_CURE}")
    if fields.get(b"sec-fetch-site") in _FOREIGN:
        raise ForbiddenError(f"sec-fetch-site: a page of another site; {_CURE}")
    if is_local and host and not _LOCAL_HOST.fullmatch(_PORT.sub(b"", host)):
        raise ForbiddenError(
            f"host {_text(host)}: expected localhost or an address, as the gateway listens on"
            f" loopback; {_CURE}"
        )


def _text(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
