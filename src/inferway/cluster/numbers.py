"""The metrics of all processes as those of one gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric

from inferway.cluster.bus.messages import FamilyTold
from inferway.metrics import PREFIX, Family
from inferway.telemetry.cache_worth import NAME as CACHE_WORTH

# Counts are added up: counters, histograms, and these gauges, of what each process has for itself.
# All other gauges say what is so, which every process sees as the hub does.
_COUNTS = frozenset(
    {
        *(f"{PREFIX}http_connections", f"{PREFIX}http_answering"),
        *(f"{PREFIX}flow_waiting", f"{PREFIX}flow_in_flight"),
        *(f"{PREFIX}remote_bytes", f"{PREFIX}warm_prefixes", f"{PREFIX}warm_prefix_bytes"),
        *(f"{PREFIX}hand_over_left", f"{PREFIX}index_bytes", f"{PREFIX}{CACHE_WORTH}"),
        *(f"{PREFIX}outage_requests_moved", f"{PREFIX}outage_requests_lost"),
        f"{PREFIX}picker_streams_open",
        "llm_d_router_epp_extproc_streams_inflight",
        *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds"),
    }
)
_CREATED = "_created"  # of counters: when they began

_Key = tuple[str, tuple[tuple[str, str], ...]]


def told(families: Iterable[Family]) -> list[FamilyTold]:
    """Return the families as a worker tells them."""
    return [
        FamilyTold(
            each.name,
            each.documentation,
            each.type,
            [(sample.name, sample.labels, sample.value) for sample in each.samples],
        )
        for each in families
    ]


def added_up(own: Iterable[Family], others: Sequence[Sequence[FamilyTold]]) -> Iterator[Family]:
    """Yield the hub's families with the workers' numbers, then those that only workers have."""
    by_name: dict[str, list[FamilyTold]] = {}
    for families in others:
        for each in families:
            by_name.setdefault(each.name, []).append(each)
    for family in own:
        yield _joined(family, by_name.pop(family.name, []))
    for first, *more in by_name.values():
        empty = Metric(first.name, first.text, first.kind)
        yield _joined(empty, [first, *more])


def samples(families: Sequence[FamilyTold]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield what a worker has told, one by one."""
    for each in families:
        yield from each.samples


def cache_worth(families: Sequence[FamilyTold]) -> dict[str, float]:
    """Return what a worker has told that each engine's cache is worth, in tokens."""
    return {
        labels["engine"]: value
        for each in families
        if each.name == f"{PREFIX}{CACHE_WORTH}"
        for _, labels, value in each.samples
    }


def _joined(own: Family, others: Sequence[FamilyTold]) -> Family:
    if not others:
        return own
    is_count = own.type in ("counter", "histogram", "summary") or own.name in _COUNTS
    values: dict[_Key, float] = {}
    for sample in own.samples:
        values[sample.name, tuple(sample.labels.items())] = sample.value
    for other in others:
        for name, labels, value in other.samples:
            key = (name, tuple(labels.items()))
            before = values.get(key)
            if before is None:
                values[key] = value
            elif is_count and not name.endswith(_CREATED):
                values[key] = before + value
    joined = Metric(own.name, own.documentation, own.type)
    for (name, pairs), value in values.items():
        joined.add_sample(name, dict(pairs), value)
    return joined
