"""A Ray with Serve, engines and an ingress, until standard input ends.

    python -m inferway_bench.ray_serve.worker JSON

prints the ingress's URL when it answers. The JSON is a `Deployed`.
"""

from __future__ import annotations

import logging
import os
import socket
import sys

import msgspec


class Deployed(msgspec.Struct, frozen=True):
    """What is deployed: a router's class in `deployments`, engines, and where timings go."""

    router: str
    engines: int
    simulate: list[str]  # flags of `inferway simulate`
    timings: str


def main() -> None:
    deployed = msgspec.json.decode(sys.argv[1], type=Deployed)
    os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: what else runs would be measured
    import ray
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from inferway_bench.ray_serve.deployments import ParsedEngine, ParsedIngress
    from inferway_ray.programs import INFERWAY

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        light = {"num_cpus": 0.01}
        quiet = {"log_level": "ERROR", "enable_access_log": False}
        engine = serve.deployment(
            name="Engine",
            num_replicas=deployed.engines,
            max_ongoing_requests=256,
            request_router_config=RequestRouterConfig(
                request_router_class=f"inferway_bench.ray_serve.deployments:{deployed.router}",
                request_router_kwargs={"timings": deployed.timings},
            ),
            ray_actor_options=light,
            logging_config=quiet,
        )(ParsedEngine)
        front = serve.deployment(
            name="Front", max_ongoing_requests=1000, ray_actor_options=light, logging_config=quiet
        )(ParsedIngress)
        command = [*INFERWAY, "simulate", "--port", "$port", *deployed.simulate]
        bound = front.bind(engine.bind(command, 120.0, "127.0.0.1"))
        serve.run(bound, name="bench", route_prefix="/")
        print(f"http://127.0.0.1:{port}", flush=True)
        sys.stdin.read()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
