"""The side channel between simulated engines: a port of its own for each, where others read blocks
and say what they have read. It stands for NIXL's handshake, reads and notifications, for Mooncake's
bootstrap server (`GET /query`) and for SGLang's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from inferway_sim.app_server import AppServer
from inferway_sim.cache import KvCache
from inferway_sim.kv_transfer import Connector, Fetch

Contents = Sequence[Sequence[int]]

_HEARTBEATS_A_LEASE = 6


class BlockRequest(msgspec.Struct):
    """The request of a decode engine for blocks."""

    compatibility: str  # of the two engines' caches: they must say the same
    engine_id: str | None
    key: str
    block_ids: list[int] | None


class SideChannel:
    """One engine's end. `wake` is called when leases have changed, `clock` tells the seconds."""

    def __init__(
        self,
        transfer: Connector,
        cache: KvCache,
        compatibility: str,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._transfer = transfer
        self._cache = cache
        self._compatibility = compatibility
        self._wake = wake
        self._clock = clock
        self._kept: dict[str, asyncio.Event] = {}  # by key: a prefill leg is awaited
        self._beating: dict[int, Fetch] = {}  # whose turn has not come
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: AppServer | None = None
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Listen at its port. Raises ConfigError naming a port that cannot be had."""
        transfer = self._transfer
        app = web.Application()
        app.add_routes(
            [
                web.post("/blocks", self._blocks),
                web.post("/release", self._release),
                web.post("/heartbeat", self._heartbeat),
                web.get("/query", self._query),
            ]
        )
        host, port = transfer.config.host, transfer.config.port
        self._server = await AppServer.start(app, host, port, kind="kv-transfer")
        transfer.start(self._server.port)
        transfer.on_keep = self._tell_kept
        transfer.on_drop = self._tell_dropped
        self._client = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=transfer.config.peer_timeout)
        )
        self._spawn(self._beat())

    async def stop(self) -> None:
        """Close it: what this engine keeps cannot be fetched any more."""
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._client is not None:
            await self._client.close()
        if self._server is not None:
            await self._server.stop()
        self._server = self._client = None

    def expect(self, fetch: Fetch) -> None:
        """The request is queued: until it is its turn, the other engine is asked to wait."""
        if fetch.sends_heartbeats:
            self._beating[id(fetch)] = fetch
            self._spawn(self._send_heartbeats([fetch]))

    def fetch(self, fetch: Fetch, num_blocks: int, then: Callable[[Contents | None], None]) -> None:
        """Get the last `num_blocks` of its blocks; `then` gets what they hold, None if they cannot
        be had. A reference may name fewer."""
        self._spawn(self._fetch(fetch, num_blocks, then))

    async def _fetch(
        self, fetch: Fetch, num_blocks: int, then: Callable[[Contents | None], None]
    ) -> None:
        ids = None if fetch.block_ids is None else list(fetch.block_ids)[-num_blocks:]
        if fetch.engine_id == self._transfer.engine_id:
            then(None)  # vLLM does not shake hands with itself
            return
        asked = BlockRequest(self._compatibility, fetch.engine_id, fetch.key, ids)
        found: Contents | None = None
        with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            found = await self._ask(f"{fetch.url}/blocks", asked)
        if ids is None and found is not None:
            found = found[-num_blocks:] if len(found) >= num_blocks else None
        then(found)

    async def _ask(self, url: str, asked: BlockRequest) -> Contents | None:
        """Return what another engine says of its blocks; None if it refuses."""
        if self._client is None:
            return None
        async with self._client.post(url, data=_encode(asked)) as answer:
            if answer.status != 200:
                return None
            return msgspec.json.decode(await answer.read(), type=list[list[int]])

    async def _blocks(self, request: web.Request) -> web.Response:
        """Answer what blocks hold now, whoever they are kept for."""
        asked = msgspec.json.decode(await request.read(), type=BlockRequest)
        if (
            asked.compatibility != self._compatibility
            or asked.engine_id not in (None, self._transfer.engine_id)
            or self._transfer.refuses_reads
        ):
            return web.Response(status=409)
        ids = asked.block_ids
        if ids is None:
            while asked.key not in self._transfer.leases:
                await self._kept.setdefault(asked.key, asyncio.Event()).wait()
            ids = [block.id for block in self._transfer.leases[asked.key].blocks]
        contents = self._cache.contents_of(ids)
        if contents is None:
            return web.Response(status=404)
        return web.Response(body=_encode(contents))

    async def _release(self, request: web.Request) -> web.Response:
        self._transfer.release(msgspec.json.decode(await request.read(), type=str))
        self._wake()
        return web.Response()

    async def _heartbeat(self, request: web.Request) -> web.Response:
        keys = msgspec.json.decode(await request.read(), type=list[str])
        self._transfer.extend(keys, self._clock())
        return web.Response()

    async def _query(self, _: web.Request) -> web.Response:
        """Mooncake's directory of ranks; a simulated engine has rank 0 only."""
        transfer = self._transfer
        worker = f"{transfer.host}:{transfer.port}"
        entry = {"engine_id": transfer.engine_id, "worker_addr": {"0": {"0": worker}}}
        return web.Response(body=_encode({"0": entry}), content_type="application/json")

    def _tell_kept(self, key: str) -> None:
        event = self._kept.pop(key, None)
        if event is not None:
            event.set()

    def _tell_dropped(self, fetch: Fetch) -> None:
        self._beating.pop(id(fetch), None)
        self._spawn(self._post(f"{fetch.url}/release", fetch.key))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._transfer.config.lease_seconds / _HEARTBEATS_A_LEASE)
            await self._send_heartbeats(list(self._beating.values()))

    async def _send_heartbeats(self, fetches: Sequence[Fetch]) -> None:
        for url in {fetch.url for fetch in fetches}:
            await self._post(
                f"{url}/heartbeat", [fetch.key for fetch in fetches if fetch.url == url]
            )

    async def _post(self, url: str, value: Any) -> None:
        """Say something to an engine that may be gone, or the client that says it."""
        if self._client is None:
            return
        with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            async with self._client.post(url, data=_encode(value)):
                pass

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)
