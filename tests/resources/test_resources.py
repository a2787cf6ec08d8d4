"""The measures of `make resources`, with a few of the connections."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.resources.__main__ import MAX_KB, SLOW, wrong
from tests.resources.measures import idle, slow, streams
from tests.resources.worlds import world


@pytest.mark.slow
async def test_idle_connections_are_small_and_leave_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as one:
        figures = await idle(one, 300)

    assert figures["descriptors_left"] <= 0  # the gateway may have closed one of its own
    # a share of what is taken in steps falls on each
    assert figures["kb_each_before_a_request"] <= MAX_KB
    assert figures["kb_each_after_an_answer"] <= 2 * MAX_KB


@pytest.mark.slow
async def test_streams_keep_apart_and_leave_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as one:
        figures = await streams(one, 100)

    assert (figures["at_once"], figures["wrong"]) == (100, 0)
    assert figures["descriptors_left"] <= 0


@pytest.mark.slow
async def test_slow_clients_are_told_and_go(tmp_path: Path) -> None:
    async with world(tmp_path, SLOW) as one:
        figures = await slow(one, 100)

    assert figures["told_408"] == 100
    assert figures["descriptors_left"] <= 0


async def test_the_gateway_takes_as_many_descriptors_as_it_may(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
    try:
        async with world(tmp_path) as one:
            limits = Path(f"/proc/{one.gateway.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert limits.partition("Max open files")[2].split()[0] == str(hard)


def test_what_does_not_hold_is_named() -> None:
    well = {
        "idle": {"kb_each": 1.0, "descriptors_left": 0},
        "streams": {"wrong": 0, "descriptors_left": 0},
        "slow": {"told_408": 5, "clients": 5, "descriptors_left": 0},
    }
    assert wrong(well) == []

    ill = {
        "idle": {"kb_each": 25.0, "descriptors_left": 1},
        "streams": {"wrong": 2, "descriptors_left": 0},
        "slow": {"told_408": 4, "clients": 5, "descriptors_left": 0},
    }
    assert len(wrong(ill)) == 4
