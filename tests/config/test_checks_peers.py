"""Which peers a gateway can be given."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.config import ServeSettings, load_settings, peers_port
from inferway.errors import ConfigError


def settings(**peers: Any) -> ServeSettings:
    return load_settings(None, {"engines": [{"url": "http://a:1"}], "peers": peers})


@pytest.mark.parametrize(
    ("peers", "port"),
    [
        ({"addresses": ["gateways.default.svc:7400"]}, 7400),
        ({"addresses": ["10.0.0.5:7400", "[fd00::5]:7400"]}, 7400),
        ({"addresses": ["a:7400", "b:7401"], "port": 7402}, 7402),
    ],
)
def test_the_port_is_that_of_the_addresses_unless_given(peers: dict[str, Any], port: int) -> None:
    assert peers_port(settings(**peers).peers) == port


@pytest.mark.parametrize(
    ("peers", "says"),
    [
        ({"addresses": ["10.0.0.5"]}, r"'10\.0\.0\.5': expected HOST:PORT"),
        ({"addresses": ["http://a:7400"]}, "'http://a:7400': expected HOST:PORT"),
        ({"addresses": ["a:0"]}, "'a:0': expected HOST:PORT"),
        ({"addresses": ["a:70000"]}, "'a:70000': expected HOST:PORT"),
        ({"addresses": ["a:1", "b:2"]}, "have the ports 1, 2: say with peers.port"),
        ({"port": 7400}, "no peers are given"),
        ({"addresses": ["a:1"], "redis": "redis://r"}, "leave one of the two out"),
    ],
)
def test_what_cannot_be_is_named(peers: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        settings(**peers)
