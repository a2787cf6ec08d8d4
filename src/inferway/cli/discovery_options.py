"""The flags that say where engines come from, beside those that are listed: `inferway serve` and
`inferway epp` have the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from inferway.errors import ConfigError

DISCOVERY_OPTIONS: Final = (
    click.option("--engines-file", metavar="FILE", help="Engines in YAML or JSON; followed."),
    click.option(
        "--engines-dns",
        metavar="URL",
        multiple=True,
        help="http://NAME:PORT, every address of which is an engine; followed. May be repeated.",
    ),
    click.option("--pool-name", help="InferencePool whose pods are the engines."),
    click.option(
        "--pool-namespace",
        help="Its namespace, or that of the selector's pods.  [default: $NAMESPACE, or the pod's]",
    ),
    click.option(
        "--pool-group", help="The pool's API group.  [default: inference.networking.k8s.io]"
    ),
    click.option(
        "--endpoint-selector",
        metavar="SELECTOR",
        help="Pods that it selects, instead of a pool; as kubectl has it: a=b,c in (d,e),!f.",
    ),
    click.option(
        "--endpoint-target-ports", metavar="PORT,…", help="Where the selector's pods listen."
    ),
    click.option(
        "--kube-api", metavar="URL", help="The API server, outside of a pod: kubectl proxy."
    ),
)

# Flags -> keys of `discovery.kubernetes`.
_KUBERNETES = {
    "pool_name": "pool",
    "pool_group": "group",
    "pool_namespace": "namespace",
    "kube_api": "api",
}
DISCOVERY: Final = frozenset(
    {
        *_KUBERNETES,
        *("engines_file", "engines_dns", "endpoint_selector", "endpoint_target_ports"),
    }
)


def discovery(flags: Mapping[str, Any]) -> dict[str, object]:
    """Only what was said, as the key `discovery` has it. Raises ConfigError."""
    said = {name: value for name in DISCOVERY if (value := flags.get(name))}
    found: dict[str, object] = {}
    if "engines_file" in said:
        found["file"] = said["engines_file"]
    if "engines_dns" in said:
        found["dns"] = list(said["engines_dns"])
    kubernetes = {_KUBERNETES[name]: said[name] for name in _KUBERNETES if name in said}
    if "endpoint_selector" in said:
        kubernetes["selector"] = said["endpoint_selector"]
    if "endpoint_target_ports" in said:
        kubernetes["ports"] = _ports(said["endpoint_target_ports"])
    if kubernetes:
        found["kubernetes"] = kubernetes
    return found


def _ports(text: str) -> list[int]:
    ports = [part.strip() for part in text.split(",")]
    if not all(port.isdecimal() for port in ports):
        raise ConfigError(f"--endpoint-target-ports {text!r}: expected PORT,…")
    return [int(port) for port in ports]
