"""Requests that a web page makes a browser send. Without keys, whoever reaches the gateway is an
admin; the page of a stranger, open in a browser on the same machine, is not meant by that.

A page of another site        the browser says so: `Origin`, which is not our host, or
                              `Sec-Fetch-Site` (Fetch Metadata)
A page whose host's name      `Host` has that name. A gateway that listens on loopback alone is
was made ours afterwards      asked for as an address or as localhost
(DNS rebinding)
"""

from __future__ import annotations

import re

from inferway.errors import ForbiddenError
from inferway.frontends.http.message import Request

_FOREIGN = (b"cross-site", b"same-site")
_LOCAL_HOST = re.compile(rb"(?:[\w-]+\.)*localhost|[0-9.]+|\[[0-9a-fA-F:.]+\]", re.IGNORECASE)
_PORT = re.compile(rb":[0-9]*$")
_CURE = "web pages may not ask this path without the admin key; set admin_key_env"


def check_no_web_page(request: Request, *, is_local: bool) -> None:
    """Raises ForbiddenError. `is_local`: the gateway listens on loopback alone."""
    fields = request.fields
    host, origin = fields.get(b"host", b""), fields.get(b"origin")
    if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
        raise ForbiddenError(f"origin {_text(origin)}: not this gateway's own; {_CURE}")
    if fields.get(b"sec-fetch-site") in _FOREIGN:
        raise ForbiddenError(f"sec-fetch-site: a page of another site; {_CURE}")
    if is_local and host and not _LOCAL_HOST.fullmatch(_PORT.sub(b"", host)):
        raise ForbiddenError(
            f"host {_text(host)}: expected localhost or an address, as the gateway listens on"
            f" loopback; {_CURE}"
        )


def _text(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
