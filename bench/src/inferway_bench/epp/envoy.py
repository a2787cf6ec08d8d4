"""One Envoy with a door for each picker: the same proxy, the same engines, the same filter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferway_bench.processes import BenchError, get

_HTTP = "type.googleapis.com/envoy.extensions"
_MANAGER = f"{_HTTP}.filters.network.http_connection_manager.v3.HttpConnectionManager"


def find_envoy() -> Path:
    """In PATH, or where scripts/install_envoy.sh unpacks it. Raises BenchError with the cure."""
    if found := shutil.which("envoy"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferway"
    unpacked = sorted(cache.glob("envoy-*/envoy"))
    if not unpacked:
        raise BenchError("envoy: not found in PATH; the cure: scripts/install_envoy.sh")
    return unpacked[-1]


def configuration(doors: Mapping[str, tuple[int, int]], admin_port: int) -> bytes:
    """`doors`: name -> (port for clients, port of its picker), all on the loopback."""
    return msgspec.json.encode(
        {
            "admin": {"address": _address(admin_port)},
            "static_resources": {
                "listeners": [_listener(name, port) for name, (port, _) in doors.items()],
                "clusters": [
                    {
                        "name": "engines",
                        "type": "ORIGINAL_DST",
                        "lb_policy": "CLUSTER_PROVIDED",
                        "original_dst_lb_config": {
                            "use_http_header": True,
                            "http_header_name": "x-gateway-destination-endpoint",
                        },
                    },
                    *(_picker(name, port) for name, (_, port) in doors.items()),
                ],
            },
        }
    )


def messages(admin_port: int, door: str) -> int:
    """That Envoy has sent to the picker of `door` so far."""
    stat = f"http.{door}.ext_proc.stream_msgs_sent"
    page = msgspec.json.decode(
        get(f"http://127.0.0.1:{admin_port}/stats?format=json&filter=^{stat}$")
    )
    return sum(found.get("value", 0) for found in page["stats"])


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _listener(name: str, port: int) -> dict[str, Any]:
    both = "FULL_DUPLEX_STREAMED"
    send = dict.fromkeys(
        ("request_header_mode", "response_header_mode", "request_trailer_mode"), "SEND"
    )
    picker = {
        "@type": f"{_HTTP}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": name}},
        "message_timeout": "1000s",
        "processing_mode": {
            **send,
            "response_trailer_mode": "SEND",
            "request_body_mode": both,
            "response_body_mode": both,
        },
    }
    manager = {
        "@type": _MANAGER,
        "stat_prefix": name,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "engines",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
                    ],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": picker},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_HTTP}.filters.http.router.v3.Router"},
            },
        ],
    }
    return {
        "name": name,
        "address": _address(port),
        "per_connection_buffer_limit_bytes": 32768,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }


def _picker(name: str, port: int) -> dict[str, Any]:
    options = f"{_HTTP}.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": name,
        "type": "STATIC",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}],
        },
    }
