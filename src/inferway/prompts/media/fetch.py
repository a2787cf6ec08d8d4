"""Pictures behind URLs, as data URLs, where the operator allows it (settings `media`).

Limits are those of vLLM 0.32 (multimodal/media/connector.py, connections.py), and stricter ones:
each hop of redirects goes to an allowed domain, and each connection to a public address. A name is
looked up once, and what was checked is what is connected to. A URL may carry a signature: none is
logged, counted or shown.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from inferway.config import MediaSettings
from inferway.metrics import Family, counter
from inferway.model import FetchedMedia

MOST_PICTURES = 128  # of one chat
MOST_BYTES = 256 << 20  # of pictures whose chats no engine has answered yet
_CONNECTIONS = 32  # at once; others wait, as long as their chats' deadlines allow
_THREADS = 4  # a name server that is slow holds up no other work
_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BYTES_ON_LOOP = 64 * 1024
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address is in the last 32 bits

MayReach = Callable[[str], bool]  # whether pictures may be fetched from an IP address


class FetchError(Exception):
    """A picture was not fetched; `outcome` is the label that it is counted by."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class _Memory:
    """The number of bytes of fetched pictures that are held."""

    def __init__(self, limit: int) -> None:
        self.held, self.limit = 0, limit


class _Lease:
    """The part of the memory that one chat's pictures have, for as long as somebody refers to it:
    `most` bytes at most."""

    def __init__(self, memory: _Memory, most: int) -> None:
        self._memory, self._most, self._taken = memory, most, 0

    def take(self, size: int) -> None:
        """Take so many bytes more; fewer than 0 are given back. Raises FetchError."""
        if self._taken + size > self._most:
            raise FetchError("too-large")
        if size > 0 and self._memory.held + size > self._memory.limit:
            raise FetchError("busy")
        self._taken += size
        self._memory.held += size

    def __del__(self) -> None:
        self._memory.held -= self._taken


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet: not private, of this machine, its link
    or its cloud, reserved or of a group."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


class MediaFetch:
    """Fetches the pictures of chats. Use it from one event loop; `close` it at the end."""

    def __init__(
        self,
        settings: MediaSettings,
        may_reach: MayReach = is_public,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._settings = settings
        self._domains = frozenset(domain.lower() for domain in settings.fetch_domains)
        self._root = None if settings.local_path is None else Path(settings.local_path).resolve()
        self._may_reach = may_reach
        self._memory = _Memory(most_bytes)
        self._outcomes: Counter[tuple[str]] = Counter()
        self._threads = ThreadPoolExecutor(_THREADS, "media")
        self._opened: aiohttp.ClientSession | None = None

    async def __call__(self, urls: Collection[str]) -> FetchedMedia:
        """Return the data URLs of those that could be fetched in the time that the settings allow
        for all of them; the others are counted by reason."""
        lease = _Lease(self._memory, self._settings.fetch_bytes)
        deadline = asyncio.get_running_loop().time() + self._settings.fetch_seconds
        wanted = list(dict.fromkeys(urls))[:MOST_PICTURES]
        found = await asyncio.gather(*[self._fetched(url, lease, deadline) for url in wanted])
        pairs = zip(wanted, found, strict=True)
        return FetchedMedia({url: data for url, data in pairs if data is not None}, lease)

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of the fetches."""
        yield counter(
            "media_fetches",
            "Pictures behind URLs that the gateway was to fetch, by outcome.",
            ["outcome"],
            self._outcomes,
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _fetched(self, url: str, lease: _Lease, deadline: float) -> str | None:
        data, outcome = None, "fetched"
        try:
            async with asyncio.timeout_at(deadline):
                data = await self._bytes(url, lease)
        except TimeoutError:
            outcome = "timeout"
        except FetchError as e:
            outcome = e.outcome
        except Exception:  # whatever a client's URL, or who answers it, makes of a library
            outcome = "failed"
        self._outcomes[(outcome,)] += 1
        if data is None or len(data) <= _BYTES_ON_LOOP:
            return None if data is None else _data_url(data)
        return await asyncio.to_thread(_data_url, data)

    async def _bytes(self, url: str, lease: _Lease) -> bytes:
        if url[:5].lower() != "file:":
            return await self._from_web(URL(url), lease)
        loop = asyncio.get_running_loop()
        most = self._settings.fetch_bytes
        data = await loop.run_in_executor(self._threads, _read_file, url, self._root, most)
        lease.take(len(data))
        return data

    async def _from_web(self, url: URL, lease: _Lease) -> bytes:
        for _ in range(_MOST_REDIRECTS + 1):
            self._check(url)
            async with self._session().get(url, allow_redirects=False) as answer:
                location = answer.headers.get("location")
                if answer.status in _REDIRECTS and location is not None:
                    url = url.join(URL(location))
                elif answer.status != 200 or "content-encoding" in answer.headers:
                    raise FetchError("bad-answer")
                else:
                    return await _read_answer(answer, lease)
        raise FetchError("redirects")

    def _check(self, url: URL) -> None:
        """Raises FetchError for a URL that is not allowed. An address in place of a name is not
        looked up, and so checked here."""
        host = url.raw_host
        if url.scheme not in ("http", "https") or host not in self._domains:
            raise FetchError("not-allowed")
        if url.raw_user is not None or url.raw_password is not None:
            raise FetchError("not-allowed")
        if _is_address(host) and not self._may_reach(host):
            raise FetchError("address")

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            resolver = _CheckedResolver(self._threads, self._may_reach)
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, resolver=resolver),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"accept-encoding": "identity", "user-agent": "inferway"},
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._opened


class _CheckedResolver(AbstractResolver):
    """Looks names up, and tells their public addresses only."""

    def __init__(self, threads: ThreadPoolExecutor, may_reach: MayReach) -> None:
        self._threads, self._may_reach = threads, may_reach

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        found: list[ResolveResult] = []
        for kind, _, proto, _, address in await loop.run_in_executor(self._threads, look_up):
            numeric = str(address[0])
            if self._may_reach(numeric):
                found.append(
                    ResolveResult(
                        hostname=host,
                        host=numeric,
                        port=port,
                        family=kind,
                        proto=proto,
                        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                    )
                )
        if not found:
            raise FetchError("address")
        return found

    async def close(self) -> None:
        """Do nothing: the threads are another's."""


async def _read_answer(answer: aiohttp.ClientResponse, lease: _Lease) -> bytes:
    """Read no more than the lease allows. Raises FetchError."""
    taken, pieces = 0, []
    try:
        size = answer.content_length or 0
        lease.take(size)  # before it is here; it may be less than that, and is no more
        taken = size
        async for piece in answer.content.iter_any():
            size -= len(piece)
            if size < 0:
                lease.take(-size)
                taken, size = taken - size, 0
            pieces.append(piece)
    except BaseException:
        lease.take(-taken)
        raise
    return b"".join(pieces)


def _read_file(url: str, root: Path | None, most: int) -> bytes:
    """Return the file below `root` that a file URL names, as vLLM reads it. Raises FetchError, and
    OSError or ValueError where there is none."""
    parts = urlsplit(url)
    path = Path(url2pathname(parts.netloc + parts.path)).resolve()
    if root is None or root not in path.parents:
        raise FetchError("not-allowed")
    # what is no file, such as a pipe, must not be waited for
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FetchError("not-allowed")
        if status.st_size > most:
            raise FetchError("too-large")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(descriptor)


def _data_url(data: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(data).decode("ascii")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
