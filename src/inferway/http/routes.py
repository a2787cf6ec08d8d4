"""The gateway's paths. Each handler answers one request; errors become OpenAI-shaped bodies.

POST /v1/chat/completions, /v1/completions, /v1/messages,
     /v1/responses, /v1/embeddings, /v1/conversations      routed and forwarded
POST /v1/messages/count_tokens                             counted here, or forwarded by load
POST /tokenize, /score ... (openai_api.paths)              forwarded by load
GET  /v1/realtime                                          a WebSocket, carried to an engine by load
POST /v1/load_lora_adapter, /v1/unload_lora_adapter        with an admin key: told to engines
POST /v1/explain                                           where a request would go, and why
POST /v1/structured/explain                                what would become of a shape
POST /score_chat_completions, /score_completions, /query   what each engine holds of a prompt
GET  /v1/models   /v1/models/NAME   /version   /          what there is
GET  /health   /ping   /ready   /metrics   /admin/engines   /admin/traffic   /admin/peers
GET  /admin/alarms
GET  /admin/requests   /admin/requests/ID   /admin/cache-breakers
POST /admin/engines/NAME/drain   /admin/engines/NAME/resume   /admin/drain
GET  /   /page/...   /admin/live                           the page, for browsers (http.page)
GET, POST, DELETE /admin/what-if                           of the recorded hours (http.what_if)

With an admin key or API keys configured, what the caches hold of a prompt is for admins only:
and the headers of an answer that say how it was decided, the names of engines in errors and in
/ready, and /metrics, which has the names of keys, too (`auth`). With a port for admins, theirs
and /metrics are there alone (`Routes.admin`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial

from inferway.errors import (
    FleetError,
    MethodNotAllowedError,
    RequestError,
    UnknownPathError,
)
from inferway.fleet.draining import Draining
from inferway.http.admin import AdminPages, PeersReport
from inferway.http.alarms import AlarmPages
from inferway.http.auth import Auth
from inferway.http.continued import Continuer, StreamCaller
from inferway.http.discovery_pages import PathsPage, VersionPage, unknown_path
from inferway.http.errors import withheld
from inferway.http.explain import PATH as EXPLAIN
from inferway.http.explain import ExplainPath
from inferway.http.forward import forward
from inferway.http.inference_ingress import InferenceIngress
from inferway.http.lora import PATHS as LORA
from inferway.http.lora import LoraRoutes
from inferway.http.message import REALTIME, Request
from inferway.http.metrics import MetricsPage
from inferway.http.models import PATH as MODELS
from inferway.http.models import ModelPages
from inferway.http.page import LIVE, PageRoutes, wants_page
from inferway.http.records import ONE_REQUEST, REQUESTS, RecordPages
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
from inferway.http.two_legs import TwoLegs
from inferway.indexer import Indexer
from inferway.openai_api.paths import GENERATING
from inferway.prompts.fidelity.probe import COUNT_TOKENS
from inferway.routing.director import Director
from inferway.routing.limits.callers import ApiCaller
from inferway.telemetry.answer_log import outcome_of
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
_OPEN = frozenset({*STATE, _METRICS})  # whoever asks
_STORED = ("/v1/responses/", "/v1/conversations/")


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
        records: RecordPages,
        alarms: AlarmPages,
        *,
        peers: PeersReport,
        page: PageRoutes | None = None,
        forwards: bool = True,
        admin_apart: bool = False,
        continuer: Continuer | None = None,
        gather: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`admin_apart`: what is for admins is not answered here, but by `admin`; `page`, too.
        `continuer`: has other engines go on with streams; None: nobody does. `gather`: of a hub,
        fetches what a path shows of all workers."""
        self._pool = pool
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
            **records.for_admins,
            _METRICS: {"GET": self._page},
            **({} if page is None else page.for_admins),
        }
        self._web = page
        self._records = records
        self._gather = gather
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
            EXPLAIN: {"POST": ExplainPath(director, entrance, auth)},
            EXPLAIN_SHAPE: {"POST": Explain(director, self._asker)},
            MODELS: {"GET": self._models.list},
            **state.for_clients,
            **({} if admin_apart else for_admins),
        }
        self._asked_later = frozenset(  # whose it is, by _infer
            path for path in self._inference if admin_apart or not _is_for_admins(path)
        )
        self._admin_table: Table = {**state.for_admins, **for_admins}
        for table in (self._table, self._admin_table):
            paths: Handler = PathsPage(table)
            shown = page is not None and LIVE in table
            table["/"] = {"GET": page.front(paths) if page is not None and shown else paths}

    async def __call__(self, request: Request, responder: Responder) -> None:
        """Raises what goes wrong before an answer has begun; the server answers with it."""
        if request.path not in self._asked_later:
            self._check(request)
        if self._gather is not None:
            await self._gather(request.path)
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
        is_open = (request.path in _OPEN and not admins_only) or self._is_page(request)
        return is_open or self._auth.lets_in(request, admins_only=admins_only)

    def _check(self, request: Request) -> None:
        path, auth = request.path, self._auth
        if self._is_page(request):
            return
        if not self._admin_apart and self._is_for_admins(path):
            auth.check_admin(request)
        elif auth.is_guarded and path not in self._inference and path not in _OPEN:
            auth.check(request)

    def _is_page(self, request: Request) -> bool:
        """Return whether the page answers, which looks itself at who asks."""
        if self._web is None:
            return False
        return self._web.takes(request.path) or (request.path == "/" and wants_page(request))

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
        if self._gather is not None:
            await self._gather(request.path)
        await self._handler(request, self._admin_table)(request, responder)

    def _handler(self, request: Request, table: Table) -> Handler:
        methods: Mapping[str, Handler] | None = table.get(request.path)
        if methods is None and request.path.startswith(_CHANGES) and "/admin/engines" in table:
            methods = {"POST": self._admin.change}
        if methods is None and self._web is not None and LIVE in table:
            methods = self._web.methods(request.path) if self._web.takes(request.path) else None
        if methods is None and request.path.startswith(ONE_REQUEST) and REQUESTS in table:
            methods = {"GET": self._records.one}
        if methods is None and request.path.startswith(_MODEL) and MODELS in table:
            methods = {"GET": self._model}
        if methods is None:
            if request.path.startswith(_STORED):
                raise UnknownPathError(
                    f"{request.path[:200]}: what an engine has stored, it alone has, and which one"
                    " is not kept here; ask the engine that x-inferway-engine named"
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

    async def _count(self, request: Request, responder: Responder) -> None:
        caller = self._auth.caller(request)
        if not await self._token_counts.answers(request, responder, caller):
            await self._infer(request, responder, caller)

    async def _infer(
        self, request: Request, responder: Responder, caller: ApiCaller | None = None
    ) -> None:
        auth = self._auth
        caller = caller or auth.caller(request)
        tenant = auth.tenant(caller, request)
        share = auth.share(tenant, request)
        journey = self._entrance.open(request, tenant, caller.priority, share)
        responder.record = journey.record
        slot = auth.ticket(responder, share)
        try:
            responder.check_client()
            decision = await journey.decide(slot)
            self._metrics.decided_in(journey.record.decided_in)
            if responder.span is not None:
                responder.span.follow(journey)
        except BaseException as e:
            journey.close(outcome_of(e))
            if slot is not None:
                slot.leave()
            if isinstance(e, FleetError) and not caller.admin:
                raise withheld(e, request.id) from None
            raise
        record, shape = journey.record, journey.shape
        client = responder if shape is None else JudgedAnswer(responder, shape)
        passed = self._requests.follow(record) if request.path in GENERATING else None
        continuer, goes_on = self._continuer, None
        if continuer is not None and record.is_streamed:
            asked = StreamCaller(
                request, responder, caller.priority, share, caller.admin, record, passed
            )
            goes_on = partial(continuer.go_on, asked, client, journey)
        forward(
            *(request, client, journey, decision, self._pool),
            policy=auth.failover,
            slot=slot,
            explain=caller.admin,
            record=record,
            passed=passed,
            kind=TwoLegs if decision.prefill else None,
            goes_on=goes_on,
        )

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
