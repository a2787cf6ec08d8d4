"""The fleet as the director meets it, and which settings have KV events followed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fleet.worlds import no_events, no_prompts

from inferway.config import EngineSettings, ServeSettings
from inferway.errors import NoEndpointError
from inferway.fleet.fleet import Fleet
from inferway.fleet.watch import needs_events
from inferway.kv.index.memory import MemoryIndex
from inferway.model import Endpoint


@pytest.fixture
def fleet() -> Fleet:
    settings = ServeSettings(engines=[EngineSettings(url="http://127.0.0.1:9")])
    return Fleet(settings, MemoryIndex(), no_prompts, no_events)


def test_an_engine_can_be_suspected_while_the_start_still_waits_for_tokenizers(
    fleet: Fleet,
) -> None:
    fleet.suspect(Endpoint("127.0.0.1:9", "http://127.0.0.1:9", 0))


def test_a_model_is_not_unknown_before_an_engine_has_answered(fleet: Fleet) -> None:
    with pytest.raises(
        NoEndpointError, match=r"no engine has answered yet; asked http://127\.0\.0\.1:9"
    ):
        fleet.model("m")


async def test_a_fleet_that_was_never_started_can_be_closed(fleet: Fleet) -> None:
    await fleet.close()


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
