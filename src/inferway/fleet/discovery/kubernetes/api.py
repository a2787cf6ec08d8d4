"""The API server: list and watch."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from inferway.errors import ConfigError, UpstreamError
from inferway_structured.decoding import UNREADABLE

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0  # how long a token is used before its file is read again
PAGE = 500  # objects of a list in one answer
_CONNECT_SECONDS, _LIST_SECONDS = 5.0, 30.0
SLACK_SECONDS = 15.0  # a watch that has not ended so long after its time is half a connection


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
        # connections are not kept: a watch has one for itself, and a list comes seldom
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
