"""Slow engines, compared with their fellows, and requests that wait there for longer than expected,
as `expected-ttft` has learned it from answers.

Fellows serve the same model in the same role. An engine is *slow* that takes LEAST_TIMES as long as
the median of its fellows, for a token of a prompt or of an answer; it is slow until it takes less
than OVER_TIMES. Engines that have answered fewer than KNOWN_AFTER requests, or now fast and now
slowly, are neither slow nor fellows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from statistics import median

import msgspec

from inferway.fleet.engine import Engine
from inferway.metrics import Family, gauge
from inferway.model import ROLE
from inferway.routing.limits.outlier_detection import Affected
from inferway.scheduling.expected_ttft.costs import KNOWN_AFTER
from inferway.scheduling.expected_ttft.learning import FIXED, OWN, PAIRS, RUNNING, TTFT_FEATURES
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft

MOST_SCATTER = 0.7  # of an engine's times about what is expected of it: twice or half as long
LEAST_TIMES = 3.0
OVER_TIMES = 2.0
LATE_SECONDS = 3.0  # nothing is late that has waited for less, ...
LATE_TIMES = 10.0  # ... or for fewer times as long as expected
LOOK_SECONDS = 2.0  # between two looks at what was learned

USUAL_TOKENS = 500.0  # of a prompt, where it is not known how many most have
_MOVED, _LOST = "inferway_outage_requests_moved", "inferway_outage_requests_lost"
_COSTS, _ANSWERS = "inferway_expected_cost_seconds", "inferway_ttft_prediction_error_count"
_SUMS = frozenset({_MOVED, _LOST, _ANSWERS})
_WAITS = (
    "inferway_engine_first_tokens_waiting",
    "inferway_engine_first_token_wait_seconds",
    "inferway_engine_first_token_expected_seconds",
)
_MANY = 16  # fellows, whose median is that of all: one engine does not change it
_ENGINE = ["engine"]
# Labels whose names have one of these words say what an engine runs on.
_HARDWARE = ("gpu", "hardware", "accelerator", "instance-type", "device", "node-type")


class Speed(msgspec.Struct, frozen=True):
    """The milliseconds that an engine takes for a token of a prompt of the usual length, and for
    one of an answer that it computes alone; None while too few answers have said how long they
    are."""

    prompt_token_ms: float
    answer_token_ms: float | None


class Slow(msgspec.Struct, frozen=True):
    """An engine takes so many times as long as its fellows do in the median."""

    times: float
    ms: float
    fellows_ms: float
    of: str  # "prompt token" or "answer token": what the milliseconds are for
    is_other_hardware: bool  # labels say that it differs from all fellows


class Late(msgspec.Struct, frozen=True):
    """Requests that wait at an engine for their first token, of which the first was due long
    ago."""

    requests: int
    since: float  # Unix time at which the first one's turn came
    expected_seconds: float  # that it was to take from then on


class Wait(msgspec.Struct, frozen=True):
    """Requests that have not begun to answer. Seconds: since the first one had its turn, and that
    it was expected to take from then on."""

    requests: int = 0
    seconds: float = 0.0
    expected: float = 0.0


_NONE = Wait()


@dataclass(frozen=True, slots=True)
class Told:
    """The figures of other processes: by endpoint the speeds of those that are well known, and what
    waits there; and by engine what its outage has done to their requests."""

    speeds: Mapping[str, Speed] = field(default_factory=dict)
    waits: Mapping[str, Wait] = field(default_factory=dict)
    affected: Mapping[str, Affected] = field(default_factory=dict)


@dataclass(slots=True)
class EngineSpeeds:
    """`plugins` that learn, of which the first is read; `clock` is theirs, `time.monotonic`. A hub
    that learns nothing itself is told what its workers know (`heard`)."""

    engines: Sequence[Engine]  # of the fleet, whenever one asks
    plugins: Sequence[ExpectedTtft]
    clock: Callable[[], float]
    heard: Told = field(default_factory=Told)
    _slow: dict[str, Slow] = field(default_factory=dict)  # by engine
    _speeds: dict[str, Speed] = field(default_factory=dict)  # of engines that are well known
    _looked: float | None = None

    def hear(self, told: Told) -> None:
        """Take the newest that the workers know, in place of what was told before."""
        self.heard = told

    def slow(self, engine: Engine) -> Slow | None:
        """Return how much slower than its fellows it is; None if it is not, or that is not
        known."""
        self._look()
        return self._slow.get(engine.name)

    def speed(self, engine: Engine) -> Speed | None:
        """Return what it takes; None while it has answered little."""
        self._look()
        return self._speeds.get(engine.name)

    def late(self, engine: Engine, wall: float) -> Late | None:
        """Return what waits there for much longer than expected; None if nothing does. `wall`: the
        Unix time at which the clock was 0."""
        now = self.clock()
        for endpoint in engine.endpoints:
            wait = self._wait(endpoint.name, now)
            if wait.requests and wait.seconds > max(LATE_SECONDS, LATE_TIMES * wait.expected):
                since = float(floor(wall + now - wait.seconds))
                return Late(wait.requests, since, float(f"{wait.expected:.2g}"))
        return None

    def expected_seconds(self, engine: Engine) -> float | None:
        """Return what the engine should take for what it has to compute next, in seconds; None if
        it is not known."""
        told = [each.expected_seconds(engine.endpoints) for each in self.plugins]
        return max([seconds for seconds in told if seconds is not None], default=None)

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it, of the endpoints that this process knows itself."""
        self._look()
        names, now = self._names(), self.clock()
        waits = {(name,): self._wait(name, now) for name in names}
        yield gauge(
            "engine_times_slower",
            "How many times as long as the median of its fellows the engine takes for a token, if"
            " that is three times or more and its labels do not say that it is other hardware;"
            " else 1.",
            _ENGINE,
            {(engine.name,): self._times(engine) for engine in (self.engines if names else ())},
        )
        yield gauge(
            "engine_first_tokens_waiting",
            "Requests at the engine that have not begun to answer.",
            _ENGINE,
            {key: wait.requests for key, wait in waits.items()},
        )
        yield gauge(
            "engine_first_token_wait_seconds",
            "Seconds since the first of these requests had its turn; 0 if there is none.",
            _ENGINE,
            {key: wait.seconds for key, wait in waits.items()},
        )
        yield gauge(
            "engine_first_token_expected_seconds",
            "Seconds that its first token was expected to take from then on; 0 if there is none.",
            _ENGINE,
            {key: wait.expected for key, wait in waits.items()},
        )

    def _times(self, engine: Engine) -> float:
        slow = self._slow.get(engine.name)
        return 1.0 if slow is None or slow.is_other_hardware else slow.times

    def _names(self) -> Mapping[str, int]:
        """The endpoints that requests of this process could have gone to, and their slots."""
        return self.plugins[0].slots.names() if self.plugins else {}

    def _wait(self, endpoint: str, now: float) -> Wait:
        names = self._names()
        if not names:
            return self.heard.waits.get(endpoint, _NONE)
        slot = names.get(endpoint)
        backlog = self.plugins[0].learning.backlog
        if slot is None or not (requests := int(backlog.requests.item(slot))):
            return _NONE
        waited = max(0.0, now - backlog.since_ms.item(slot) / 1000)
        return Wait(requests, waited, backlog.first_alone_ms.item(slot) / 1000)

    def _look(self) -> None:
        """Compare all engines with their fellows, now and then."""
        now = self.clock()
        if self._looked is not None and now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        known = _learned(self.plugins[0]) if self._names() else self.heard.speeds
        self._speeds = {
            engine.name: speed
            for engine in self.engines
            if (speed := _speed_of(engine, known)) is not None
        }
        groups: dict[tuple[str, str | None], list[Engine]] = {}
        for engine in self.engines:
            if engine.name in self._speeds and engine.healthy and engine.base_models:
                key = engine.base_models[0].name, engine.settings.all_labels.get(ROLE)
                groups.setdefault(key, []).append(engine)
        found: dict[str, Slow] = {}
        for fellows in groups.values():
            for name, slow in self._compared(fellows):
                if name not in found or found[name].times < slow.times:
                    found[name] = slow
        self._slow = found

    def _compared(self, engines: Sequence[Engine]) -> Iterator[tuple[str, Slow]]:
        """Yield those that are slow, by name."""
        for what, of in (("prompt_token_ms", "prompt token"), ("answer_token_ms", "answer token")):
            known = [each for each in engines if getattr(self._speeds[each.name], what) is not None]
            taken = {each.name: getattr(self._speeds[each.name], what) for each in known}
            everyone = median(taken.values()) if taken else 0.0
            for engine in known if len(known) > 1 else ():
                others = [ms for name, ms in taken.items() if name != engine.name]
                usual = median(others) if 0 < len(others) < _MANY else everyone
                name, times = engine.name, round(taken[engine.name] / usual, 1)
                if times >= (OVER_TIMES if name in self._slow else LEAST_TIMES):
                    differs = _is_other_hardware(engine, engines)
                    yield name, Slow(times, taken[name], usual, of, differs)


