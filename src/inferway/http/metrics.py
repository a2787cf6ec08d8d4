"""GET /metrics: each part brings its own families when the page is asked for.

docs/metrics.md lists every name (a test keeps it true).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from inferway import __version__
from inferway.fleet.fleet import Fleet
from inferway.fleet.metrics import fleet_families
from inferway.http.auth import Auth
from inferway.http.flow_metrics import flow_families
from inferway.http.structured.metrics import structured_families
from inferway.metrics import Families, Family, gauge, merged
from inferway.prompts.chat.helper_templates import RequestTemplates
from inferway.prompts.metrics import prompt_families
from inferway.prompts.renderer import Renderer
from inferway.routing.director import Director
from inferway.telemetry.publisher import Publisher
from inferway.telemetry.request_counts import RequestCounts
from inferway.upstream.pool import Pool


class MetricsPage(Collector):
    """The page with the families of all parts."""

    def __init__(
        self,
        director: Director,
        fleet: Fleet,
        pool: Pool,
        renderer: Renderer,
        publisher: Publisher | None = None,
        request_templates: RequestTemplates | None = None,
        auth: Auth | None = None,
        requests: RequestCounts | None = None,
        parts: Sequence[Families] = (),
        with_others: Callable[[Iterable[Family]], Iterator[Family]] | None = None,
        drain: Callable[[], None] = lambda: None,
    ) -> None:
        """`parts`: what else is on the page. `drain` has all answers counted that have ended.
        `with_others`: yields families with the numbers of
        the processes that serve beside this one added; None: there are none."""
        self._with_others = with_others
        self._drain = drain
        self._parts: list[Families] = [
            self._own,
            director.stats.families,
            director.scheduling.families,
            lambda: structured_families(director.gate),
            lambda: () if director.tokens_once is None else director.tokens_once.families(),
            lambda: () if director.quarantine is None else director.quarantine.families(),
            director.legs.families,
            lambda: () if director.continuing is None else director.continuing.families(),
            director.matcher.index.families,
            pool.stats.families,
            partial(fleet_families, fleet),
            partial(prompt_families, renderer, request_templates),
        ]
        if publisher is not None:
            self._parts.append(publisher.families)
        if auth is not None:
            self._parts.append(partial(flow_families, auth, fleet))
        if requests is not None:
            self._parts.append(requests.families)
        self._parts += parts
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._process = ProcessCollector(registry=None)

    def render(self) -> tuple[bytes, bytes]:
        """Return the content type and the page."""
        return CONTENT_TYPE_LATEST.encode(), generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Yield the families of all parts; those of one name are one family."""
        self._drain()
        families = chain(
            merged(family for families in self._parts for family in families()),
            self._process.collect(),
        )
        return families if self._with_others is None else self._with_others(families)

    def _own(self) -> Iterator[Family]:
        yield gauge(
            "build_info", "Always 1; the label has the version.", ["version"], {(__version__,): 1}
        )
