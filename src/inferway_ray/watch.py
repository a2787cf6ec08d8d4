"""A deployment's replicas -> lines with their engines, for `inferway serve --engines-ray`.

    python -m inferway_ray.watch APP/DEPLOYMENT

joins the Ray cluster of $RAY_ADDRESS, else the one on this machine, and writes a line of JSON on
standard output whenever the engines change: `[{"url": …, "name": …}, …]`. It is a program of its
own, because Ray brings threads, signal handlers and 200 MB into a process. It ends when its
standard input does, and when it has lost the cluster, with what went wrong on standard error.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from typing import Any

import msgspec
import ray
from ray.serve._private.common import DeploymentID
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve._private.long_poll import LongPollClient, LongPollNamespace

from inferway.config import EngineSettings
from inferway.errors import ConfigError
from inferway_ray.announced import announced

ALIVE_SECONDS = 10.0  # between two looks whether the cluster is there


def engines_of(replicas: Iterable[Any]) -> tuple[list[EngineSettings], list[str]]:
    """Return the engines that running replicas have announced, and what is wrong with others, in
    sentences."""
    engines, findings = [], []
    for info in replicas:
        name, port = info.replica_id.unique_id, info.backend_http_port
        backend = (info.node_ip, port) if info.node_ip is not None and port is not None else None
        try:
            found = announced(name, info.replica_metadata, info.routing_stats or {}, backend)
        except ConfigError as e:
            findings.append(str(e))
            continue
        if found.engine is not None:
            engines.append(found.engine)
        elif found.events is not None:
            findings.append(
                f"replica {name}: no HTTP leads to its engine; switch on Ray's direct streaming,"
                " or use the router inferway_ray"
            )
    return sorted(engines, key=lambda engine: engine.label), findings


async def watch(app: str, deployment: str) -> None:
    """Write lines until standard input ends. Raises what Ray raises when the cluster is lost."""
    told: set[str] = set()

    def changed(target: Any) -> None:
        engines, findings = engines_of(target.running_replicas)
        for finding in findings:
            if finding not in told:
                told.add(finding)
                print(finding, file=sys.stderr, flush=True)
        print(msgspec.json.encode(engines).decode(), flush=True)

    loop = asyncio.get_running_loop()
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    key = (LongPollNamespace.DEPLOYMENT_TARGETS, DeploymentID(name=deployment, app_name=app))
    client = LongPollClient(
        controller,
        {key: changed},
        call_in_event_loop=loop,
        client_id=f"inferway:{app}/{deployment}",
    )
    ended = loop.run_in_executor(None, sys.stdin.buffer.read)
    try:
        while not ended.done():
            await asyncio.wait_for(_asked(controller), ALIVE_SECONDS)
            await asyncio.wait({ended}, timeout=ALIVE_SECONDS)
    finally:
        client.stop()


async def _asked(controller: Any) -> None:
    await controller.check_alive.remote()


def main() -> None:
    app, slash, deployment = sys.argv[1].partition("/")
    if not slash:
        sys.exit(f"{sys.argv[1]!r}: expected APP/DEPLOYMENT")
    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        ray.init(
            address=address, logging_level="ERROR", log_to_driver=False, configure_logging=False
        )
        asyncio.run(watch(app, deployment))
    except Exception as e:
        print(f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", file=sys.stderr)
        os._exit(1)
    os._exit(0)  # Ray's threads, and the one that reads standard input


if __name__ == "__main__":
    main()
