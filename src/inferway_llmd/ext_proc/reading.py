"""Envoy's messages as values. Header names are in lower case; repeated ones stay repeated."""

from __future__ import annotations

import re
from typing import Any

from inferway.model import Headers, RequestHead

DESTINATION = "x-gateway-destination-endpoint"
LOAD_BALANCER = "envoy.lb"  # namespace of dynamic metadata
_SUBSET_HINT = "envoy.lb.subset_hint"
_SUBSET = f"{DESTINATION}-subset"
_SERVED = f"{DESTINATION}-served"
_SOURCE = "source.address"
_ADDRESS = re.compile(r"\[([0-9A-Fa-f:.]+)\]:\d+|([0-9.]+):\d+")


def headers_of(header_map: Any) -> list[tuple[bytes, bytes]]:
    """Envoy writes `raw_value`; NGINX's shim, and tests, `value`."""
    return [
        (header.key.lower().encode("latin-1", "replace"), header.raw_value or header.value.encode())
        for header in header_map.headers
    ]


def request_head(headers: Headers) -> RequestHead:
    """NGINX's shim sends no pseudo headers: then the method is POST and the path is not known."""
    method, target, others = b"POST", b"", []
    for header in headers:
        name, value = header
        if name[:1] != b":":
            others.append(header)
        elif name == b":path":
            target = value
        elif name == b":method":
            method = value
    path, _, query = target.decode("latin-1").partition("?")
    return RequestHead(method.decode("latin-1"), path, query, others)


def client_of(message: Any) -> str:
    """Return the client's address without its port, if the proxy's `request_attributes` have
    `source.address`."""
    for entry in message.attributes:
        value = entry.value.fields.get(_SOURCE)
        found = None if value is None else _ADDRESS.fullmatch(value.string_value)
        if found is not None:
            return found[1] or found[2]
    return ""


def status_of(header_map: Any) -> int:
    """0 if there is none. llm-d's own tests say `status` for the pseudo header."""
    for header in header_map.headers:  # it stands first
        if header.key in (":status", "status"):
            value = header.raw_value or header.value.encode()
            return int(value) if value.isdigit() else 0
    return 0


def subset_of(message: Any) -> frozenset[str] | None:
    """The addresses that the proxy allows, `ip:port` or `ip` for all its ports; None if it does not
    say. What it says and cannot be read allows none: a hint that is there never fails open."""
    hint = _in_metadata(message, _SUBSET_HINT, _SUBSET)
    if hint is None:
        return None
    kind = hint.WhichOneof("kind")
    if kind == "list_value":
        listed = [value.string_value for value in hint.list_value.values]
    else:
        listed = [hint.string_value] if kind == "string_value" else []
    addresses = [address.strip() for text in listed for address in text.split(",")]
    return frozenset(filter(None, addresses))


def served_of(message: Any) -> str | None:
    """The address that the proxy says has answered."""
    served = _in_metadata(message, LOAD_BALANCER, _SERVED)
    return None if served is None else served.string_value or None


def _in_metadata(message: Any, namespace: str, key: str) -> Any:
    for entry in message.metadata_context.filter_metadata:
        if entry.key == namespace:
            return entry.value.fields.get(key)
    return None


def is_local_reply(status: int, header_map: Any) -> bool:
    """Return whether Envoy itself has answered because it reached no engine: an engine's errors
    are JSON."""
    if status not in (502, 503, 504):
        return False
    return (b"content-type", b"text/plain") in headers_of(header_map)


def served_words(message: Any, served: str | None) -> bytes:
    """Return what the conformance tests want to read of who has served a request, in the words of
    their own picker (GIE pkg/lwepp/handlers/response.go)."""
    if served is not None:
        return served.encode()
    namespaces = [entry.key for entry in message.metadata_context.filter_metadata]
    if LOAD_BALANCER not in namespaces:
        return b"fail: missing envoy lb metadata"
    return b"fail: missing destination endpoint served metadata"
