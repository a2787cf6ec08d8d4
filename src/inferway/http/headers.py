"""Header lines that travel on from a client to an engine, and ours that go back."""

from __future__ import annotations

import re

from inferway.http.message import Request
from inferway.model import Headers, Reason
from inferway.upstream.headers import (
    HOP_BY_HOP,
    PLAIN_CONNECTION,
    REWRITTEN,
    header_block,
    named_by_connection,
)
from inferway_structured.report import UNENFORCED_HEADER

# What a client says here would steer the fleet (field notes 3.5), or an engine's queue (vLLM 0.32,
# entrypoints/generate/base/serving.py); ours to say, or nobody's.
ROUTING_HEADERS = frozenset(
    {
        b"x-data-parallel-host-port",
        b"x-data-parallel-rank",
        b"x-encoder-hosts-ports",
        b"x-forwarded-path",
        b"x-kv-cache-source-host-port",
        b"x-original-path",
        b"x-prefiller-host-port",
        b"x-session-id",
        b"x-session-token",
        b"x-slo-tpot-ms",
        b"x-slo-ttft-ms",
        b"x-vllm-priority",
        b"x-went-into-resp-headers",
    }
)
ROUTING_PREFIXES = (b"x-inferway-", b"x-gateway-", b"x-llm-d-")
_ROUTING_HINT = re.compile(rb"x-(?:inferway|gateway|llm-d)-")  # maybe in a value
_EDITED = b"x-inferway-edited"
_REASON = b"x-inferway-reason"
_OF_REQUEST = frozenset(reason.encode() for reason in Reason if reason.is_of_request)
# Whether a report is asked for tells of the cache, what an engine gets and tells as ids of the
# engine, and whose blocks it gets of the fleet.
_DECIDED_EDITS = frozenset({b"vllm_xargs", b"tokens", b"return_token_ids", b"kv_transfer_params"})

# The gateway says which pages may ask (cors): an engine that sees no Origin says nothing.
# An answer is read as it passes, which no compressed one can be: identity alone is asked for.
_DROPPED = HOP_BY_HOP | REWRITTEN | ROUTING_HEADERS | {
    b"accept-encoding", b"origin", b"x-request-id"
}  # fmt: skip


def request_lines(request: Request, replaced: set[bytes] | frozenset[bytes] = frozenset()) -> bytes:
    """Return the header lines that travel on to the engine."""
    known, headers = request.known, request.headers
    if known is None or replaced or known.headers is not headers:
        lines = _lines(request, replaced)
    else:
        if known.lines is None:
            known.lines = _lines(request, replaced)
        lines = known.lines
    return b"%baccept-encoding: identity\r\nx-request-id: %b\r\n" % (lines, request.id)


def _lines(request: Request, replaced: set[bytes] | frozenset[bytes]) -> bytes:
    dropped = _DROPPED | replaced if replaced else _DROPPED
    headers = request.headers
    if request.fields.get(b"connection", b"close") not in PLAIN_CONNECTION:
        dropped = dropped | named_by_connection(headers)
    lines = header_block(headers, dropped)
    if _ROUTING_HINT.search(lines):
        headers = [h for h in headers if not h[0].startswith(ROUTING_PREFIXES)]
        lines = header_block(headers, dropped)
    return lines


def not_ours_alone(told: Headers) -> Headers:
    """Return the headers that every client may see: the session's token, the parts of a shape that
    its answer does not keep, what of its request was changed, and what in it left nothing to match.
    How the request was decided is left out."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in told:
        if name == _EDITED:
            value = b", ".join([edit for edit in value.split(b", ") if edit not in _DECIDED_EDITS])
        elif name == _REASON:
            value = value if value in _OF_REQUEST else b""
        elif name != UNENFORCED_HEADER and name.startswith(b"x-inferway-"):
            continue
        if value:
            kept.append((name, value))
    return tuple(kept)
