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
from inferway.prompts.renderer import Renderer
from inferway.prompts.request_templates import RequestTemplates
from inferway.upstream.pool import Pool
from inferway_structured.helper.helper import HelperStats

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
        yield gauge(
            "build_info", "Always 1; the label has the version.", ["version"], {(__version__,): 1}
        )
        if self._requests is not None:
            yield from request_families(self._requests)
        yield from self._decided()
        if self._server is not None:
            yield from _served(self._server)
        yield from _sent(self._pool)
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
            yield counter(
                "published", "Messages that were published.", value=self._publisher.published
            )
            yield counter(
                "publish_lost",
                "Messages that were not published because the socket could not take more.",
                value=self._publisher.lost,
            )
        for families in self._others:
            yield from families()

    def _decided(self) -> Iterator[Family]:
        stats = self._director.stats
        yield counter(
            "decisions",
            "Routing decisions by reason: why a request went to its engine.",
            ["reason"],
            {(reason,): n for reason, n in stats.decisions.items()},
        )
        yield histogram(
            "inferway_decision_seconds",
            "Seconds from a complete request to the choice of its engine; parsing,"
            " rendering and tokenizing are included.",
            values=[((), self._decisions)],
        )

    def _engines(self) -> Iterator[Family]:
        engines = self._fleet.engines

        def each(value: Callable[[Engine], float]) -> dict[tuple[str, ...], float]:
            return {(engine.name,): value(engine) for engine in engines}

        tokens = self._director.stats.tokens
        for name, text in (
            ("prompt", "Prompt tokens of the requests that the engine answered."),
            (
                "matched",
                "Prompt tokens that the gateway believed to be in the engine's cache, of requests"
                " that it answered.",
            ),
            (
                "checked",
                "Matched tokens of the requests whose answers say what the engine took from its"
                " cache.",
            ),
            (
                "delivered",
                "Prompt tokens that the engine took from its cache, as its answers say.",
            ),
        ):
            values: dict[tuple[str, ...], float] = {
                (engine,): getattr(counts, name) for engine, counts in tokens.items()
            }
            yield counter(f"{name}_tokens", text, ["engine"], values)
        label = ["engine"]
        up = each(lambda e: e.healthy)
        yield gauge("engine_up", "1 if the engine answers, else 0.", label, up)
        in_flight = each(self._fleet.in_flight)
        yield gauge(
            "engine_in_flight",
            "Requests that were sent to the engine and have not ended.",
            label,
            in_flight,
        )
        running = each(lambda e: e.load.running)
        yield gauge(
            "engine_running", "Requests that run in the engine, as the engine says.", label, running
        )
        waiting = each(lambda e: e.load.waiting)
        yield gauge(
            "engine_waiting",
            "Requests that wait in the engine, as the engine says.",
            label,
            waiting,
        )
        usage = each(lambda e: e.load.kv_usage)
        yield gauge(
            "engine_kv_usage",
            "Share of the engine's KV blocks in use, from 0 to 1, as the engine says.",
            label,
            usage,
        )

    def _prompts(self) -> Iterator[Family]:
        yield counter(
            "render_off_loop",
            "Prompts that were rendered or encoded in a thread because of their size,"
            " their template or their encoder.",
            value=self._renderer.num_off_loop,
        )
        models = self._fleet.models.values()
        yield gauge(
            "encoder_info",
            "Always 1; the labels say what makes the model's tokens, and why.",
            ["model", "encoder", "why"],
            {
                (model.name, local.encoder, local.why.partition(":")[0]): 1
                for model in models
                if (local := model.prompts.local) is not None
            },
        )
        yield gauge(
            "model_faithful",
            "0 if an engine renders the model's prompts otherwise than the gateway, so"
            " that its requests go by load only; else 1.",
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
        stats["model-files",] = self._renderer.trials.stats
        stats["texts",] = self._renderer.outside_stats

        def each(name: str, text: str, value: Callable[[HelperStats], int]) -> Family:
            return counter(name, text, ["work"], {key: value(s) for key, s in stats.items()})

        yield each(
            "helper_jobs",
            "Jobs that were given to the helper process, by kind of work.",
            lambda s: s.jobs,
        )
        yield each(
            "helper_refused",
            "Jobs that were refused because too many waited for the helper process, by"
            " kind of work.",
            lambda s: s.refused,
        )
        yield each(
            "helper_starts",
            "Times that a helper process was started, by kind of work.",
            lambda s: s.started,
        )
        yield counter(
            "helper_kills",
            "Jobs of the helper process that were killed with it, by kind of work and"
            " by the limit they passed.",
            ["work", "limit"],
            {(*key, limit): n for key, s in stats.items() for limit, n in s.kills.items()},
        )
        yield counter(
            "helper_cache_hits",
            "Jobs that no helper process had to do because their result was known, by"
            " kind of work.",
            ["work"],
            hits,
        )

    def _remote(self) -> Iterator[Family]:
        models = self._fleet.remote.models.values()
        yield counter(
            "remote_prompts",
            "Prompts that an engine had to render, by model and outcome.",
            ["model", "outcome"],
            {(m.model, outcome): n for m in models for outcome, n in m.stats.prompts.items()},
        )
        yield counter(
            "remote_questions",
            "Questions to an engine for the rendering of a prompt, by outcome.",
            ["model", "engine", "outcome"],
            {(m.model, *key): n for m in models for key, n in m.stats.questions.items()},
        )
        yield counter(
            "remote_prefixes",
            "Prompts that were routed by a known prefix, by whether the engine's"
            " rendering began with it: right or wrong.",
            ["model", "was"],
            {
                (m.model, was): n
                for m in models
                for was, n in (("right", m.stats.right_prefixes), ("wrong", m.stats.wrong_prefixes))
            },
        )
        size: dict[tuple[str, ...], float] = {(m.model,): m.renderings.num_bytes for m in models}
        yield gauge(
            "remote_bytes",
            "Bytes of memory that renderings kept from engines take.",
            ["model"],
            size,
        )

    def _proofs(self) -> Iterator[Family]:
        state = GaugeMetricFamily(
            "inferway_engine_proof",
            "1 for the state that the last comparison of token ids with the engine found, else 0.",
            labels=["engine", "model", "state"],
        )
        for engine in self._fleet.engines:
            for model, proof in engine.proofs.items():
                for each in ProofState:
                    state.add_metric([engine.name, model, each], float(proof.state is each))
        yield state
        yield counter(
            "probes",
            "Comparisons of the gateway's token ids with an engine's, by occasion and result.",
            ["occasion", "result"],
            self._fleet.prober.counts,
        )


def _served(server: HttpServer) -> Iterator[Family]:
    stats = server.stats
    yield counter(
        "http_answers",
        "Answers to clients of all paths, by HTTP status.",
        ["status"],
        {(str(status),): n for status, n in server.statuses.items()},
    )
    yield gauge("http_connections", "Client connections that are open now.", value=stats.open)
    yield gauge("http_answering", "Requests that are being answered now.", value=stats.answering)
    yield counter(
        "http_refused",
        "Requests that were refused because they were not HTTP or exceeded a limit.",
        value=stats.refused,
    )
    yield counter(
        "http_timed_out",
        "Client connections that were closed because the client was silent for too long.",
        value=stats.timed_out,
    )
    yield counter(
        "http_crashed",
        "Requests whose handler failed because of a fault of the gateway; the log"
        " has the traceback.",
        value=stats.crashed,
    )


def _sent(pool: Pool) -> Iterator[Family]:
    stats = pool.stats
    yield counter(
        "upstream_sent",
        "Requests that were sent to engines, further tries included.",
        value=stats.sent,
    )
    yield counter(
        "upstream_failed", "Requests to engines that got no complete answer.", value=stats.failed
    )
    yield counter(
        "upstream_aborted",
        "Requests to engines that the gateway ended because the client left or a timeout passed.",
        value=stats.aborted,
    )
    yield counter(
        "upstream_connects", "Connections that were opened to engines.", value=stats.connected
    )
