from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferway_structured.counts import FAMILIES, Counts
from inferway_structured.vllm.metrics import PREFIX, Collector

DOCS = Path(__file__).parents[3] / "docs" / "structured.md"


class Core:
    """An engine core's client: says what it has counted, or fails."""

    def __init__(self, counts: Counts | None) -> None:
        self._counts = counts

    async def call_utility_async(self, *_: str) -> str:
        if self._counts is None:
            raise ConnectionError
        return json.dumps({"counts": self._counts.snapshot()})


def values(collector: Collector) -> dict[str, Any]:
    found = [sample for metric in collector.collect() for sample in metric.samples]
    return {f"{sample.name}{sample.labels or ''}": sample.value for sample in found}


async def test_the_page_adds_up_the_server_and_its_cores() -> None:
    front: Any = SimpleNamespace(counts=Counts())
    core = Counts()
    front.counts.answers.add("true")
    core.forced_tokens.add(by=5)
    collector = Collector(front)

    await collector.refresh(SimpleNamespace(engine_core=Core(core)))

    told = values(collector)
    assert told["inferway_structured_answers_total{'valid': 'true'}"] == 1
    assert told["inferway_structured_forced_tokens_total"] == 5


async def test_a_core_that_does_not_answer_leaves_the_page_as_it_was() -> None:
    front: Any = SimpleNamespace(counts=Counts())
    core = Counts()
    core.joins.add()
    collector = Collector(front)
    await collector.refresh(SimpleNamespace(engine_core=Core(core)))

    await collector.refresh(SimpleNamespace(engine_core=Core(None)))

    assert values(collector)["inferway_structured_joins_total"] == 1


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_metric_of_the_engine_is_documented(family: Any) -> None:
    name = f"{PREFIX}{family.name}" + ("_total" if family.type == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in family.labels)

    assert re.search(rf"^\| `{name}` \| {labels} \| ", DOCS.read_text(), re.MULTILINE)
