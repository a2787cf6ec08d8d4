"""What /metrics shows of how engines' load comes to be known, and of what is expected of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, SummaryMetricFamily

from inferway.fleet.scraper import Scraper
from inferway.frontends.http.families import Family, counter, gauge
from inferway.scheduling.expected_ttft.accuracy import BOUNDS, Accuracy
from inferway.scheduling.expected_ttft.learning import TPOT_FEATURES, TTFT_FEATURES
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft


def scrape_families(scraper: Scraper) -> Iterator[Family]:
    """Times are the loop's; a loop's clock is the monotonic one."""
    turns, label = scraper.turns, ["engine"]
    yield gauge(
        "scrape_interval_seconds",
        "Seconds between two scrapes of an engine's load, as planned.",
        value=scraper.interval,
    )
    yield gauge(
        "scrape_lag_seconds",
        "Seconds by which scrapes of engines came later than planned, at worst, in the last round.",
        value=scraper.lag,
    )
    took = SummaryMetricFamily(
        "inferway_scrape_seconds",
        "Seconds that the engine took to answer a scrape of its load.",
        labels=label,
    )
    for name, turn in turns.items():
        took.add_metric([name], turn.answers, turn.took)
    yield took
    yield counter(
        "scrapes_passed_over",
        "Scrapes of the engine's load that were left out because it had not"
        " answered the one before.",
        label,
        {(name,): turn.passed_over for name, turn in turns.items()},
    )
    yield gauge(
        "engine_load_age_seconds",
        "Seconds since the engine last reported its load.",
        label,
        {
            (name,): max(0.0, time.monotonic() - turn.answered)
            for name, turn in turns.items()
            if turn.answered is not None
        },
    )


def expectation_families(plugins: Sequence[object]) -> Iterator[Family]:
    """Of the plugins that expect times; without one, no samples."""
    error = HistogramMetricFamily(
        "inferway_ttft_prediction_error",
        "Time to the first token, divided by the time that was expected; 1 is"
        " exact, 2 is twice as long.",
        labels=["engine"],
    )
    costs: dict[tuple[str, ...], float] = {}
    for plugin in plugins:
        if isinstance(plugin, ExpectedTtft):
            learning = plugin.learning
            for name, place in plugin.places.names().items():
                _add(error, name, learning.accuracy[place])
                for features, table in (
                    (TTFT_FEATURES, learning.ttft.table),
                    (TPOT_FEATURES, learning.tpot.table),
                ):
                    for feature, cost in zip(features, table[:, place], strict=True):
                        costs[name, feature] = float(cost) / 1000
    yield error
    yield gauge(
        "expected_cost_seconds",
        "Seconds that each part of a request is expected to cost on the engine, as"
        " learned from its answers.",
        ["engine", "of"],
        costs,
    )


def _add(family: HistogramMetricFamily, name: str, accuracy: Accuracy) -> None:
    bounds = [*map(str, BOUNDS), "+Inf"]
    counts = list(zip(bounds, accumulate(accuracy.counts), strict=True))
    family.add_metric([name], counts, accuracy.total)
