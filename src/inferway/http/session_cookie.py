"""The cookie that keeps an admin logged in to the page: a random token (page.sessions), which no
script can read and no other site's page makes a browser send."""

from __future__ import annotations

from inferway.http.message import Request

PAGE_HEADER = b"x-inferway-page"  # scripts of other origins cannot send it without a preflight
_NAME = b"inferway_session"
COOKIE = b"cookie"


def cookie(request: Request, token: str, seconds: int, *, secure: bool) -> bytes:
    """Return the value of Set-Cookie."""
    parts = b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict"
    value = parts % (_name(request), token.encode(), seconds)
    return value + b"; Secure" if secure else value


def cookie_of(request: Request) -> str | None:
    """Return the token that the request carries; None if it has none."""
    sent = request.fields.get(COOKIE)
    if sent is None:
        return None
    wanted = _name(request)
    for pair in sent.split(b";"):
        name, _, value = pair.strip().partition(b"=")
        if name == wanted:
            return value.decode("latin-1")
    return None


def forget_cookie(request: Request) -> None:
    """Take our cookies from a request that travels on: no engine gets them."""
    sent = request.fields.get(COOKIE)
    if sent is None or _NAME not in sent:
        return
    request.fields.pop(COOKIE)
    request.headers = [kept for header in request.headers if (kept := _without(header)) is not None]


def _without(header: tuple[bytes, bytes]) -> tuple[bytes, bytes] | None:
    name, value = header
    if name != COOKIE:
        return header
    pairs = [pair.strip() for pair in value.split(b";")]
    left = b"; ".join(pair for pair in pairs if not pair.startswith(_NAME))
    return (name, left) if left else None


def _name(request: Request) -> bytes:
    """Ports share cookies: two gateways on one host have two names."""
    port = request.fields.get(b"host", b"").rpartition(b":")[2]
    return b"%b_%b" % (_NAME, port) if port.isdigit() else _NAME
