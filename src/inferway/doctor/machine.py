"""Findings about this machine and the hub: interpreter, packages, cache directory, port."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module, metadata
from pathlib import Path

from inferway.doctor.rules import CheckResult, Level

OLDEST_PYTHON = (3, 11)
# distribution -> module, where the two differ in more than - and _
MODULES = {"pillow": "PIL", "pyzmq": "zmq", "pyyaml": "yaml"}
DEFAULT_PORT = "8080"
DEFAULT_HUB = "https://huggingface.co"
HUB_SECONDS = 3.0

# (url, headers, seconds) -> status of the answer. Raises OSError or ValueError.
GetStatus = Callable[[str, Mapping[str, str], float], int]


def cache_dir() -> Path:
    """Return the directory of downloads and prepared models: `INFERWAY_CACHE`, or
    ~/.cache/inferway."""
    configured = os.environ.get("INFERWAY_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "inferway"


def check_interpreter(version: tuple[int, int, int] = sys.version_info[:3]) -> CheckResult:
    """Check the Python interpreter that runs us."""
    said, oldest = (".".join(map(str, each)) for each in (version, OLDEST_PYTHON))
    if version[:2] >= OLDEST_PYTHON:
        return CheckResult(Level.OK, "interpreter", f"Python {said} ({sys.executable})")
    return CheckResult(
        Level.FAIL,
        "interpreter",
        f"Python {said} ({sys.executable}) is older than {oldest}",
        f"make PYTHON=/path/to/python{oldest} demo; `make detect-python` shows what there is",
    )


def core_dependencies() -> list[str]:
    """Return the distributions that pyproject.toml names, without the extras'."""
    requirements = metadata.requires("inferway") or []
    names = [re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] for line in requirements]
    return [name for name, line in zip(names, requirements, strict=True) if "extra ==" not in line]


def check_packages(distributions: Iterable[str]) -> Iterator[CheckResult]:
    """Import each: a wheel for another machine installs well and fails only then."""
    versions = []
    for name in distributions:
        try:
            import_module(MODULES.get(name, name.replace("-", "_")))
            versions.append(f"{name} {metadata.version(name)}")
        except (ImportError, OSError) as e:
            cure = f"pip install --force-reinstall {name}, or remove .venv and run make demo"
            yield CheckResult(Level.FAIL, "packages", f"{name}: {e}", cure)
    if versions:
        yield CheckResult(Level.OK, "packages", ", ".join(versions))


def check_cache(directory: Path) -> CheckResult:
    """Write and remove an empty file, in the nearest directory that exists if need be."""
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            return CheckResult(Level.OK, "cache", f"{directory} can be written")
    except OSError as e:
        evidence = f"{directory} cannot be written: {e.strerror}"
        cure = "give the directory to this user, or set INFERWAY_CACHE to another"
        return CheckResult(Level.FAIL, "cache", evidence, cure)


def check_port(environment: Mapping[str, str], host: str = "127.0.0.1") -> CheckResult:
    """Bind HTTP_PORT for a moment, to see whether it is free."""
    wanted = environment.get("HTTP_PORT") or DEFAULT_PORT
    if not (wanted.isascii() and wanted.isdigit() and int(wanted) <= 65535):
        return _bad_port(wanted, "HTTP_PORT is not a port number (0 to 65535)")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # A port that a closed server left in TIME_WAIT counts as free, as it does for ours.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, int(wanted)))
        except OSError as e:
            busy = e.errno == errno.EADDRINUSE
            why = "in use by another program" if busy else os.strerror(e.errno or 0)
            return _bad_port(wanted, why)
    return CheckResult(Level.OK, "port", f"{wanted} is free")


def _bad_port(wanted: str, why: str) -> CheckResult:
    return CheckResult(
        Level.FAIL,
        "port",
        f"{wanted}: {why}",
        f"stop what listens there (lsof -i :{wanted}), or choose another: "
        "HTTP_PORT=9080 make demo, inferway serve --port 9080",
    )


# the hub that tokenizers and templates come from


def get_status(url: str, headers: Mapping[str, str], seconds: float) -> int:
    """Go through the proxies of the environment, as the hub's own client does."""
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as e:
        e.close()
        return e.code


def check_hub(
    environment: Mapping[str, str], seconds: float = HUB_SECONDS, get: GetStatus = get_status
) -> CheckResult:
    """Send one request to the hub: who the token belongs to, if there is a token, else any page;
    the answer itself shows that the hub is there."""
    local = "give tokenizers by hand: --tokenizer MODEL=PATH"
    url = (environment.get("HF_ENDPOINT") or DEFAULT_HUB).rstrip("/")
    if environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        evidence = "HF_HUB_OFFLINE is set; only models in its cache or given by hand"
        return CheckResult(Level.WARN, "hub", evidence, f"unset HF_HUB_OFFLINE, or {local}")
    token = environment.get("HF_TOKEN")
    if token:
        answer = _asked(get, f"{url}/api/whoami-v2", {"authorization": f"Bearer {token}"}, seconds)
    else:
        answer = _asked(get, f"{url}/", {}, seconds)
    if isinstance(answer, str):
        evidence = f"{url} does not answer: {answer}"
        cure = f"set HTTPS_PROXY or HF_ENDPOINT, or {local}"
        return CheckResult(Level.WARN, "hub", evidence, cure)
    if token and answer in (401, 403):
        evidence = f"{url} refuses HF_TOKEN (status {answer})"
        cure = "make a new one, or unset it: public models"
        return CheckResult(Level.WARN, "hub", evidence, cure)
    if answer >= 500:
        return CheckResult(Level.WARN, "hub", f"{url} answered {answer}", local)
    said = "HF_TOKEN is accepted" if token else "no HF_TOKEN: public models only"
    return CheckResult(Level.OK, "hub", f"{url} answers; {said}")


def _asked(get: GetStatus, url: str, headers: Mapping[str, str], seconds: float) -> int | str:
    """Return the status of the answer, or why there is none."""
    answers: list[int | str] = []

    def ask() -> None:
        try:
            answers.append(get(url, headers, seconds))
        except urllib.error.URLError as e:
            answers.append(str(e.reason))
        except (OSError, ValueError) as e:
            answers.append(str(e))

    # In a thread that nobody waits for at the end: looking a name up may hang for half a
    # minute where a name server is silent, as on a machine that is offline.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else f"no answer in {seconds:g} s"
