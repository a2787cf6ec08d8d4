"""The page for operators: GET / for browsers, its files, who logs in to it, and what it shows.

GET  /page/...          its files; there is no secret in them
GET  /page/session      whether who asks is let in, and if not, what is wanted
POST /page/login        the key once, as {"key": ...}; a cookie with a random token comes back
POST /page/logout
GET  /admin/live        what the page shows, as server-sent events

Where a key is configured, the page is for who shows one of an admin. Without any, it is for
browsers on this machine alone: not for a proxy's clients, who come from it, too. The cookie counts
on paths for admins only (`auth`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from inferway.errors import (
    ForbiddenError,
    InvalidRequestError,
    UnauthorizedError,
    UnknownPathError,
)
from inferway.http.auth import Auth, check_no_web_page
from inferway.http.extension_parts import Audience, Route
from inferway.http.message import UNIX_CLIENT, Request
from inferway.http.responder import JSON, Responder
from inferway.http.server import Handler
from inferway.http.session_cookie import PAGE_HEADER, cookie, cookie_of
from inferway.http.sessions import SECONDS
from inferway.model import Headers
from inferway_console.page.live import LiveHub

LIVE = "/admin/live"
PREFIX = "/page/"
INDEX = "index.html"
_TYPES = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}
_MAX_LOGIN_BYTES = 8 * 1024
_FORWARDED = (b"x-forwarded-for", b"forwarded", b"x-real-ip")

# Scripts and styles from here alone, and none within the page.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    b" img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY: Headers = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_STREAM: Headers = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
)


class StaticFile(msgspec.Struct, frozen=True):
    """A file that a browser may load."""

    content_type: bytes
    body: bytes
    etag: bytes


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the page's files by their path below `static`, read once: the package brings them, and
    static/vendor/README.md says which of them others have written."""
    return dict(_below(files("inferway_console.page") / "static", ""))


def _below(folder: Traversable, prefix: str) -> list[tuple[str, StaticFile]]:
    found = []
    for each in folder.iterdir():
        content_type = _TYPES.get(each.name.rpartition(".")[2])
        if each.is_dir():
            found += _below(each, f"{prefix}{each.name}/")
        elif content_type is not None:
            body = each.read_bytes()
            etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:16].encode()
            found.append((prefix + each.name, StaticFile(content_type, body, etag)))
    return found


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of the page's login form."""

    key: str


class PageRoutes:
    """The paths of the page. `secure`: the gateway speaks TLS, and so will the cookie."""

    def __init__(self, auth: Auth, hub: LiveHub, *, secure: bool) -> None:
        self._auth = auth
        self._hub = hub
        self._secure = secure
        self._methods: Mapping[str, Mapping[str, Handler]] = {
            "session": {"GET": self._session},
            "login": {"POST": self._login},
            "logout": {"POST": self._logout},
        }

    def routes(self) -> Mapping[str, Route]:
        """Return its paths."""
        return {
            "/": Route({"GET": self._front}, Audience.BROWSERS),
            PREFIX: Route(self.methods, Audience.BROWSERS),
            LIVE: Route({"GET": self.live}, Audience.ADMINS),
        }

    async def _front(self, request: Request, responder: Responder) -> None:
        self._check_peer(request, responder)
        _send_file(request, responder, static_files()[INDEX])

    def methods(self, path: str) -> Mapping[str, Handler]:
        """Return the handlers of a path below PREFIX. Raises UnknownPathError."""
        name = path.removeprefix(PREFIX)
        found = self._methods.get(name)
        if found is None:
            if name not in static_files():
                raise UnknownPathError(f"no file {name[:200]!r} of the page")
            found = {"GET": self._file}
        return found

    async def live(self, request: Request, responder: Responder) -> None:
        """Send what the page shows, until the client goes. Who asks is an admin."""
        self._check_peer(request, responder)
        if request.method == "HEAD":
            responder.send(200, _STREAM, b"")
            return
        self._hub.check_room(responder.client)
        responder.start(200, _STREAM)
        responder.flush()
        responder.attach(self._hub.join(responder))

    async def _file(self, request: Request, responder: Responder) -> None:
        self._check_peer(request, responder)
        _send_file(request, responder, static_files()[request.path.removeprefix(PREFIX)])

    async def _session(self, request: Request, responder: Responder) -> None:
        self._check_peer(request, responder)
        is_in = self._auth.is_admin(request)
        told = {"in": is_in, "wants_key": self._auth.knows_admins}
        responder.send(200, (*JSON, (b"cache-control", b"no-store")), msgspec.json.encode(told))

    async def _login(self, request: Request, responder: Responder) -> None:
        check_page(request)
        auth = self._auth
        if not auth.knows_admins:
            raise ForbiddenError("no key is configured (admin_key_env), so nobody can log in")
        if len(request.body) > _MAX_LOGIN_BYTES:
            raise InvalidRequestError("key: longer than any key is", param="key")
        try:
            key = msgspec.json.decode(request.body, type=Login).key
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise InvalidRequestError('body: expected {"key": "..."}', param="key") from e
        is_right = auth.is_admins_key(key.strip())
        auth.guesses.hear(request.client, is_right=is_right)
        if not is_right:
            raise UnauthorizedError("this is no key of an admin of this gateway")
        token = auth.sessions.open(auth.keys)
        self._send_cookie(request, responder, token, SECONDS)

    async def _logout(self, request: Request, responder: Responder) -> None:
        check_page(request)
        token = cookie_of(request)
        if token is not None:
            self._auth.sessions.close(token)
        self._send_cookie(request, responder, "", 0)

    def _send_cookie(
        self, request: Request, responder: Responder, token: str, seconds: int
    ) -> None:
        value = cookie(request, token, seconds, secure=self._secure)
        headers = (*JSON, (b"set-cookie", value), (b"cache-control", b"no-store"))
        responder.send(200, headers, b"{}")

    def _check_peer(self, request: Request, responder: Responder) -> None:
        """Raises ForbiddenError for who is elsewhere, if there is no key to show."""
        auth = self._auth
        if auth.knows_admins:
            return
        check_no_web_page(request, is_local=auth.is_local)
        proxied = any(name in request.fields for name in _FORWARDED)
        if proxied or not _is_loopback(responder.client):
            raise ForbiddenError(
                "without an admin key the page is shown on the gateway's own machine alone; set"
                " admin_key_env (--admin-key-env), or open it there or through"
                " `ssh -L 8080:localhost:8080`"
            )


def check_page(request: Request) -> None:
    """Raises ForbiddenError unless the page itself asks: no other site's page can send its header,
    and a browser says whose page it is."""
    if PAGE_HEADER not in request.fields:
        raise ForbiddenError(f"this path is the page's: it sends {PAGE_HEADER.decode()}: 1")
    check_no_web_page(request, is_local=False)


def _send_file(request: Request, responder: Responder, file: StaticFile) -> None:
    headers = (
        *((b"content-type", file.content_type), (b"etag", file.etag)),
        *((b"cache-control", b"no-cache"), *_SECURITY),
    )
    if request.fields.get(b"if-none-match") == file.etag:
        responder.send(304, headers, b"")
    else:
        responder.send(200, headers, file.body)


def _is_loopback(client: str) -> bool:
    address = client.removeprefix("::ffff:")
    return address.startswith("127.") or address in ("::1", UNIX_CLIENT)
