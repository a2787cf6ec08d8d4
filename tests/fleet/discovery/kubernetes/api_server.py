"""A small API server: real sockets, and what a real one was seen to do (extproc.md, section 5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

Object = dict[str, Any]
_BREAK = b"\0"  # instead of a line: the connection is reset
Quirk = Callable[[web.Request], web.Response | None]


def pod(name: str, ip: str | None = "10.0.0.1", ready: bool = True, **labels: str) -> Object:
    status: Object = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    if ip is not None:
        status["podIP"] = ip
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {"app": "vllm", **labels}},
        "status": status,
    }


def pool(name: str = "pool", *ports: int, **labels: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports or (8000,)],
        },
    }


class ApiServerDouble:
    """Objects by kind; watches see each change. `quirk` may answer a request instead."""

    def __init__(self) -> None:
        self.version = 100
        self.kinds: dict[str, dict[str, Object]] = {"pods": {}, "inferencepools": {}}
        self.first_version = 0  # of a watch that can be had; before it is too old
        self.tokens: set[str] | None = None  # that are let in; None: anybody
        self.quirk: Quirk = lambda _: None
        self.asked: list[str] = []
        self.chunk = 1 << 20  # bytes of a watch's line in one piece
        self.page = 1000
        self.silent = False  # watches say nothing any more
        self._watches: list[tuple[str, str, asyncio.Queue[bytes | None]]] = []
        self._log: list[tuple[int, str, Object, str]] = []  # version, kind, object, event

    async def __aenter__(self) -> ApiServerDouble:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_watches()
        await self._runner.cleanup()

    # what happens in the cluster

    def put(self, kind: str, item: Object) -> None:
        name = item["metadata"]["name"]
        known = self.kinds.setdefault(kind, {}).get(name)
        self._happened(kind, item, "ADDED" if known is None else "MODIFIED", known)
        self.kinds[kind][name] = item

    def delete(self, kind: str, name: str) -> None:
        item = self.kinds[kind].pop(name)
        self._happened(kind, item, "DELETED", item)

    def end_watches(self) -> None:
        """Cleanly, as a server does after timeoutSeconds."""
        for *_, queue in self._watches:
            queue.put_nowait(None)
        self._watches.clear()

    def bookmark(self, kind: str) -> None:
        self.version += 1
        line = {"type": "BOOKMARK", "object": {"kind": kind, "metadata": self._metadata({})}}
        for watched, _, queue in self._watches:
            if watched == kind:
                queue.put_nowait(msgspec.json.encode(line) + b"\n")

    def expire(self) -> None:
        """What is known of the past is compacted."""
        self.first_version = self.version

    def restart(self, version: int) -> None:
        """As another server, whose versions are lower; connections break."""
        self.version, self._log, self.first_version = version, [], 0
        for *_, queue in self._watches:
            queue.put_nowait(_BREAK)
        self._watches.clear()

    # how it is told

    def _happened(self, kind: str, item: Object, event: str, before: Object | None) -> None:
        self.version += 1
        item["metadata"] = self._metadata(item["metadata"])
        self._log.append((self.version, kind, item, event))
        for watched, selector, queue in self._watches:
            line = _seen(event, item, before, selector) if watched == kind else None
            if line is not None and not self.silent:
                queue.put_nowait(msgspec.json.encode(line) + b"\n")

    def _metadata(self, metadata: Object) -> Object:
        return {**metadata, "resourceVersion": str(self.version)}

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2]
        if request.path.startswith("/apis/llm-d.ai/"):
            kind = f"llm-d.ai/{kind}"
        watches = request.query.get("watch") == "true"
        self.asked.append(f"{'watch' if watches else 'list'} {kind}")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            return _status(401, "Unauthorized")
        special = self.quirk(request)
        if special is not None:
            return special
        if kind not in self.kinds:
            return web.Response(status=404, text="404 page not found\n")
        if watches:
            return await self._watch(request, kind)
        return self._list(request, kind)

    def _list(self, request: web.Request, kind: str) -> web.Response:
        selector = request.query.get("labelSelector", "")
        items = [item for item in self.kinds[kind].values() if _selects(selector, item)]
        start = int(request.query.get("continue", "0"))
        page = items[start : start + self.page]
        metadata = {"resourceVersion": str(self.version)}
        if start + self.page < len(items):
            metadata["continue"] = str(start + self.page)
        return web.Response(body=msgspec.json.encode({"metadata": metadata, "items": page}))

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        version = int(request.query["resourceVersion"])
        if version < self.first_version:
            gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
            line = {"type": "ERROR", "object": {"kind": "Status", **gone}}
            await response.write(msgspec.json.encode(line) + b"\n")
            return response
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        selector = request.query.get("labelSelector", "")
        for at, logged, item, event in self._log:
            past = _seen(event, item, None, selector)
            if logged == kind and at > version and past is not None:
                queue.put_nowait(msgspec.json.encode(past) + b"\n")
        if version <= self.version:  # one in the future is answered with silence
            self._watches.append((kind, selector, queue))
        while (text := await queue.get()) is not None:
            if text == _BREAK:
                assert request.transport is not None
                request.transport.abort()
                break
            for start in range(0, len(text), self.chunk):
                await response.write(text[start : start + self.chunk])
        return response


def _seen(event: str, item: Object, before: Object | None, selector: str) -> Object | None:
    """What a watch with a selector sees of a change: out of it is deleted, into it is added."""
    now = _selects(selector, item)
    then = before is not None and _selects(selector, before)
    if event == "DELETED" or (then and not now):
        return {"type": "DELETED", "object": item} if then or now else None
    if not now:
        return None
    return {"type": "MODIFIED" if then else "ADDED", "object": item}


_BETWEEN = re.compile(r",(?![^(]*\))")  # requirements
_IN = re.compile(r"(\S+)\s+(in|notin)\s*\((.*)\)")


def _selects(selector: str, item: Object) -> bool:
    labels = item["metadata"].get("labels", {})
    return all(_fits(each.strip(), labels) for each in _BETWEEN.split(selector) if each)


def _fits(requirement: str, labels: Mapping[str, str]) -> bool:
    if found := _IN.fullmatch(requirement):
        is_in = labels.get(found[1]) in [value.strip() for value in found[3].split(",")]
        return is_in == (found[2] == "in")
    if "=" in requirement:
        name, _, value = requirement.replace("==", "=").partition("=")
        return (labels.get(name.rstrip("!").strip()) == value.strip()) != name.endswith("!")
    return (requirement.lstrip("! ") in labels) != requirement.startswith("!")


def _status(code: int, reason: str, **more: Any) -> web.Response:
    said = {"kind": "Status", "code": code, "reason": reason, "message": reason, **more}
    return web.Response(status=code, body=msgspec.json.encode(said))


def refused(code: int, reason: str, **more: Any) -> web.Response:
    """An answer of the server's own making, for a quirk."""
    return _status(code, reason, **more)
