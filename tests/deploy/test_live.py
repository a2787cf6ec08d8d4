"""What the dashboard draws and the alert rules ask, answered by a real Prometheus of a real run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.deploy.live import ALERTS, Live, filled, live, panels, wait_until
from tests.integration.program import Program

pytestmark = pytest.mark.tools

# (panel, legend): empty as long as all is well, or without an SLO.
EMPTY_WHEN_WELL = {
    ("Engines wanted", "{{model}} wanted"),
    ("Requests within the SLO", "{{model}}"),
    ("Answers, ejected, drained", "{{engine}} ejected"),
    ("Answers, ejected, drained", "{{engine}} drained"),
    ("Event streams that are not exact", "{{engine}}/{{rank}} {{state}}"),
    ("Waiting for their turn", "priority {{priority}}"),
}
QUERIES = [
    (panel["title"], target["legendFormat"], target["expr"])
    for panel in panels()
    for target in panel["targets"]
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Under load, until Prometheus has seen two answers at two scrapes."""
    load = ("--rates", "8", "--duration", "300", "--output-tokens", "10-20")
    with live(tmp_path_factory.mktemp("prometheus")) as run, run.load(*load):
        ended = "increase(inferway_e2e_request_latency_seconds_count[10s]) > 2"
        wait_until(lambda: run.query(ended))
        yield run


@pytest.mark.parametrize(("title", "legend", "expression"), QUERIES)
def test_each_query_of_the_dashboard_has_an_answer(
    running: Live, title: str, legend: str, expression: str
) -> None:
    def answer() -> list[object]:
        found = running.query(filled(expression, rate_interval="10s"))
        return [one for one in found if one["value"][1] != "NaN"]

    if (title, legend) in EMPTY_WHEN_WELL:
        answer()  # it can be read
    else:
        wait_until(answer)


def test_what_is_empty_when_all_is_well_is_on_the_dashboard() -> None:
    assert {(title, legend) for title, legend, _ in QUERIES} >= EMPTY_WHEN_WELL


def test_the_variables_of_the_dashboard_have_values(running: Live) -> None:
    assert running.query("inferway_build_info")[0]["metric"]["job"] == "inferway"
    models = {one["metric"]["model"] for one in running.query("inferway_requests_total")}
    assert models == {"smollm2"}


def test_all_alert_rules_are_evaluated_and_none_fires(running: Live) -> None:
    def rules() -> list[dict[str, str]]:
        groups = running.ask("rules")["groups"]
        found: list[dict[str, str]] = []
        for group in groups:
            found += group["rules"]
        return found

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()))

    assert [rule["name"] for rule in rules() if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []


def test_alerts_fire_when_objectives_are_missed() -> None:
    cases = Path(__file__).with_name("alert_cases.yaml")
    subprocess.run(["promtool", "check", "rules", ALERTS], check=True, capture_output=True)

    done = subprocess.run(["promtool", "test", "rules", cases], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def doubts(url: str) -> list[str]:
    """What promtool has to say of a page."""
    with urlopen(url + "/metrics", timeout=30) as response:
        page = response.read()
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    said: bytes = done.stderr
    return said.decode().splitlines()


def test_promtool_has_nothing_to_say_of_the_gateway_s_metrics(running: Live) -> None:
    assert doubts(running.gateway_url) == []


def test_promtool_minds_no_more_of_a_simulated_engine_than_vllm_s_own_names(
    running: Live,
) -> None:
    for url in running.engine_urls:
        for doubt in doubts(url):
            assert re.fullmatch(r"vllm:\w+ metric names should not contain ':'", doubt)


def test_promtool_minds_no_more_of_the_picker_than_the_d_in_llm_d(running: Live) -> None:
    """It takes it for days; the names are the reference's."""
    ports = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
    picker = Program("epp", *running.engine_urls, *ports, "--secure-serving=false")
    try:
        url = picker.read_until(r"listening on (http://\S+)")
        wait_until(lambda: b'engine_up{engine="' in urlopen(url + "/metrics", timeout=30).read())
        for doubt in doubts(url):
            assert re.fullmatch(r"llm_d_epp_\w+ .* should not contain abbreviated units", doubt)
    finally:
        picker.kill()
