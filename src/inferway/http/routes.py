"""The gateway's paths. Each handler answers one request; errors become OpenAI-shaped bodies.

POST /v1/chat/completions, /v1/completions, /v1/messages,
     /v1/responses, /v1/embeddings                         routed and forwarded
POST /v1/messages/count_tokens                             counted here, or forwarded by load
POST /tokenize, /score ... (openai_api.kinds)              forwarded by load
GET  /v1/realtime                                          a WebSocket, carried to an engine by load
POST /v1/load_lora_adapter, /v1/unload_lora_adapter        with an admin key: told to engines
POST /v1/structured/explain                                what would become of a shape
POST /score_chat_completions, /score_completions, /query   what each engine holds of a prompt
GET  /v1/models   /v1/models/NAME   /version   /          what there is
GET  /health   /ping   /ready   /metrics   /admin/engines   /admin/traffic   /admin/peers
GET  /admin/alarms
POST /admin/engines/NAME/drain   /admin/engines/NAME/resume   /admin/drain
GET  /                                                     all paths

Extensions have more (http.extension_parts).

With an admin key or API keys configured, what the caches hold of a prompt is for admins only:
and the headers of an answer that say how it was decided, the names of engines in errors and in
/ready, and /metrics, which has the names of keys, too (`auth`). With a port for admins, theirs
and /metrics are there alone (`Routes.admin`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial
from types import MappingProxyType

from inferway.errors import (
    EnginesSuspendedError,
    FleetError,
    InferwayError,
    MethodNotAllowedError,
    RequestError,
    UnknownPathError,
)
from inferway.extension import outcome_of
from inferway.fleet.draining import Draining
from inferway.http.admin import AdminPages, AlarmPages, PeersReport
from inferway.http.auth import Auth
from inferway.http.continued import ContinuedStream, Continuer
from inferway.http.discovery_pages import PathsPage, VersionPage, unknown_path
from inferway.http.errors import withheld
from inferway.http.extension_parts import Audience, Route
from inferway.http.forward import forward
from inferway.http.held import HeldRequests
from inferway.http.inference_ingress import InferenceIngress
from inferway.http.lora import PATHS as LORA
from inferway.http.lora import LoraRoutes
from inferway.http.message import REALTIME, Request
from inferway.http.metrics import MetricsPage
from inferway.http.models import PATH as MODELS
from inferway.http.models import ModelPages
from inferway.http.responder import Responder
from inferway.http.score_pages import PATHS as SCORES
from inferway.http.score_pages import ScorePages
from inferway.http.server import Handler
from inferway.http.state_pages import PATHS as STATE
from inferway.http.state_pages import StatePages
from inferway.http.structured.explain import PATH as EXPLAIN_SHAPE
from inferway.http.structured.explain import Explain
from inferway.http.structured.judged import JudgedAnswer
from inferway.http.token_counts import TokenCounts
from inferway.http.tunnel import TunnelRoute
from inferway.indexer import Indexer
from inferway.openai_api.kinds import COUNT_TOKENS, GENERATING
from inferway.routing.answer_plan import AnswerPlan
from inferway.routing.director import Director
from inferway.routing.journey import Journey
from inferway.routing.limits.callers import ApiCaller
from inferway.telemetry.request_counts import RequestCounts
from inferway.telemetry.traffic_counts import TrafficCounts
from inferway.upstream.pool import Pool
from inferway_structured.turns import Asker

Table = dict[str, Mapping[str, Handler]]  # path -> method -> handler

_ADMIN_PATHS = frozenset({*SCORES, *LORA})
_METRICS = "/metrics"
_ADMIN_PREFIX = "/admin/"
_CHANGES = "/admin/engines/"
_MODEL = f"{MODELS}/"
_OPEN = frozenset({*STATE, _METRICS})  # open to all clients
_STORED = ("/v1/responses/", "/v1/conversations")


class Routes:
    """The handler of every request: finds the handler of its path and method."""

    def __init__(
        self,
        indexer: Indexer,
        director: Director,
        pool: Pool,
        metrics: MetricsPage,
        auth: Auth,
        entrance: InferenceIngress,
        requests: RequestCounts,
        traffic: TrafficCounts,
        draining: Draining,
        alarms: AlarmPages,
        held: HeldRequests,
        *,
        peers: PeersReport,
        extensions: Mapping[str, Route] = MappingProxyType({}),
        forwards: bool = True,
        admin_apart: bool = False,
        continuer: Continuer | None = None,
        gather: Callable[[str], Awaitable[None]] | None = None,
        drain: Callable[[], None] = lambda: None,
    ) -> None:
        """`extensions`: the routes of extensions. `admin_apart`: what is for admins or browsers is
        not answered here, but by `admin`.
        `continuer`: has other engines go on with streams; None: nobody does. `gather`: of a hub,
        fetches what a path shows of all workers. `drain` has extensions see the answers that have
        ended."""
        self._pool = pool
        self._held = held
        self._continuer = continuer
        self._metrics = metrics
        self._auth = auth
        self._entrance = entrance
        self._requests = requests
        self._inference = entrance.paths if forwards else {}
        self._token_counts = TokenCounts(director, indexer.fleet, auth)
        self._models = ModelPages(indexer.fleet, lambda: director.rewrites)
        self._admin = AdminPages(
            *(indexer.fleet, indexer.index, auth.failover, traffic, draining, peers, alarms)
        )
        self._admin_apart = admin_apart
        self._for_clients = forwards  # else an operator's port, and clients are at the proxy
        state = StatePages(indexer.fleet, self._shows_names)
        for_admins: Table = {
            **ScorePages(indexer, director, entrance).for_admins,
            **self._admin.for_admins,
            _METRICS: {"GET": self._page},
            **_whole(extensions, Audience.ADMINS),
        }
        self._below = {path: route for path, route in extensions.items() if path.endswith("/")}
        self._front = self._below.pop("/", None)
        self._gather = gather
        self._drain = drain
        carried: Table = {}
        if forwards and not entrance.is_salted:
            carried = {REALTIME: {"GET": TunnelRoute(director, auth, pool)}}
        if forwards:
            for_admins |= LoraRoutes(indexer.fleet, pool, auth).for_admins
        self._table: Table = {
            "/version": {"GET": VersionPage(indexer.fleet)},
            **{path: dict.fromkeys(how, self._infer) for path, how in self._inference.items()},
            **({COUNT_TOKENS: {"POST": self._count}} if forwards else {}),
            **carried,
            **_whole(extensions, Audience.CLIENTS),
            EXPLAIN_SHAPE: {"POST": Explain(director, self._asker)},
            MODELS: {"GET": self._models.list},
            **state.for_clients,
            **({} if admin_apart else for_admins),
        }
        self._asked_later = frozenset(  # whose it is, by _infer
            path for path in self._inference if admin_apart or not _is_for_admins(path)
        )
        self._straight = {  # paths that need nothing but `_infer`, and their methods
            path: methods
            for path in self._asked_later
            if (methods := self._table[path]) == dict.fromkeys(methods, self._infer)
        }
        self._admin_table: Table = {**state.for_admins, **for_admins}
        for table in (self._table, self._admin_table):
            table["/"] = {"GET": PathsPage(table)}

    async def __call__(self, request: Request, responder: Responder) -> None:
        """Raises what goes wrong before an answer has begun; the server answers with it."""
        if request.method in self._straight.get(request.path, ()):
            await self._infer(request, responder)
            return
        if request.path not in self._asked_later:
            self._check(request)
        if request.path == _METRICS or request.path.startswith(_ADMIN_PREFIX):
            await self._look(request.path)
        await self._handler(request, self._table)(request, responder)

    def awaits_body(self, request: Request) -> bool:
        """Return whether the request is not refused for its path, its method or its missing key."""
        return self._table_awaits(request, self._table)

    def admin_awaits_body(self, request: Request) -> bool:
        """Return whether the port for admins does not refuse a request for its path, method or
        key."""
        return self._table_awaits(request, self._admin_table)

    def _table_awaits(self, request: Request, table: Table) -> bool:
        try:
            self._handler(request, table)
        except RequestError:
            return False
        admins_only = self._is_for_admins(request.path)
        is_open = request.path in _OPEN and not admins_only
        return (
            is_open
            or self._is_for_browsers(request)
            or self._auth.lets_in(request, admins_only=admins_only)
        )

    def _check(self, request: Request) -> None:
        path, auth = request.path, self._auth
        if self._is_for_browsers(request):
            return
        if not self._admin_apart and self._is_for_admins(path):
            auth.check_admin(request)
        elif auth.is_guarded and path not in self._inference and path not in _OPEN:
            auth.check(request)

    def _is_for_browsers(self, request: Request) -> bool:
        """Return whether an extension's page answers, which looks itself at who asks."""
        route = self._front if request.path == "/" else self._route_below(request.path)
        if route is None or route.audience is not Audience.BROWSERS:
            return False
        return request.path != "/" or _wants_page(request)

    def _route_below(self, path: str) -> Route | None:
        """Return the route of an extension that stands for all paths below one, if the path is one
        of them."""
        return next((each for top, each in self._below.items() if path.startswith(top)), None)

    def _shows_names(self, request: Request) -> bool:
        """Return whether /ready names engines and models. Where admins are known, or have their own
        port, clients get no names."""
        return not self._for_clients or (not self._admin_apart and self._auth.is_admin(request))

    def _is_for_admins(self, path: str) -> bool:
        """Return whether the path is for admins on the port of clients."""
        if path == _METRICS:
            return self._for_clients and self._auth.knows_admins
        return _is_for_admins(path)

    @property
    def paths(self) -> Container[str]:
        """The paths that have a name."""
        return self._table

    async def admin(self, request: Request, responder: Responder) -> None:
        """Handle a request to the port for admins."""
        if _is_for_admins(request.path):
            self._auth.check_admin(request)
        await self._look(request.path)
        await self._handler(request, self._admin_table)(request, responder)

    async def _look(self, path: str) -> None:
        """Have all that the path shows be there."""
        self._drain()
        if self._gather is not None:
            await self._gather(path)

    def _handler(self, request: Request, table: Table) -> Handler:
        methods: Mapping[str, Handler] | None = table.get(request.path)
        if request.path == "/" and (front := self._front) is not None and _wants_page(request):
            methods = front.methods_of("/") if self._is_in(table, front) else methods
        if methods is None and request.path.startswith(_CHANGES) and "/admin/engines" in table:
            methods = {"POST": self._admin.change}
        if methods is None and (route := self._route_below(request.path)) is not None:
            methods = route.methods_of(request.path) if self._is_in(table, route) else None
        if methods is None and request.path.startswith(_MODEL) and MODELS in table:
            methods = {"GET": self._model}
        if methods is None:
            if request.path.startswith(_STORED):
                raise UnknownPathError(
                    f"{request.path[:200]}: what an engine stores, it alone has, and which one is"
                    " not kept here; ask that engine itself (x-inferway-engine of its answers"
                    " names it)"
                )
            raise unknown_path(request.path, table)
        method = "GET" if request.method == "HEAD" else request.method
        handler = methods.get(method)
        if handler is None:
            allowed = ", ".join(methods)
            raise MethodNotAllowedError(
                f"{request.path}: method {request.method} not allowed; use {allowed}",
                allowed=allowed,
            )
        return handler

    def _is_in(self, table: Table, route: Route) -> bool:
        """Return whether the port of the table answers the route."""
        if route.audience is Audience.CLIENTS:
            return table is self._table
        return table is self._admin_table or not self._admin_apart

    async def _count(self, request: Request, responder: Responder) -> None:
        caller = self._auth.caller(request)
        if not await self._token_counts.answers(request, responder, caller):
            await self._infer(request, responder, caller)

    async def _infer(
        self,
        request: Request,
        responder: Responder,
        caller: ApiCaller | None = None,
        waits_for: EnginesSuspendedError | None = None,
    ) -> None:
        """`waits_for`: why the request has to be held before it is decided."""
        auth = self._auth
        caller = caller or auth.caller(request)
        tenant = auth.tenant(caller, request)
        share = auth.share(tenant, request)
        journey = await self._entrance.open(request, tenant, caller.priority, share)
        responder.record = journey.record
        slot = None if waits_for is not None else auth.ticket(responder, share)
        try:
            responder.check_client()
            if waits_for is not None:
                slot = await self._held.turn(waits_for, request, responder, share, caller.priority)
            decision = await journey.decide(slot)
            if responder.span is not None:
                responder.span.follow(journey)
        except BaseException as e:
            journey.close(outcome_of(e))
            if slot is not None:
                slot.leave()
            if isinstance(e, EnginesSuspendedError):
                await self._infer(request, responder, caller, e)
                return
            if isinstance(e, FleetError) and not caller.admin:
                raise withheld(e, request.id) from None
            raise
        record, shape = journey.record, journey.shape
        client = responder if shape is None else JudgedAnswer(responder, shape)
        continues = None
        if self._continuer is not None and record.is_streamed:
            continues = partial(
                ContinuedStream,
                *(self._continuer, request, responder, journey),
                priority=caller.priority,
                share=share,
                is_admin=caller.admin,
            )
        plan = AnswerPlan(
            journey,
            decision,
            auth.failover,
            slot,
            explain=caller.admin,
            passed=self._requests.follow(record) if request.path in GENERATING else None,
            continues=continues,
            again=partial(self._again, request, responder, caller, journey),
        )
        forward(request, client, plan, self._pool)

    def _again(
        self,
        request: Request,
        responder: Responder,
        caller: ApiCaller,
        journey: Journey,
        error: InferwayError,
    ) -> None:
        target = journey.record.target
        assert target is not None
        journey.suspect(target.endpoint)
        told = error if caller.admin else withheld(error, request.id)
        infer = partial(self._infer, request, responder, caller)
        self._held.again(request, responder, infer, caller.priority, told)

    def _asker(self, request: Request) -> Asker:
        caller = self._auth.caller(request)
        return Asker(self._auth.tenant(caller, request), caller.priority or 0)

    async def _model(self, request: Request, responder: Responder) -> None:
        try:
            await self._models.retrieve(request, responder)
        except FleetError as e:
            if self._auth.knows_admins:
                raise withheld(e, request.id) from None
            raise

    async def _page(self, _: Request, responder: Responder) -> None:
        content_type, body = self._metrics.render()
        responder.send(200, ((b"content-type", content_type),), body)


def _is_for_admins(path: str) -> bool:
    return path in _ADMIN_PATHS or path.startswith(_ADMIN_PREFIX)


def _whole(extensions: Mapping[str, Route], audience: Audience) -> Table:
    """Return the routes that are for the audience, of those that are one path."""
    return {
        path: route.methods_of(path)
        for path, route in extensions.items()
        if route.audience is audience and not path.endswith("/")
    }


def _wants_page(request: Request) -> bool:
    """Return whether a browser asks, and not a program."""
    return b"text/html" in request.fields.get(b"accept", b"")
