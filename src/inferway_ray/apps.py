"""Applications for Ray's configuration files: `import_path: inferway_ray.apps:engines` and `args`.

engines    engines, each a program beside a replica, behind an ingress whose router is Inferway's
gateways   gateways, each on a port of its own
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from ray import serve
from ray.serve import Application

from inferway.config import converted
from inferway_ray.ingress import OpenAiIngress
from inferway_ray.programs import EngineProgram, GatewayProgram
from inferway_ray.router import router_config

_Count = Annotated[int, msgspec.Meta(gt=0)]


class EnginesApp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `args` of `engines`."""

    command: Annotated[list[str], msgspec.Meta(min_length=1)]  # with $port for its port
    replicas: _Count = 1
    ingress_replicas: _Count = 1
    start_seconds: float = 1800.0  # until an engine must answer
    max_ongoing_requests: _Count = 256  # of each engine
    router: dict[str, Any] = {}  # as request_router_kwargs has it
    host: str | None = None  # where others reach an engine; absent: at its node's address
    ray_actor_options: dict[str, Any] = {}  # of an engine's replica: num_gpus and the like


class GatewaysApp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `args` of `gateways`."""

    arguments: list[str]  # of `inferway serve`
    replicas: _Count = 1
    base_port: int | None = None  # plus a replica's rank on its node; absent: free ports
    host: str = "127.0.0.1"  # that they listen on; 0.0.0.0: all of the node's
    ray_actor_options: dict[str, Any] = {}


def engines(args: Mapping[str, Any]) -> Application:
    """Return deployments `Ingress` and `Engine`. Raises ConfigError."""
    app = converted(dict(args), EnginesApp, "args of inferway_ray.apps:engines")
    engine = serve.deployment(
        name="Engine",
        num_replicas=app.replicas,
        max_ongoing_requests=app.max_ongoing_requests,
        request_router_config=router_config(**app.router),
        ray_actor_options=app.ray_actor_options or None,
    )(EngineProgram)
    ingress = serve.deployment(
        name="Ingress", num_replicas=app.ingress_replicas, max_ongoing_requests=10_000
    )(OpenAiIngress)
    return ingress.bind(engine.bind(app.command, app.start_seconds, app.host))


def gateways(args: Mapping[str, Any]) -> Application:
    """Return the deployment `Gateway`. Raises ConfigError."""
    app = converted(dict(args), GatewaysApp, "args of inferway_ray.apps:gateways")
    gateway = serve.deployment(
        name="Gateway",
        num_replicas=app.replicas,
        ray_actor_options=app.ray_actor_options or None,
    )(GatewayProgram)
    return gateway.bind(app.arguments, app.base_port, host=app.host)
