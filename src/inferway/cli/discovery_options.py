"""The flags that say where engines come from, beside those that are listed: `inferway serve` and
`inferway epp` have the same."""

from __future__ import annotations

from typing import Final

from inferway.cli.key_options import key_option
from inferway.errors import ConfigError

DISCOVERY_OPTIONS: Final = (
    key_option(
        "--engines-file",
        "discovery.file",
        metavar="FILE",
        help="Engines in YAML or JSON; followed.",
    ),
    key_option(
        "--engines-dns",
        "discovery.dns",
        metavar="URL",
        multiple=True,
        help="http://NAME:PORT, every address of which is an engine; followed. May be repeated.",
    ),
    key_option(
        "--pool-name", "discovery.kubernetes.pool", help="InferencePool whose pods are the engines."
    ),
    key_option(
        "--pool-namespace",
        "discovery.kubernetes.namespace",
        help="Its namespace, or that of the selector's pods.  [default: $NAMESPACE, or the pod's]",
    ),
    key_option(
        "--pool-group",
        "discovery.kubernetes.group",
        help="The pool's API group.  [default: inference.networking.k8s.io]",
    ),
    key_option(
        "--endpoint-selector",
        "discovery.kubernetes.selector",
        metavar="SELECTOR",
        help="Pods that it selects, instead of a pool; as kubectl has it: a=b,c in (d,e),!f.",
    ),
    key_option(
        "--endpoint-target-ports",
        "discovery.kubernetes.ports",
        metavar="PORT,…",
        help="Where the selector's pods listen.",
    ),
    key_option(
        "--kube-api",
        "discovery.kubernetes.api",
        metavar="URL",
        help="The API server, outside of a pod: kubectl proxy.",
    ),
)


def ports(text: str) -> list[int]:
    """Of --endpoint-target-ports. Raises ConfigError."""
    found = [part.strip() for part in text.split(",")]
    if not all(port.isdecimal() for port in found):
        raise ConfigError(f"--endpoint-target-ports {text!r}: expected PORT,…")
    return [int(port) for port in found]
