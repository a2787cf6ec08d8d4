"""The dashboard and the alert rules ask for metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.recorders import Recorder, in_front_of

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/grafana/inferway.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
CHART_FILES = ROOT / "deploy/helm/inferway/files"  # copies: links do not survive all archives
REPOSITORY = "https://github.com/inferway/inferway/blob/main/"

_SERIES = re.compile(r"\b(inferway_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")
_OF_SCRAPES = {"job", "instance"}  # labels that Prometheus adds
_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


def documented() -> dict[str, set[str]]:
    """Metric -> its labels, as docs/metrics.md has them."""
    rows = re.findall(
        r"^\| `(inferway_\w+)` \|([^|]*)\|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def panels() -> list[dict[str, Any]]:
    return [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """(who asks, what)."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def series(expression: str) -> Iterator[tuple[str, set[str]]]:
    """(metric as it is documented, labels that are asked for)."""
    for name, matchers in _SERIES.findall(expression):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        for suffix in _OF_HISTOGRAMS:
            if name not in documented() and name.endswith(suffix):
                name = name.removesuffix(suffix)
                labels.discard("le")
        yield name, labels


@pytest.mark.parametrize(("who", "expression"), [*expressions()])
def test_it_asks_for_what_there_is(who: str, expression: str) -> None:
    known = documented()
    asked = list(series(expression))
    grouped = {label.strip() for text in _BY.findall(expression) for label in text.split(",")}

    assert asked, who
    for name, labels in asked:
        assert name in known, f"{who}: no metric {name}"
        missing = labels - known[name] - _OF_SCRAPES
        assert not missing, f"{who}: {name} has no label {missing}"
        assert grouped - {"le"} - _OF_SCRAPES <= known[name], f"{who}: {name} by {grouped}"


@pytest.mark.parametrize(("who", "expression"), [*expressions()])
def test_it_is_written_to_its_end(who: str, expression: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), who
    counters = [n for n, _ in _SERIES.findall(expression) if n.endswith("_total")]
    assert len(counters) == len(re.findall(r"(?:rate|increase)\(inferway_\w+_total", expression)), (
        f"{who}: a counter's value means nothing without rate or increase"
    )


async def test_a_live_page_has_what_they_ask_for() -> None:
    async with in_front_of(Recorder()) as front:
        await front.ask("/tokenize", b'{"model": "m"}')
        _, _, page = await front.ask("/metrics", method="GET")
    live = set(re.findall(r"^# TYPE (\S+)", page.decode(), re.MULTILINE))

    asked = {name for _, expression in expressions() for name, _ in series(expression)}

    assert asked <= live


def test_each_alert_says_what_it_means_and_where_the_steps_stand() -> None:
    for rule in rules():
        page = f"{REPOSITORY}docs/alerts.md#{rule['alert'].lower()}"

        assert rule["annotations"]["summary"].endswith("."), rule["alert"]
        assert rule["annotations"]["runbook_url"] == page
        assert rule["labels"]["severity"] in ("warning", "critical")
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        grouped = {w.strip() for text in _BY.findall(rule["expr"]) for w in text.split(",")}
        assert used <= grouped, rule["alert"]


def test_each_alert_has_a_section_with_steps_and_each_section_an_alert() -> None:
    text = (ROOT / "docs/alerts.md").read_text()
    parts = re.split(r"^### (\w+)$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))

    assert sorted(sections) == sorted(rule["alert"] for rule in rules())
    for alert, section in sections.items():
        assert "\n1. " in section or "Steps as for" in section, alert


def test_each_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    """By `promtool test rules` (test_live)."""
    cases = yaml.safe_load((ROOT / "tests/deploy/alert_cases.yaml").read_text())["tests"]
    tried = [test for case in cases for test in case["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}

    assert {test["alertname"] for test in tried if test["exp_alerts"]} == names
    assert {test["alertname"] for test in tried if not test["exp_alerts"]} == names


@pytest.mark.parametrize(
    ("copy", "original"), [("alerts.yaml", ALERTS), ("dashboard.json", DASHBOARD)]
)
def test_the_chart_has_the_same(copy: str, original: Path) -> None:
    path = CHART_FILES / copy

    assert not path.is_symlink()
    assert path.read_text() == original.read_text(), f"cp {original} {path}"


def test_each_name_is_given_once() -> None:
    names = [rule["alert"] for rule in rules()]
    titles = [panel["title"] for panel in panels()]
    ids = [panel["id"] for panel in panels()]

    assert len(set(names)) == len(names)
    assert len(set(titles)) == len(titles)
    assert len(set(ids)) == len(ids)
