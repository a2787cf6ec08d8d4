"""The API server of Kubernetes: one kind of object, listed and then watched for good.

list  -> everything, as of a version
watch -> changes since then, until the server ends it; then watch again from the last version
      expired (410)      list again at once: what was missed cannot be had otherwise
      connection broken  list again: who answers now may be a server that was restarted, whose
                         versions are lower, and a watch from one in the future would be silent
      429, 5xx           wait, as long as the server says, else twice as long each time
      401                read the token again
      403                say what is missing, and go on asking: somebody may grant it
      404                the kind is not installed: there are none of it; look again now and then

What is known stays known meanwhile: a cluster that cannot be asked is no reason to drop engines.

What a real server does (extproc.md, section 5): a watch is one JSON object a line, cut into chunks
anywhere; a resource version that is too old is an answer 200 with one event ERROR of code 410; what
no longer matches the selector is DELETED; a BOOKMARK carries a version and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec

from inferway.errors import ConfigError, InferwayError, UpstreamError, WireError
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.kubernetes")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0  # how long a token is used before its file is read again
PAGE = 500  # objects of a list in one answer
_CONNECT_SECONDS, _LIST_SECONDS = 5.0, 30.0
SLACK_SECONDS = 15.0  # a watch that has not ended so long after its time is half a connection
WATCH_SECONDS = 240  # at least; up to half as long again, so that not all end together
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
NOT_INSTALLED_PAUSE = 60.0
MAX_LINE_BYTES = 8 << 20  # etcd itself takes objects of 1.5 MiB

Object = Mapping[str, Any]  # as the API server writes it


class ApiError(UpstreamError):
    """The server answers with an error: `answered` is its status. `again_in`: seconds, if it says
    when to come back."""

    def __init__(self, message: str, *, answered: int, again_in: float | None = None) -> None:
        super().__init__(message)
        self.answered = answered
        self.again_in = again_in


@dataclass(slots=True)
class Access:
    """The address of the server, and what lets us in."""

    url: str  # no trailing slash
    token_file: Path | None = None
    ca_file: Path | None = None
    _token: str = field(default="", repr=False)
    _read_at: float = -TOKEN_SECONDS

    @classmethod
    def in_cluster(cls, account: Path = SERVICE_ACCOUNT) -> Access:
        """Return the access that every pod is given. Raises ConfigError outside of one."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{word}") for word in ("HOST", "PORT"))
        if not host or not port:
            raise ConfigError(
                "KUBERNETES_SERVICE_HOST is not set: this is no pod; give --kube-api URL"
                " (kubectl proxy prints one), or engines by --engine or --engines-file"
            )
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", account / "token", account / "ca.crt")

    def headers(self) -> dict[str, str]:
        """Return the headers that let us in. Kubernetes changes the token's file about once an
        hour. Raises ConfigError."""
        if self.token_file is None:
            return {}
        now = time.monotonic()
        if now - self._read_at >= TOKEN_SECONDS:
            try:
                self._token = self.token_file.read_text().strip()
            except OSError as e:
                raise ConfigError(f"token {self.token_file}: {e.strerror}") from e
            self._read_at = now
        return {"authorization": f"Bearer {self._token}"}

    def renew(self) -> None:
        """Read the token again at the next use: it is not taken any more."""
        self._read_at = -TOKEN_SECONDS

    def tls(self) -> ssl.SSLContext | bool:
        """Return who is trusted to be the server; True: whom the system trusts. Raises
        ConfigError."""
        if self.ca_file is None or not self.url.startswith("https:"):
            return True
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except (OSError, ssl.SSLError) as e:
            raise ConfigError(f"certificate authority {self.ca_file}: {e}") from e


