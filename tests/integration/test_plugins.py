"""A gateway with plugins of an installed package that have metrics of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.conftest import StartFleet, simulated
from tests.scheduling.test_load import package

MODULE = """
import numpy as np
from prometheus_client.core import CounterMetricFamily
from inferway.scheduling.registry import PluginType

class Counting:
    def __init__(self, parameters, building):
        self.scored = 0

    def score(self, request, candidates):
        self.scored += 1
        return np.ones(len(candidates.endpoints))

    def families(self):
        return [CounterMetricFamily("acme_scored", "Requests that were scored.", value=self.scored)]

class Faulty(Counting):
    def families(self):
        raise RuntimeError("no numbers today")

COUNTING = PluginType("counting", "", Counting)
FAULTY = PluginType("faulty", "", Faulty)
"""


async def test_a_plugin_of_another_package_has_its_metric_on_the_page_beside_one_that_fails(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package(monkeypatch, tmp_path, MODULE, counting="COUNTING", faulty="FAULTY")
    plugins = [{"type": "counting"}, {"type": "faulty"}]
    fleet = await start_fleet([simulated()], scheduling={"plugins": plugins})

    chat = {"model": "smollm2", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    assert (await fleet.post("/v1/chat/completions", chat)).status == 200

    assert await fleet.metric("acme_scored_total") == 1
    assert await fleet.metric("inferway_engine_up") == 1
