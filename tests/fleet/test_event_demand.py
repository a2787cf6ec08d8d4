"""Which settings have KV events followed before anybody asks for scores."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.config import ServeSettings
from inferway.fleet.watch import needs_events


@pytest.mark.parametrize(
    "settings",
    [
        {"scoring": True},
        {"follow_events": "always"},
        {"publish": "tcp://*:5600"},
        {"state_dir": "/tmp/x"},
        {"heal": 0.1},
    ],
)
def test_events_are_followed_where_something_needs_them(settings: dict[str, Any]) -> None:
    assert needs_events(ServeSettings(engines=[], **{"scoring": False, **settings}))


def test_events_are_not_followed_where_nothing_does() -> None:
    assert not needs_events(ServeSettings(engines=[], scoring=False))
