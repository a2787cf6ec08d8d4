"""The variables `INFERWAY_…`: every flag of every command but `inferway bench` has one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "INFERWAY_"

# Variables that no flag reads: the program, the engine's plugin, and the scripts of a checkout do.
OTHERS: Final = frozenset(
    PREFIX + name
    for name in (
        *("CACHE", "STRUCTURED", "REPORT_VALIDITY", "COMPLETE"),
        *("VLLM_VENV", "VLLM_PYTHON", "FLEET_FULL", "ENVOY_VERSION"),
    )
)

# What Kubernetes tells every pod of a Service named inferway, or inferway-…
_SERVICE_LINK = re.compile(
    r"(?P<service>\w+?)_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)
_LINKED_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://\S+:\d+")


def variable_of(flag: str) -> str:
    """Return the environment variable of a flag: INFERWAY_TLS_CERT for `--tls-cert`."""
    return PREFIX + flag.lstrip("-").replace("-", "_").upper()


def is_service_link(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set this variable because a Service has our name; such a
    variable is not meant for us. INFERWAY_PORT=tcp://10.0.0.1:8080 would otherwise end the start of
    every pod beside a Service named inferway."""
    found = _SERVICE_LINK.fullmatch(name)
    if found is None or f"{found['service']}_SERVICE_HOST" not in environ:
        return False
    plain = name == f"{found['service']}_PORT"
    return not plain or _LINKED_ADDRESS.fullmatch(environ[name]) is not None


def unknown_variables(
    environ: Mapping[str, str], known: Collection[str], mentioned: Iterable[str]
) -> Iterator[str]:
    """Yield one sentence for each variable with our prefix that nothing reads. A variable whose
    name stands in a `mentioned` text (a flag's value, a file of settings) is no such variable: it
    holds a secret that the text refers to."""
    texts = "\n".join(mentioned)
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in known or name in OTHERS or name in texts:
            continue
        if is_service_link(name, environ):
            continue
        endings = [each.removeprefix(PREFIX) for each in known]
        close = get_close_matches(name.removeprefix(PREFIX), endings, n=1)
        meant = (
            f"; did you mean {PREFIX}{close[0]}?" if close else "; unset it, or correct its name"
        )
        yield f"the environment variable {name} is not known and has no effect{meant}"
