"""Hosts of their own for engines: network namespaces, which are cut off as a host is that has no
power, or behind a network that drops what it gets. Nothing is refused and nothing reset: who is at
the other end hears nothing any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from inferway_bench.processes import BenchError

# For measurements between networks (RFC 2544), so nobody's.
_NETWORK = "198.18"
_SECONDS = 10.0  # that `ip` may take

Cut = Literal["without power", "answers dropped"]


def check_hosts(cure: str) -> None:
    """Raises BenchError if no host can be made here; `cure` says what can be done without."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise BenchError(
            "to cut an engine's host off takes root and the program `ip` (on Debian: apt-get"
            f" install iproute2); the cure: {cure}"
        )


class OwnHost:
    """One address that only this machine reaches. `make` it, and `remove` it."""

    def __init__(self, number: int = 0) -> None:
        """No two of a process have the same number, 0 to 9."""
        self.name = f"inferway-{os.getpid()}-{number}"
        beginning = f"{_NETWORK}.{os.getpid() % 256}"
        self.address = f"{beginning}.{4 * number + 2}"
        self._ours = f"{beginning}.{4 * number + 1}"  # of the machine, for its guest
        self._link = f"iw{os.getpid() % 10**9}-{number}"  # 15 characters at most

    def make(self) -> None:
        """Raises BenchError if the kernel does not do so."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("addr", "add", f"{self._ours}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        self._inside("addr", "add", f"{self.address}/30", "dev", "eth0")
        self._inside("link", "set", "eth0", "up")
        self._inside("link", "set", "lo", "up")

    def remove(self) -> None:
        """With its link. It may not be there."""
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs another one there, as the same process."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut_off(self, how: Cut) -> None:
        if how == "without power":
            self._inside("link", "set", "eth0", "down")
        else:  # what comes is heard, and nothing goes out
            self._inside("route", "replace", "blackhole", f"{self._ours}/32")

    def mend(self, how: Cut) -> None:
        if how == "without power":
            self._inside("link", "set", "eth0", "up")
        else:
            self._inside("route", "del", "blackhole", f"{self._ours}/32")

    def _inside(self, *words: str) -> None:
        _ip("-n", self.name, *words)


@contextmanager
def own_host(number: int = 0) -> Iterator[OwnHost]:
    """Make a host for the time of the block. Raises BenchError as `make` does."""
    host = OwnHost(number)
    try:
        host.make()
        yield host
    finally:
        host.remove()


def _ip(*words: str) -> None:
    command = ["ip", *words]
    done = subprocess.run(command, check=False, timeout=_SECONDS, capture_output=True)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr.decode().strip()}")
