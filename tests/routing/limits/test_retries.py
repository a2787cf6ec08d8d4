"""How many further tries there may be."""

from __future__ import annotations

import pytest

from inferway.config import RetrySettings
from inferway.routing.limits.failover import Retries


@pytest.mark.parametrize(
    ("active", "retrying", "may"),
    [
        (1, 0, True),  # the floor
        (1, 1, True),
        (1, 2, False),
        (100, 19, True),
        (100, 20, False),
    ],
)
def test_no_more_than_their_share_or_the_floor(active: int, retrying: int, may: bool) -> None:
    retries = Retries(RetrySettings(share=0.2, floor=2), active=active, retrying=retrying)

    assert retries.may_begin() is may
    assert retries.refused == (not may)


def test_what_is_tried_elsewhere_can_be_set() -> None:
    retries = Retries()
    assert retries.statuses == {502, 503}

    retries.set_settings(RetrySettings(statuses=(429, 503)))

    assert retries.statuses == {429, 503}
