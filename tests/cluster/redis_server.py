"""A real redis-server of a test's own: on a Unix socket, without files, with TLS if asked for."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files."""

    ca: Path
    server: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """A CA of its own, and what it says of 127.0.0.1."""
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    ca.cert_pem.write_to_path(str(made.ca))
    issued.cert_chain_pems[0].write_to_path(str(made.server))
    issued.private_key_pem.write_to_path(str(made.key))
    return made


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
def running_with_tls(tls: Certificates) -> Iterator[int]:
    """A server on a TCP port that was free."""
    with ExitStack() as stack:
        yield _enter_on_a_port(stack, tls)


def _enter_on_a_port(stack: ExitStack, tls: Certificates) -> int:
    for _ in range(PORT_ATTEMPTS):
        port = free_port()
        files = ["--tls-cert-file", str(tls.server), "--tls-key-file", str(tls.key)]
        at = ["--tls-port", str(port), *files, "--tls-auth-clients", "no"]
        try:
            stack.enter_context(running_server(*at))
        except AssertionError:
            continue
        return port
    raise AssertionError(f"no redis-server could take a free port in {PORT_ATTEMPTS} attempts")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
