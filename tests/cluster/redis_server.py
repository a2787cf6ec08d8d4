"""A real redis-server of a test's own: on a Unix socket, without files, with TLS if asked for."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import redis
import trustme

ROOT = Path(__file__).parents[2]
START_SECONDS = 10.0
PORT_ATTEMPTS = 10  # somebody else may take a free port before the server does


@cache
def binary() -> str:
    """Where redis-server is; Debian's packages are unpacked if there is none."""
    script = ROOT / "scripts" / "redis_server.sh"
    done = subprocess.run([str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class RedisServer:
    """`start`, `kill`, `start` again: the same address, nothing remembered."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "s"
        self._options = options
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        at = ["--port", "0", "--unixsocket", str(self.socket)]
        in_memory = ["--save", "", "--appendonly", "no", "--dir", str(self.socket.parent)]
        self._process = subprocess.Popen(
            [binary(), *at, *in_memory, "--logfile", str(self._log), *self._options]
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.005)

    def kill(self) -> None:
        """As by kill -9. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with redis.Redis(unix_socket_path=str(self.socket)) as client:
                return bool(client.ping())
        except (redis.ConnectionError, FileNotFoundError):
            return False


@contextmanager
def running_server(*options: str) -> Iterator[RedisServer]:
    """Its folder has a short name: a Unix socket's path has 107 characters at most."""
    folder = Path(tempfile.mkdtemp(prefix="redis-"))
    server = RedisServer(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


@contextmanager
def running_with_tls(folder: Path) -> Iterator[str]:
    """The URL of a server with TLS on a port that was free. `folder`: for its certificates."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    files = ["--tls-cert-file", str(folder / "server.pem"), "--tls-key-file"]
    with ExitStack() as stack:
        for _ in range(PORT_ATTEMPTS):
            port = free_port()
            at = ["--tls-port", str(port), *files, str(folder / "server.pem")]
            with suppress(AssertionError):
                stack.enter_context(running_server(*at, "--tls-auth-clients", "no"))
                break
        else:
            raise AssertionError(f"no redis-server took a free port in {PORT_ATTEMPTS} attempts")
        yield f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={folder / 'ca.pem'}"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def until(condition: Callable[[], bool], again: Callable[[], object] = lambda: None) -> None:
    """Return when the condition holds; `again` is done before each look."""
    async with asyncio.timeout(20):
        while not condition():
            again()
            await asyncio.sleep(0.01)