Sample = tuple[str, Mapping[str, str], float]  # its name, its labels, its value


def told_by(processes: Sequence[Iterable[Sample]]) -> Told:
    """Return what other processes know, from the samples of their /metrics. They tell each other
    what they learn and what waits: what the first one says counts. Each counts its own answers, and
    what outages did to its own requests: those are added up."""
    costs: dict[tuple[str, str], float] = {}
    waits: dict[tuple[str, str], float] = {}
    sums: Counter[tuple[str, str]] = Counter()
    for samples in processes:
        for name, labels, value in samples:
            if name == _COSTS:
                costs.setdefault((labels["engine"], labels["of"]), value * 1000)
            elif name in _WAITS:
                waits.setdefault((labels["engine"], name), value)
            elif name in _SUMS:
                sums[labels["engine"], name] += int(value)
    return Told(
        {
            engine: _speed_told(engine, costs)
            for engine in {engine for engine, _ in costs}
            if sums[engine, _ANSWERS] >= KNOWN_AFTER
        },
        {
            engine: Wait(
                int(waits.get((engine, _WAITS[0]), 0)),
                *(waits.get((engine, name), 0.0) for name in _WAITS[1:]),
            )
            for engine in {engine for engine, _ in waits}
        },
        {
            engine: Affected(sums[engine, _MOVED], sums[engine, _LOST])
            for engine in {engine for engine, _ in sums}
        },
    )


