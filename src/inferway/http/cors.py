"""Browsers' pages of other origins may ask (Fetch standard, section 3.3), if they are configured.

request                                             answer
OPTIONS with Origin and                             204 with what is allowed; 403 if the
Access-Control-Request-Method (a preflight)         origin is not
any other with an Origin that is allowed            + access-control-allow-origin
any other                                           as it would be

What an engine says of origins is not passed on: it does not know who may ask us.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferway.errors import ForbiddenError
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import Handler
from inferway.model import Headers

_ANY = b"*"
_MAX_AGE = b"600"  # seconds that a browser may remember a preflight: Firefox' limit is a day
_METHODS = b"GET, POST, PUT, PATCH, DELETE"  # a path answers to its own alone
# Those that scripts may read; all others are hidden from them.
_EXPOSED = b", ".join(
    [
        *[b"x-request-id", b"retry-after", b"x-inferway-engine", b"x-inferway-edited"],
        b"x-inferway-prefill-engine",
        *[b"x-inferway-attempts", b"x-inferway-matched-blocks", b"x-inferway-prompt-blocks"],
        *[b"x-inferway-expected-ttft-ms", b"x-inferway-expected-ttft-parts"],
        *[b"x-inferway-reason", b"x-inferway-unenforced", b"x-inferway-valid"],
    ]
)


class Cors:
    """A handler around another. Credentials are no cookies here but a header, which needs no
    allow-credentials."""

    __slots__ = ("_handler", "_origins")

    def __init__(self, handler: Handler, origins: Iterable[str]) -> None:
        self._handler = handler
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, request: Request, responder: Responder) -> None:
        """Raises what the handler raises, and ForbiddenError."""
        origin = request.fields.get(b"origin")
        if origin is not None:
            allowed = self._allowed(origin)
            responder.extra = allowed
            wanted = request.fields.get(b"access-control-request-method")
            if request.method == "OPTIONS" and wanted is not None:
                _preflight(request, responder, bool(allowed))
                return
        await self._handler(request, responder)

    def _allowed(self, origin: bytes) -> Headers:
        if _ANY in self._origins:
            named = _ANY
        elif origin in self._origins:
            named = origin
        else:
            return ()
        exposed = (b"access-control-expose-headers", _EXPOSED)
        told = ((b"access-control-allow-origin", named), exposed)
        return told if named == _ANY else (*told, (b"vary", b"origin"))


def _preflight(request: Request, responder: Responder, is_allowed: bool) -> None:
    if not is_allowed:
        raise ForbiddenError("origin: not among those that may ask here (cors_origins)")
    headers = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _MAX_AGE)]
    asked = request.fields.get(b"access-control-request-headers")
    if asked:
        headers.append((b"access-control-allow-headers", asked))
    responder.send(204, headers, b"")
