"""Without scoring: the least loaded endpoint."""

from __future__ import annotations

from collections import Counter

from tests.scheduling.test_profile import REQUEST, table

from inferway.scheduling.profile import LeastLoaded


def test_the_least_loaded_wins_whatever_it_holds() -> None:
    targets = LeastLoaded().choose(REQUEST, table(matched=[10, 0, 0, 0], load=[3, 1, 2, 9])).targets

    assert [t.endpoint.engine for t in targets] == ["e1", "e2", "e0"]


def test_equals_take_turns() -> None:
    choose, candidates = LeastLoaded().choose, table(load=[1, 1, 5, 1])

    counts = Counter(choose(REQUEST, candidates).targets[0].endpoint.engine for _ in range(30))

    assert counts == {"e0": 10, "e1": 10, "e3": 10}


def test_each_endpoint_is_a_target_once() -> None:
    targets = LeastLoaded().choose(REQUEST, table(load=[0, 0, 0])).targets

    assert sorted(t.endpoint.engine for t in targets) == ["e0", "e1", "e2"]


def test_a_fleet_of_one_is_its_only_target() -> None:
    assert len(LeastLoaded().choose(REQUEST, table(size=1)).targets) == 1
