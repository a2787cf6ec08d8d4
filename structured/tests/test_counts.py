"""Plain numbers that Prometheus can read, and that add up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from inferway_structured.counts import FAMILIES, Counts, Snapshot, merged
from inferway_structured.validate.keywords import label
from inferway_structured.vllm.metrics import metrics_of


class Page:
    """A collector of what was counted."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        return metrics_of(self._snapshot)


def text(snapshot: Snapshot) -> str:
    registry = CollectorRegistry()
    registry.register(Page(snapshot))
    return generate_latest(registry).decode()


def read(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def counted() -> Counts:
    counts = Counts()
    counts.requests.add("json", "llguidance", "ok", by=2)
    counts.requests.add("regex", "", "refused")
    counts.forced_tokens.add(by=17)
    counts.held_bytes.set(1000, "memory")
    counts.compile_wall_seconds.observe(0.002)
    counts.compile_wall_seconds.observe(20)
    return counts


def test_prometheus_reads_what_was_counted() -> None:
    page = read(text(counted().snapshot()))

    name = "inferway_structured_requests_total"
    ok = (("backend", "llguidance"), ("kind", "json"), ("outcome", "ok"))
    assert page[name, ok] == 2
    assert page["inferway_structured_forced_tokens_total", ()] == 17
    assert page["inferway_structured_held_bytes", (("level", "memory"),)] == 1000
    bucket = "inferway_structured_compile_wall_seconds_bucket"
    assert page[bucket, (("le", "0.0025"),)] == 1
    assert page[bucket, (("le", "15.0"),)] == 1
    assert page[bucket, (("le", "+Inf"),)] == 2
    assert page["inferway_structured_compile_wall_seconds_sum", ()] == 20.002
    assert page["inferway_structured_compile_wall_seconds_count", ()] == 2


def test_every_family_is_on_the_page_before_anything_is_counted() -> None:
    page = text(Counts().snapshot())

    shown = {family.name for family in text_string_to_metric_families(page)}
    assert shown == {f"inferway_structured_{name}" for name in FAMILIES}


def test_counters_without_labels_begin_at_zero() -> None:
    assert read(text(Counts().snapshot()))["inferway_structured_joins_total", ()] == 0


def test_snapshots_of_processes_add_up() -> None:
    through_json = json.loads(json.dumps(counted().snapshot()))

    total = merged([through_json, counted().snapshot(), {"made-up": {"a": 1}}])

    assert total["requests"] == {"json/llguidance/ok": 4, "regex//refused": 2}
    assert total["compile_wall_seconds"]["0.0025"] == 2
    assert total["compile_wall_seconds"]["sum"] == 40.004
    assert "made-up" not in total


def test_a_counter_has_only_so_many_series() -> None:
    counts = Counts()

    for n in range(1000):
        counts.requests.add("json", str(n), "ok")

    assert len(counts.requests.snapshot()) == 201
    assert counts.requests.value("other", "other", "other") == 800
    assert sum(counts.requests.snapshot().values()) == 1000


def test_a_keyword_that_a_client_made_up_is_no_label() -> None:
    assert [label(word) for word in ("maxLength", "password1234", None)] == [
        "maxLength",
        "other",
        "none",
    ]


def test_labels_are_escaped() -> None:
    counts = Counts()
    counts.failed_grammars.add('a "quoted"\\\nreason')

    page = read(text(counts.snapshot()))

    name = "inferway_structured_failed_grammars_total"
    assert page[name, (("reason", 'a "quoted"\\\nreason'),)] == 1


def test_it_needs_no_library() -> None:
    code = (
        "import sys; before = set(sys.modules);"
        "import inferway_structured.counts, inferway_structured.compile.compilations;"
        "print(*{m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.split() == ["inferway_structured"]
