"""Looks at this machine: interpreter, packages, cache directory, port."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import import_module, metadata
from pathlib import Path

from inferway.doctor.facts import Cache, Interpreter, Packages, Port

# distribution -> module, where the two differ in more than - and _
MODULES = {"pyzmq": "zmq", "pyyaml": "yaml"}

DEFAULT_PORT = "8080"


def cache_dir() -> Path:
    """Return the directory of downloads and prepared models: `INFERWAY_CACHE`, or
    ~/.cache/inferway."""
    configured = os.environ.get("INFERWAY_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "inferway"


def look_at_interpreter() -> Interpreter:
    major, minor, micro = sys.version_info[:3]
    return Interpreter((major, minor, micro), sys.executable)


def core_dependencies() -> list[str]:
    """The distributions that pyproject.toml names, without the extras'."""
    requirements = metadata.requires("inferway") or []
    names = [re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] for line in requirements]
    return [name for name, line in zip(names, requirements, strict=True) if "extra ==" not in line]


def look_at_packages(distributions: Iterable[str]) -> Packages:
    """Import each: a wheel for another machine installs well and fails only then."""
    versions: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name in distributions:
        try:
            import_module(MODULES.get(name, name.replace("-", "_")))
            versions[name] = metadata.version(name)
        except (ImportError, OSError) as e:
            errors[name] = str(e)
    return Packages(versions, errors)


def look_at_cache(directory: Path) -> Cache:
    """Write and remove an empty file, in the nearest directory that exists if need be."""
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    write_error: str | None = None
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as e:
        write_error = e.strerror
    return Cache(str(directory), write_error)


def look_at_port(environment: Mapping[str, str], host: str = "127.0.0.1") -> Port:
    """Bind HTTP_PORT for a moment, to see whether it is free."""
    wanted = environment.get("HTTP_PORT") or DEFAULT_PORT
    if not (wanted.isascii() and wanted.isdigit() and int(wanted) <= 65535):
        return Port(wanted, "HTTP_PORT is not a port number (0 to 65535)")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # A port that a closed server left in TIME_WAIT counts as free, as it does for ours.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, int(wanted)))
        except OSError as e:
            busy = e.errno == errno.EADDRINUSE
            return Port(wanted, "in use by another program" if busy else os.strerror(e.errno or 0))
    return Port(wanted, None)
