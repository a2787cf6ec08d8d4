"""The applications for Ray's configuration files, as Ray builds and runs them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.ray.conftest import Served, text, until
from tests.ray.test_gateways import ready

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


def test_engines_and_gateways_from_their_arguments(serve_port: int) -> None:
    from ray import serve

    from inferway_ray.apps import engines, gateways
    from inferway_ray.programs import INFERWAY

    light = {"num_cpus": 0.01}
    command = [*INFERWAY, "simulate", "--port", "$port"]
    llm = {"command": command, "replicas": 2, "host": "127.0.0.1", "ray_actor_options": light}
    behind = {"arguments": ["--engines-ray", "llm/Engine"], "ray_actor_options": light}
    serve.run(engines({**llm, "router": {"policy": "kv-aware"}}), name="llm", route_prefix="/llm")
    try:
        served = Served(f"http://127.0.0.1:{serve_port}/llm")
        assert served.cached(text(1)) == 0
        until(lambda: served.cached(text(1)) > 500)
        handle = serve.run(gateways(behind), name="gateways", route_prefix=None)

        (url,) = handle.broadcast("where").results()

        assert url.startswith("http://127.0.0.1:")
        until(partial(ready, url))
        until(lambda: Served(url).cached(text(1)) > 500)
    finally:
        serve.delete("gateways")
        serve.delete("llm")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "command"),
        ({"command": []}, "command"),
        ({"command": ["x"], "replicas": 0}, "replicas: 0"),
        ({"command": ["x"], "router": {"port": 1}}, "request_router_kwargs: 'port'"),
        ({"command": ["x"], "colour": "red"}, "colour"),
    ],
)
def test_what_cannot_hold_is_refused(args: dict[str, Any], said: str) -> None:
    pytest.importorskip("ray")
    from inferway.errors import ConfigError
    from inferway_ray.apps import engines

    with pytest.raises(ConfigError, match=said):
        engines(args)
