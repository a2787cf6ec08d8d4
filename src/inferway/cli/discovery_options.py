"""The flags that say where engines come from, beside those that are listed: `inferway serve` and
`inferway epp` have the same."""

from __future__ import annotations

from typing import Final

import click

from inferway.cli.command import section
from inferway.cli.key_options import key_option
from inferway.errors import ConfigError

DISCOVERY: Final = section(
    "Discovery of engines that come and go",
    key_option(
        "--engines-file",
        "discovery.file",
        type=click.Path(),
        metavar="FILE",
        help="Read engines from this YAML or JSON file, and again whenever it changes.",
    ),
    key_option(
        "--engines-dns",
        "discovery.dns",
        metavar="URL",
        multiple=True,
        help="Use every address of the host in http://NAME:PORT as an engine, and follow changes "
        "in DNS. Repeat the flag for more names.",
    ),
    key_option(
        "--engines-ray",
        "discovery.ray",
        metavar="APP/DEPLOYMENT",
        multiple=True,
        help="Use the engines of this Ray Serve deployment's replicas, in the cluster of "
        "$RAY_ADDRESS, else of the one on this machine; needs inferway[ray]. Repeat the flag for "
        "more.",
    ),
    key_option(
        "--pool-name",
        "discovery.kubernetes.pool",
        metavar="NAME",
        help="Use the ready pods of this Kubernetes InferencePool as engines.",
    ),
    key_option(
        "--pool-namespace",
        "discovery.kubernetes.namespace",
        metavar="NAMESPACE",
        help="Look for the pool, or for the selector's pods, in this namespace.  [default: "
        "$NAMESPACE, or the own pod's]",
    ),
    key_option(
        "--pool-group",
        "discovery.kubernetes.group",
        metavar="GROUP",
        help="Look for the pool in this API group.  [default: inference.networking.k8s.io]",
    ),
    key_option(
        "--endpoint-selector",
        "discovery.kubernetes.selector",
        metavar="SELECTOR",
        help="Use the pods that this label selector selects, instead of a pool. It is written as "
        "for kubectl: a=b,c in (d,e),!f.",
    ),
    key_option(
        "--endpoint-target-ports",
        "discovery.kubernetes.ports",
        metavar="PORT,…",
        help="Connect to the selector's pods at these ports; each port is an engine.",
    ),
    key_option(
        "--kube-api",
        "discovery.kubernetes.api",
        metavar="URL",
        help="Ask the Kubernetes API server at this URL. Outside of a pod it is that of `kubectl "
        "proxy`.  [default: as each pod is told]",
    ),
    example="inferway serve --engines-dns http://vllm.default.svc:8000",
)


def ports(text: str) -> list[int]:
    """Return the ports of --endpoint-target-ports. Raises ConfigError."""
    found = [part.strip() for part in text.split(",")]
    if not all(port.isdecimal() for port in found):
        raise ConfigError(
            f"--endpoint-target-ports {text!r}: expected whole numbers with commas between them,"
            " as in 8000,8001"
        )
    return [int(port) for port in found]
