"""Stands in for the HTTP of an engine that is inside its Serve replica, for the fleet's questions.

    GET /health       200
    GET /v1/models    the deployment's model, and the adapters that the replica has loaded
    GET /metrics      how many requests the replica has, as Ray counts them

Each replica has a Unix socket in a folder that only this user may enter. Requests never come here:
Ray carries them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from aiohttp import web

from inferway.config import EngineSettings
from inferway.errors import ConfigError
from inferway_ray.announced import AnnouncedReplica, engine_at

log = logging.getLogger("inferway_ray")


class HeldModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that engines without HTTP serve: the same in all replicas of a deployment."""

    id: str  # what requests name it
    root: str | None = None  # directory or hub id of its files; the id when absent
    max_model_len: int | None = None


# A replica's unique id -> the requests that it has now.
NumRequests = Callable[[str], int]


@dataclass(slots=True)
class StandIns:
    """`engines` opens what has come and closes what has gone; `close` ends it."""

    model: HeldModel
    num_requests: NumRequests
    _replicas: dict[str, AnnouncedReplica] = field(default_factory=dict)
    _runners: dict[str, web.AppRunner] = field(default_factory=dict)
    _folder: TemporaryDirectory[str] | None = None

    async def engines(self, replicas: Collection[AnnouncedReplica]) -> list[EngineSettings]:
        """Return the settings of the replicas' engines, each reached at a socket of ours. One whose
        announcement cannot hold is left out, and the log says why."""
        self._replicas = {each.replica: each for each in replicas}
        for gone in [name for name in self._runners if name not in self._replicas]:
            await self._runners.pop(gone).cleanup()
        found = []
        for replica in replicas:
            try:
                found.append(await self._engine(replica))
            except ConfigError as e:
                log.warning("replica %s is chosen by load only: %s", replica.replica, e)
        return found

    async def close(self) -> None:
        for runner in self._runners.values():
            await runner.cleanup()
        self._runners.clear()
        if self._folder is not None:
            self._folder.cleanup()

    async def _engine(self, replica: AnnouncedReplica) -> EngineSettings:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="inferway-ray-")
        path = Path(self._folder.name) / f"{replica.replica}.sock"
        assert replica.events is not None
        engine = engine_at(f"unix:{path}", replica.replica, replica.events)
        if replica.replica not in self._runners:
            self._runners[replica.replica] = await self._listen(replica.replica, path)
        return engine

    async def _listen(self, name: str, path: Path) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/health", _healthy)
        app.router.add_get("/v1/models", partial(self._models, name))
        app.router.add_get("/metrics", partial(self._metrics, name))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        return runner

    async def _models(self, name: str, _: web.Request) -> web.Response:
        model, replica = self.model, self._replicas.get(name)
        root = model.root or model.id
        base = {"id": model.id, "root": root, "max_model_len": model.max_model_len}
        adapters = [] if replica is None else replica.adapters
        cards: list[Mapping[str, object]] = [base]
        cards += [
            {"id": adapter, "root": adapter, "parent": model.id}
            for adapter in adapters
            if adapter != model.id
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _metrics(self, name: str, _: web.Request) -> web.Response:
        return web.Response(text=f"vllm:num_requests_running{{}} {self.num_requests(name)}\n")


async def _healthy(_: web.Request) -> web.Response:
    return web.Response()