def own_namespace(account: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace that we run in, as manifests say (`NAMESPACE`), or our service account;
    else `default`."""
    if said := os.environ.get("NAMESPACE"):
        return said
    try:
        return (account / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


class ApiServer:
    """Use from one loop; `close` when done."""

    def __init__(self, access: Access, slack: float = SLACK_SECONDS) -> None:
        """Raises ConfigError."""
        self.access = access
        self._slack = slack
        # Connections are not kept: a watch has one for itself, and a list comes seldom.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls(), force_close=True, limit=0),
            auto_decompress=True,
        )

    async def close(self) -> None:
        await self._session.close()

    async def list(self, path: str, selector: str = "") -> tuple[list[dict[str, Any]], str]:
        """Return all objects, and the version as of which they are. Raises UpstreamError."""
        items: list[dict[str, Any]] = []
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        timeout = aiohttp.ClientTimeout(total=_LIST_SECONDS, connect=_CONNECT_SECONDS)
        while True:
            try:
                async with self._get(path, query, timeout) as response:
                    await _check(response)
                    page = msgspec.json.decode(await response.read())
            except (aiohttp.ClientError, TimeoutError, *UNREADABLE) as e:
                raise self._failed(path, e) from e
            items += page.get("items") or ()
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, metadata.get("resourceVersion", "")
            query["continue"] = metadata["continue"]

    async def watch(
        self, path: str, selector: str, version: str, seconds: int
    ) -> AsyncIterator[bytes]:
        """Yield chunks of the watch, until the server ends it after `seconds`. Raises
        UpstreamError."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        query |= {"resourceVersion": version, **({"labelSelector": selector} if selector else {})}
        timeout = aiohttp.ClientTimeout(total=seconds + self._slack, connect=_CONNECT_SECONDS)
        try:
            async with self._get(path, query, timeout) as response:
                await _check(response)
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as e:
            raise self._failed(path, e) from e

    def _get(
        self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.client._RequestContextManager:
        url = self.access.url + path
        headers = {"accept": "application/json", **self.access.headers()}
        return self._session.get(url, params=query, headers=headers, timeout=timeout)

    def _failed(self, path: str, error: Exception) -> UpstreamError:
        why = "no answer in time" if isinstance(error, asyncio.TimeoutError) else str(error)
        return UpstreamError(f"Kubernetes API {self.access.url}{path}: {why or error!r}")


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raises ApiError for what is not 200."""
    if response.status == 200:
        return
    said: dict[str, Any] = {}
    try:
        decoded = msgspec.json.decode(await response.read())
        said = decoded if isinstance(decoded, dict) else {}
    except UNREADABLE:
        pass  # a proxy's page: the status says enough
    details = said.get("details") or {}
    again = str(response.headers.get("retry-after") or details.get("retryAfterSeconds") or "")
    raise ApiError(
        f"Kubernetes API {response.url.path}: {response.status}"
        f" {said.get('message') or response.reason}",
        answered=response.status,
        again_in=float(again) if again.isdigit() else None,  # else a date: our own pause will do
    )


class Event(msgspec.Struct):
    """One line of a Kubernetes watch."""

    type: str
    object: dict[str, Any]


_EVENT = msgspec.json.Decoder(Event)


class Expired(WireError):
    """The resource version is too old to watch from; the objects must be listed again."""


@dataclass(slots=True)
class WatchDecoder:
    """Decodes a watch's bytes, cut anywhere, into events."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events whose lines are complete now. Raises WireError for a line that is no
        event."""
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_LINE_BYTES:
            raise WireError(f"a watch's line is over {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                try:
                    yield _EVENT.decode(line)
                except UNREADABLE as e:
                    raise WireError(f"a watch's line is no event: {e}") from e


def _key(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


@dataclass(slots=True)
class ListWatch:
    """`changed` is told all there is, whenever that has changed."""

    server: ApiServer
    path: str  # /api/v1/namespaces/NAME/pods
    changed: Callable[[list[Object]], None]
    selector: str = ""
    optional: bool = False  # of a kind that need not be installed
    watch_seconds: int = WATCH_SECONDS
    random: Random = field(default_factory=Random)
    sleep: Callable[[float], object] = asyncio.sleep
    synced: bool = False  # has been listed once
    _version: str = ""  # that `_objects` are as of
    _objects: dict[tuple[str, str], Object] = field(default_factory=dict)  # by namespace and name
    _pause: float = 0.0
    _warned: str = ""

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        listed = False
        while True:
            try:
                if not listed:
                    await self._list()
                    listed = True
                await self._watch()
                self._pause = 0.0
            except Expired as e:
                log.info("following %s ended: %s; it is listed anew", self.path, e)
                listed = False
            except InferwayError as e:
                listed = False
                await self._wait(e)

    async def _list(self) -> None:
        items, version = await self.server.list(self.path, self.selector)
        self._objects, self._version = {_key(item): item for item in items}, version
        self.synced = True
        if self._warned:
            log.info("the API server answers again for %s", self.path)
            self._warned = ""
        self._tell()

    async def _watch(self) -> None:
        lines = WatchDecoder()
        seconds = self.watch_seconds + self.random.randint(0, self.watch_seconds // 2)
        async for chunk in self.server.watch(self.path, self.selector, self._version, seconds):
            changed = False
            try:
                for event in lines.feed(chunk):
                    changed |= self._apply(event)
            finally:
                if changed:
                    self._tell()

    def _apply(self, event: Event) -> bool:
        """Return whether what there is has changed. Raises Expired, or WireError for another
        error."""
        item = event.object
        if event.type == "ERROR":
            code, reason = item.get("code"), item.get("reason")
            kind = Expired if code == 410 or reason in ("Expired", "Gone") else WireError
            raise kind(f"{code} {reason}: {item.get('message')}")
        self._version = item["metadata"]["resourceVersion"]
        if event.type == "BOOKMARK":
            return False
        if event.type == "DELETED":
            return self._objects.pop(_key(item), None) is not None
        self._objects[_key(item)] = item
        return True

    def _tell(self) -> None:
        self.changed(list(self._objects.values()))

    async def _wait(self, error: InferwayError) -> None:
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
        pause = self._pause * (0.5 + self.random.random() / 2)
        code = error.answered if isinstance(error, ApiError) else 0
        if isinstance(error, ApiError):
            pause = error.again_in or pause
        if code == 401:
            self.server.access.renew()
        if code == 404 and self.optional:
            self._objects, self._version = {}, ""
            if not self.synced:
                self.synced = True
                self._tell()
            pause = NOT_INSTALLED_PAUSE
        else:
            self._warn(error, code)
        await self.sleep(pause)  # type: ignore[misc]

    def _warn(self, error: InferwayError, code: int) -> None:
        """Once for each way in which it fails."""
        words = str(error)
        if words == self._warned:
            return
        self._warned = words
        cure = ""
        if code == 403:
            cure = "; its service account must be allowed to get, list and watch them (deploy/)"
        level = logging.INFO if self.optional else logging.WARNING
        log.log(level, "%s%s; what is known stays, and it is asked again", words, cure)
