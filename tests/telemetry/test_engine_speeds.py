"""An engine that is many times slower than its fellows is said to be; chance and tries are not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.table import EndpointTable
from inferway.kv.index.memory import MemoryIndex
from inferway.scheduling.expected_ttft.backlog import QueuedRequest
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.telemetry.engine_speeds import LOOK_SECONDS, EngineSpeeds, Late, told_by


class Fellows:
    """Engines of a model, a plugin that has heard of their answers, and a clock."""

    def __init__(self, *names: str, labels: dict[str, dict[str, str]] | None = None) -> None:
        self.now = 100.0
        self.plugin = ExpectedTtft()
        self.engines = [self._engine(name, (labels or {}).get(name, {})) for name in names]
        table = EndpointTable(self.engines, MemoryIndex())
        for each in self.engines:
            each.endpoints = [table.add(each, None)]
        self.plugin.slots.rows([each.endpoints[0] for each in self.engines], 0.0)
        self.speeds = EngineSpeeds(self.engines, [self.plugin], lambda: self.now)
        self._draw = Random(1)

    def _engine(self, name: str, labels: dict[str, str]) -> Engine:
        settings = EngineSettings(url=f"http://{name}:1", name=name, labels=labels)
        facts = EngineFacts((ModelCard("m", None, None, None),), (), 16, ())
        return Engine(settings, (), facts, healthy=True)

    def answer(self, times: int, ms_a_token: dict[str, float], scatter: float = 1.1) -> None:
        """So many answers of each to prompts of 500 tokens."""
        for _ in range(times):
            for name, ms in ms_a_token.items():
                tokens = self._draw.choice([300.0, 500.0, 700.0])
                off = self._draw.choice([scatter, 1 / scatter])
                features = [1.0, tokens, 0.0, 0.0, 0.0, 0.0]
                slot = self.plugin.slots.names()[name]
                self.plugin.learning.ttft.learn(slot, features, ms * tokens * off, self.now)
            self.now += 0.1
        self.now += LOOK_SECONDS

    @property
    def slow(self) -> Sequence[str]:
        return [each.name for each in self.engines if self.speeds.slow(each) is not None]


def test_an_engine_that_is_eight_times_slower_is_said_to_be() -> None:
    fleet = Fellows("a", "b", "c", "d")
    fleet.answer(40, {"a": 0.3, "b": 0.3, "c": 0.3, "d": 2.4})

    assert fleet.slow == ["d"]
    slow = fleet.speeds.slow(fleet.engines[3])
    assert slow is not None
    assert 5 < slow.times < 10
    assert slow.fellows_ms < 0.5 < 1.5 < slow.ms
    assert slow.of == "prompt token"


def test_one_of_two_is_slow_and_the_other_is_not() -> None:
    fleet = Fellows("a", "b")
    fleet.answer(40, {"a": 0.3, "b": 2.4})

    assert fleet.slow == ["b"]


def test_fellows_that_are_alike_or_twice_as_slow_are_not_slow() -> None:
    fleet = Fellows("a", "b", "c")
    for _ in range(20):
        fleet.answer(10, {"a": 0.3, "b": 0.35, "c": 0.6}, scatter=1.5)
        assert fleet.slow == []


def test_one_that_has_answered_a_few_times_is_not_judged() -> None:
    fleet = Fellows("a", "b")
    fleet.answer(40, {"a": 0.3})
    fleet.answer(5, {"b": 5.0})

    assert fleet.slow == []
    assert fleet.speeds.speed(fleet.engines[1]) is None


def test_it_is_slow_until_it_takes_less_than_twice_as_long() -> None:
    fleet = Fellows("a", "b")
    fleet.answer(60, {"a": 0.3, "b": 1.2})
    assert fleet.slow == ["b"]

    fleet.answer(300, {"a": 0.3, "b": 0.75})
    assert fleet.slow == ["b"]

    fleet.answer(300, {"a": 0.3, "b": 0.3})
    assert fleet.slow == []


def test_engines_of_other_models_and_such_as_are_out_are_no_fellows() -> None:
    fleet = Fellows("a", "b", "c")
    fleet.engines[0].facts = EngineFacts((ModelCard("other", None, None, None),), (), 16, ())
    fleet.engines[1].healthy = False
    fleet.answer(40, {"a": 0.3, "b": 0.3, "c": 2.4})

    assert fleet.slow == []


def test_other_hardware_is_told_apart_by_its_label() -> None:
    labels = {name: {"gpu": "H200"} for name in ("a", "b")} | {"c": {"gpu": "L4"}}
    fleet = Fellows("a", "b", "c", labels=labels)
    fleet.answer(40, {"a": 0.3, "b": 0.3, "c": 2.4})

    slow = fleet.speeds.slow(fleet.engines[2])
    assert slow is not None
    assert slow.is_other_hardware
    by_name = {family.name: family for family in fleet.speeds.families()}
    values = [sample.value for sample in by_name["inferway_engine_times_slower"].samples]
    assert values == [1.0, 1.0, 1.0]


def test_what_waits_for_much_longer_than_expected_is_late() -> None:
    fleet = Fellows("a", "b")
    [engine, other] = fleet.engines
    backlog = fleet.plugin.learning.backlog
    for number in range(4):
        backlog.add(QueuedRequest(0, 500.0, 60.0, number), fleet.now)

    fleet.now += 2.0
    assert fleet.speeds.late(engine, 1000.0) is None
    fleet.now += 20.0
    assert fleet.speeds.late(engine, 1000.0) == Late(4, 1100.0, 0.06)
    assert fleet.speeds.late(other, 1000.0) is None


def test_a_long_prompt_is_not_late() -> None:
    fleet = Fellows("a")
    backlog = fleet.plugin.learning.backlog
    backlog.add(QueuedRequest(0, 100_000.0, 30_000.0), fleet.now)

    fleet.now += 60.0

    assert fleet.speeds.late(fleet.engines[0], 0.0) is None


def test_a_hub_knows_what_its_workers_have_told() -> None:
    fleet = Fellows("a", "b")
    fleet.answer(40, {"a": 0.3, "b": 2.4})
    fleet.plugin.learning.backlog.add(QueuedRequest(0, 500.0, 60.0), fleet.now - 30)
    answers = [("inferway_ttft_prediction_error_count", {"engine": name}, 5.0) for name in "ab"]
    moved = ("inferway_outage_requests_moved", {"engine": "a"}, 2.0)
    families = [*fleet.plugin.families(), *fleet.speeds.families()]
    told = [(s.name, s.labels, s.value) for family in families for s in family.samples]
    hub = EngineSpeeds(fleet.engines, [ExpectedTtft()], lambda: fleet.now)

    hub.hear(told_by([[*told, *answers, moved], [*told, *answers, moved]]))

    assert [each.name for each in fleet.engines if hub.slow(each) is not None] == ["b"]
    late = hub.late(fleet.engines[0], 0.0)
    assert late is not None
    assert late.requests == 1
    assert hub.heard.affected["a"].moved == 4
