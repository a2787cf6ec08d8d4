"""GET /metrics: one collector reads the plain counters of every part when it is scraped.

docs/metrics.md lists every name (a test keeps it true).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from inferway import __version__
from inferway.director import Director
from inferway.fleet.engine import Engine, ProofState
from inferway.fleet.fleet import Fleet
from inferway.frontends.http.admission import Admission
from inferway.frontends.http.families import Family, Histogram, counter, gauge, histogram
from inferway.frontends.http.flow_metrics import flow_families
from inferway.frontends.http.index_metrics import index_families
from inferway.frontends.http.journal_metrics import journal_families
from inferway.frontends.http.load_metrics import expectation_families, scrape_families
from inferway.frontends.http.request_metrics import request_families
from inferway.frontends.http.server import HttpServer
from inferway.frontends.http.stream_metrics import stream_families
from inferway.frontends.http.structured.metrics import (
    structured_families,
    structured_helpers,
)
from inferway.frontends.publisher import Publisher
from inferway.frontends.request_counts import RequestCounts
from inferway.helper.helper import HelperStats
from inferway.prompts.renderer import Renderer
from inferway.prompts.request_templates import RequestTemplates
from inferway.upstream.pool import Pool

# Deciding takes 0.1 to 0.5 ms for most prompts and seconds for pathological ones.
DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


class MetricsPage(Collector):
    """Knows where every counter is; holds only what nobody else counts."""

    def __init__(
        self,
        director: Director,
        fleet: Fleet,
        pool: Pool,
        renderer: Renderer,
        publisher: Publisher | None = None,
        request_templates: RequestTemplates | None = None,
        admission: Admission | None = None,
        requests: RequestCounts | None = None,
    ) -> None:
        self._director = director
        self._fleet = fleet
        self._pool = pool
        self._renderer = renderer
        self._publisher = publisher
        self._request_templates = request_templates
        self._admission = admission
        self._requests = requests
        self._server: HttpServer | None = None
        self._decisions = Histogram(DECISION_BUCKETS)
        self._others: list[Callable[[], Iterator[Family]]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def serve_with(self, server: HttpServer) -> None:
        """The server is made after its routes, and counts too."""
        self._server = server

    def joined_by(self, families: Callable[[], Iterator[Family]]) -> None:
        """Another part's numbers are on the page, too."""
        self._others.append(families)

    def decided_in(self, seconds: float) -> None:
        """A decision took so long, parsing and rendering included."""
        self._decisions.observe(seconds)

    def render(self) -> tuple[bytes, bytes]:
        """(content type, page)."""
        return CONTENT_TYPE_LATEST.encode(), generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        yield gauge("build_info", "Always 1.", ["version"], {(__version__,): 1})
        if self._requests is not None:
            yield from request_families(self._requests)
        yield from self._answers()
        yield from self._engines()
        if self._admission is not None:
            yield from flow_families(self._admission, self._fleet)
        yield from scrape_families(self._fleet.scraper)
        yield from expectation_families(self._director.scheduling.producers)
        yield from index_families(self._director.matcher.index, self._fleet.engines)
        yield from stream_families(self._fleet)
        yield from journal_families(self._fleet)
        yield from self._prompts()
        yield from structured_families(self._director.gate)
        yield from self._helpers()
        yield from self._remote()
        yield from self._proofs()
        if self._publisher is not None:
            yield counter("published", "Messages published.", value=self._publisher.published)
            yield counter(
                "publish_lost",
                "Messages dropped: the socket could not take more.",
                value=self._publisher.lost,
            )
        for families in self._others:
            yield from families()

    def _answers(self) -> Iterator[Family]:
        stats = self._director.stats
        yield counter(
            "decisions",
            "Routing decisions: kv-aware, or why it went by load only.",
            ["reason"],
            {(reason,): n for reason, n in stats.decisions.items()},
        )
        yield histogram(
            "inferway_decision_seconds",
            "From a complete request to where it goes.",
            values=[((), self._decisions)],
        )
        if self._server is not None:
            http = self._server.stats
            yield counter(
                "http_answers",
                "Answers to clients by status.",
                ["status"],
                {(str(status),): n for status, n in self._server.statuses.items()},
            )
            yield gauge("http_connections", "Clients connected now.", value=http.open)
            yield gauge("http_answering", "Requests being answered now.", value=http.answering)
            yield counter(
                "http_refused", "Requests that were not HTTP, or over a limit.", value=http.refused
            )
            yield counter("http_timed_out", "Client connections timed out.", value=http.timed_out)
            yield counter(
                "http_crashed", "Handlers that failed: a fault of ours.", value=http.crashed
            )
        pool = self._pool.stats
        yield counter("upstream_sent", "Requests sent to engines.", value=pool.sent)
        yield counter(
            "upstream_failed", "Requests to engines without a whole answer.", value=pool.failed
        )
        yield counter("upstream_aborted", "Requests to engines that we ended.", value=pool.aborted)
        yield counter("upstream_connects", "Connections opened to engines.", value=pool.connected)

    def _engines(self) -> Iterator[Family]:
        engines = self._fleet.engines

        def each(value: Callable[[Engine], float]) -> dict[tuple[str, ...], float]:
            return {(engine.name,): value(engine) for engine in engines}

        tokens = self._director.stats.tokens
        for name, text in (
            ("prompt", "Prompt tokens of requests that the engine answered."),
            ("matched", "Prompt tokens believed to be in its cache."),
            ("delivered", "Prompt tokens taken from its cache, as the engine itself says."),
        ):
            values: dict[tuple[str, ...], float] = {
                (engine,): getattr(counts, name) for engine, counts in tokens.items()
            }
            yield counter(f"{name}_tokens", text, ["engine"], values)
        label = ["engine"]
        up = each(lambda e: e.healthy)
        yield gauge("engine_up", "1 if it answers.", label, up)
        in_flight = each(self._fleet.in_flight)
        yield gauge(
            "engine_in_flight",
            "Requests we sent there and have not seen the end of.",
            label,
            in_flight,
        )
        running = each(lambda e: e.load.running)
        yield gauge("engine_running", "Requests running, as it says.", label, running)
        waiting = each(lambda e: e.load.waiting)
        yield gauge("engine_waiting", "Requests waiting, as it says.", label, waiting)
        usage = each(lambda e: e.load.kv_usage)
        yield gauge("engine_kv_usage", "Share of its KV blocks in use.", label, usage)

    def _prompts(self) -> Iterator[Family]:
        yield counter(
            "render_off_loop",
            "Prompts rendered in a thread because of their size or encoder.",
            value=self._renderer.num_off_loop,
        )
        models = self._fleet.models.values()
        yield gauge(
            "encoder_info",
            "Always 1: what makes a model's tokens, and why.",
            ["model", "encoder", "why"],
            {
                (model.name, local.encoder, local.why.partition(":")[0]): 1
                for model in models
                if (local := model.prompts.local) is not None
            },
        )
        yield gauge(
            "model_faithful",
            "0 if an engine renders otherwise than we do, so that it goes by load only.",
            ["model"],
            {(model.name,): model.unfaithful is None for model in models},
        )

    def _helpers(self) -> Iterator[Family]:
        helpers = {"large-chats": self._renderer.large_chats.helper}
        hits: dict[tuple[str, ...], float] = {}
        templates = self._request_templates
        if templates is not None:
            helpers["request-templates"] = templates.helper
            hits[("request-templates",)] = float(templates.num_cache_hits)
        helpers |= structured_helpers(self._director.gate)
        stats = {(work,): helper.stats for work, helper in helpers.items()}

        def each(name: str, text: str, value: Callable[[HelperStats], int]) -> Family:
            return counter(name, text, ["work"], {key: value(s) for key, s in stats.items()})

        yield each("helper_jobs", "Jobs given to a helper process.", lambda s: s.jobs)
        yield each("helper_refused", "Jobs refused: too many waited.", lambda s: s.refused)
        yield each("helper_starts", "Helper processes started.", lambda s: s.started)
        yield counter(
            "helper_kills",
            "Jobs killed with their process, by the limit they passed.",
            ["work", "limit"],
            {(*key, limit): n for key, s in stats.items() for limit, n in s.kills.items()},
        )
        yield counter("helper_cache_hits", "Jobs that were not needed.", ["work"], hits)

    def _remote(self) -> Iterator[Family]:
        models = self._fleet.remote.models.values()
        yield counter(
            "remote_prompts",
            "Prompts that engines were needed for, by what became of them.",
            ["model", "outcome"],
            {(m.model, outcome): n for m in models for outcome, n in m.stats.prompts.items()},
        )
        yield counter(
            "remote_questions",
            "Prompts that an engine was asked to render.",
            ["model", "engine", "outcome"],
            {(m.model, *key): n for m in models for key, n in m.stats.questions.items()},
        )
        yield counter(
            "remote_prefixes",
            "Starts of prompts that were routed on before the engine's rendering came.",
            ["model", "was"],
            {
                (m.model, was): n
                for m in models
                for was, n in (("right", m.stats.right_prefixes), ("wrong", m.stats.wrong_prefixes))
            },
        )
        size: dict[tuple[str, ...], float] = {(m.model,): m.renderings.num_bytes for m in models}
        yield gauge("remote_bytes", "Memory that renderings of engines take.", ["model"], size)

    def _proofs(self) -> Iterator[Family]:
        state = GaugeMetricFamily(
            "inferway_engine_proof",
            "1 for what the probe last said of an engine and model.",
            labels=["engine", "model", "state"],
        )
        for engine in self._fleet.engines:
            for model, proof in engine.proofs.items():
                for each in ProofState:
                    state.add_metric([engine.name, model, each], float(proof.state is each))
        yield state
        yield counter(
            "probes",
            "Comparisons of our token ids with an engine's.",
            ["occasion", "result"],
            self._fleet.prober.counts,
        )
