"""What an engine's metrics and its answer to /is_sleeping say of its state."""

from __future__ import annotations

import pytest

from inferway.fleet.engine_states import suspension
from inferway.fleet.load import parse_load
from inferway.routing.limits.suspension import Suspension

ASLEEP, PAUSED = Suspension.ASLEEP, Suspension.PAUSED


@pytest.mark.parametrize(
    ("is_asleep", "computes_nothing", "found"),
    [
        (False, None, None),  # it has no such path
        (True, None, ASLEEP),
        (False, False, None),
        (False, True, PAUSED),
        (True, True, ASLEEP),
        (True, False, None),  # a sleep of level 0 that /resume has ended
    ],
)
def test_an_engine_sleeps_or_is_paused_as_it_tells(
    is_asleep: bool, computes_nothing: bool | None, found: Suspension | None
) -> None:
    assert suspension(is_asleep=is_asleep, computes_nothing=computes_nothing) is found


def page(awake: int, offloaded: int, discarded: int) -> str:
    values = {"awake": awake, "weights_offloaded": offloaded, "discard_all": discarded}
    return "".join(
        f'vllm:engine_sleep_state{{engine="{rank}",sleep_state="{name}"}} {value}.0\n'
        for name, value in values.items()
        for rank in range(2)
    )


@pytest.mark.parametrize(
    ("metrics", "is_asleep", "has_dropped_cache"),
    [
        ("", False, False),
        (page(1, 0, 0), False, False),
        (page(0, 0, 0), True, False),  # level 0
        (page(0, 1, 0), True, True),
        (page(0, 0, 1), True, True),
    ],
)
def test_its_metrics_tell_how_deeply_it_sleeps(
    metrics: str, is_asleep: bool, has_dropped_cache: bool
) -> None:
    load = parse_load(metrics)

    assert (load.is_asleep, load.has_dropped_cache) == (is_asleep, has_dropped_cache)


def test_updates_of_its_weights_are_counted_once_they_have_ended() -> None:
    name = "vllm:rl_weight_update_operation_duration_seconds_count"
    counts = {"start": 3, "update": 2, "finish": 1}
    metrics = "".join(f'{name}{{operation="{of}"}} {n}.0\n' for of, n in counts.items())

    assert parse_load(metrics).weight_updates == 2
