"""request_router_kwargs -> settings, or what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.errors import ConfigError
from inferway_ray.settings import router_settings
from inferway_ray.stand_in import HeldModel


def test_keys_are_those_of_the_yaml_file_and_the_model() -> None:
    given = router_settings({"policy": "kv-aware", "model": "org/m", "scrape_seconds": 1})

    assert given.serve.policy == "kv-aware"
    assert given.serve.scrape_seconds == 1
    assert given.model == HeldModel(id="org/m")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": 80}, r"request_router_kwargs: 'port': expected one of engine_ca, engine_cert, "),
        ({"policy": "fast"}, r"request_router_kwargs: policy: 'fast'"),
        ({"scheduling": {"plugins": [{"type": "x"}]}}, r"x"),
        ({"model": 5}, r"request_router_kwargs: model"),
        ({"model": {"name": "m"}}, r"request_router_kwargs: model.*name"),
        ({"scrape_seconds": 0}, r"scrape_seconds: 0"),
    ],
)
def test_what_cannot_hold_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        router_settings(given)
