"""One Envoy with a listener for each picker: the same proxy, the same engines, the same filter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from inferway_bench.processes import BenchError, get
from inferway_bench.templates import JsonTemplates


def find_envoy() -> Path:
    """Return Envoy's path, in PATH or where scripts/install_envoy.sh unpacks it. Raises BenchError
    with the cure."""
    if found := shutil.which("envoy"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferway"
    unpacked = sorted(cache.glob("envoy-*/envoy"))
    if not unpacked:
        raise BenchError("envoy: not found in PATH; the cure: scripts/install_envoy.sh")
    return unpacked[-1]


def version(binary: Path) -> str:
    """Return what Envoy says of its version."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"/(\d+\.\d+\.\d+)/", said)
    return f"Envoy {found[1]}" if found else said.strip()


def configuration(pickers: Mapping[str, tuple[int, int]], admin_port: int) -> bytes:
    """Return Envoy's configuration. `pickers`: name -> (port for clients, port of the picker), all
    on the loopback."""
    envoy = JsonTemplates("envoy.json")
    ports = pickers.items()
    listeners = [envoy.fill("listener", name=name, port=port) for name, (port, _) in ports]
    clusters = [envoy.fill("picker", name=name, port=port) for name, (_, port) in ports]
    clusters.insert(0, envoy.fill("engines"))
    whole = envoy.fill("bootstrap", admin_port=admin_port, listeners=listeners, clusters=clusters)
    return msgspec.json.encode(whole)


def messages_sent(admin_port: int, picker: str) -> int:
    """Return how many messages Envoy has sent to a picker so far."""
    stat = f"http.{picker}.ext_proc.stream_msgs_sent"
    url = f"http://127.0.0.1:{admin_port}/stats?format=json&filter=^{stat}$"
    return sum(found.get("value", 0) for found in msgspec.json.decode(get(url))["stats"])
