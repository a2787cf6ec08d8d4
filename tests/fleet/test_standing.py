"""The states of engines: each is in one of them."""

from __future__ import annotations

from typing import Any

from inferway.config import EjectionSettings, EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.outage import EngineStanding, Outage, OutageKind, count_states, since, state_of
from inferway.routing.limits.outlier_detection import OutlierDetection


def engine(name: str = "e", *, kind: OutageKind | None = None, **fields: Any) -> Engine:
    outage = None if kind is None else Outage(kind, 90.0, None, "refused")
    settings = EngineSettings(url="http://e:1", name=name)
    return Engine(settings, (), outage=outage, up_since=50.0, **fields)


def test_an_outage_has_the_state_of_its_kind_and_begins_when_it_began() -> None:
    standing = OutlierDetection()
    for kind in OutageKind:
        out = engine(kind=kind)

        assert state_of(out, standing, 100.0) == kind.value
        assert since(out, standing, {}, 100.0) == 90.0


def test_one_that_is_well_is_ready_since_it_came_up() -> None:
    well = engine(healthy=True)

    assert state_of(well, OutlierDetection(), 100.0) is EngineStanding.READY
    assert since(well, OutlierDetection(), {}, 100.0) == 50.0


def test_one_that_has_not_answered_yet_is_unheard() -> None:
    assert state_of(engine(), OutlierDetection(), 100.0) is EngineStanding.UNHEARD


def test_one_that_is_drained_is_so_whether_it_answers_or_not() -> None:
    standing = OutlierDetection(drained={"e"})
    out = engine(kind=OutageKind.SILENT)

    assert state_of(out, standing, 100.0) is EngineStanding.DRAINED
    assert since(out, standing, {"e": 70.0}, 100.0) == 70.0


def test_one_that_fails_is_ejected_since_it_was_put_out() -> None:
    standing = OutlierDetection(EjectionSettings(failures=2, seconds=5.0))
    for now in (80.0, 81.0):
        standing.failed("e", now)
    failing = engine(healthy=True)

    assert state_of(failing, standing, 82.0) is EngineStanding.EJECTED
    assert since(failing, standing, {}, 82.0) == 81.0
    standing.failed("e", 87.0)  # its try, too
    assert since(failing, standing, {}, 88.0) == 81.0


def test_every_state_is_counted_without_any_engine_too() -> None:
    assert count_states([], OutlierDetection(), 0.0) == dict.fromkeys(EngineStanding, 0)
    counts = count_states([engine(healthy=True), engine("f")], OutlierDetection(), 0.0)
    assert (counts[EngineStanding.READY], counts[EngineStanding.UNHEARD]) == (1, 1)