def _speed_told(engine: str, costs: Mapping[tuple[str, str], float]) -> Speed:
    """Return a speed by costs that do not tell how long answers are."""
    parts = [TTFT_FEATURES[part] for part in (FIXED, OWN, PAIRS)]
    fixed, own, pair = [costs.get((engine, part), 0.0) for part in parts]
    return Speed(_prompt_token_ms(fixed, own, pair, USUAL_TOKENS), None)


def _learned(plugin: ExpectedTtft) -> dict[str, Speed]:
    """Return what the endpoints take that are well known."""
    learning = plugin.learning
    tokens = max(1.0, learning.marginal_cost.new_tokens)
    ttft, tpot = learning.ttft, learning.tpot
    return {
        name: Speed(
            _prompt_token_ms(
                *(ttft.table.item(FIXED, slot), ttft.table.item(OWN, slot)),
                *(ttft.table.item(PAIRS, slot), tokens),
            ),
            None
            if tpot.is_cold.item(slot)
            else tpot.table.item(FIXED, slot) + tpot.table.item(RUNNING, slot),
        )
        for name, slot in plugin.slots.names().items()
        if not ttft.is_cold.item(slot) and ttft.error.item(slot) < MOST_SCATTER
    }


def _prompt_token_ms(fixed: float, own: float, pair: float, tokens: float) -> float:
    return fixed / tokens + own + pair * tokens / 2


def _speed_of(engine: Engine, known: Mapping[str, Speed]) -> Speed | None:
    """Return the speed of an engine, of several endpoints that of the slowest."""
    speeds = [known[each.name] for each in engine.endpoints if each.name in known]
    if not speeds:
        return None
    answers = [each.answer_token_ms for each in speeds if each.answer_token_ms is not None]
    return Speed(
        _two_digits(max(each.prompt_token_ms for each in speeds)),
        _two_digits(max(answers)) if answers else None,
    )


def _two_digits(number: float) -> float:
    return float(f"{number:.2g}")


def _is_other_hardware(engine: Engine, fellows: Sequence[Engine]) -> bool:
    for name, value in engine.settings.all_labels.items():
        if any(word in name.lower() for word in _HARDWARE):
            theirs = {each.settings.all_labels.get(name) for each in fellows if each is not engine}
            if value not in theirs:
                return True
    return False
