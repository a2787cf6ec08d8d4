"""Requests that a worker passes on to the hub, over a Unix socket.

The hub has one of everything that an operator looks at: metrics, admin paths, the page. A client
reaches whatever worker the kernel gives it to, and finds all of them there. Who the client is, the
worker says in two headers, which the hub believes: nobody else reaches its socket.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from inferway.errors import HubAwayError, InferwayError
from inferway.http.lora import PATHS as LORA
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import Handler
from inferway.model import Headers
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.headers import HOP_BY_HOP, REWRITTEN, header_block
from inferway.upstream.pool import Pool

_CLIENT, _HOST = b"x-inferway-client", b"x-inferway-host"
_DROPPED = HOP_BY_HOP | REWRITTEN | {_CLIENT, _HOST}
_PATHS = frozenset(
    {"/", "/metrics", "/ready", "/query", "/score_completions", "/score_chat_completions", *LORA}
)
_PREFIXES = ("/admin/", "/page/")
_AWAY = "this path is answered by the gateway's hub, which is away; the gateway's log says why"


def is_for_hub(path: str) -> bool:
    """Return whether the hub answers the path."""
    return path in _PATHS or path.startswith(_PREFIXES)


def asking_hub(handler: Handler, pool: Pool, path: str) -> Handler:
    """Return the handler of a worker: what is for the hub goes to its Unix socket at `path`, the
    rest is answered by `handler`."""
    url = f"http://{quote(path, safe='')}"

    async def answer(request: Request, responder: Responder) -> None:
        if not is_for_hub(request.path):
            await handler(request, responder)
            return
        lines = header_block(request.headers, _DROPPED)
        lines += header_block(
            (
                (b"x-request-id", request.id),
                (_CLIENT, responder.client.encode()),
                (_HOST, request.fields.get(b"host", b"")),
            )
        )
        answering = _HubAnswer(responder)
        responder.attach(answering)
        answering.exchange = pool.send(
            *(url, request.method, request.target, lines, request.body, answering)
        )

    return answer


def awaiting_hub(awaits_body: Callable[[Request], bool]) -> Callable[[Request], bool]:
    """Return whether a worker receives a request's body: the hub says itself whom it refuses."""
    return lambda request: is_for_hub(request.path) or awaits_body(request)


def from_workers(handler: Handler) -> Handler:
    """Return the handler of the hub's Unix socket: requests are as the workers got them."""

    async def answer(request: Request, responder: Responder) -> None:
        fields = dict(request.fields)
        responder.peer = fields.pop(_CLIENT, b"").decode()
        fields[b"host"] = fields.pop(_HOST, b"")
        request.fields = fields
        request.headers = [each for each in request.headers if each[0] not in _DROPPED]
        await handler(request, responder)

    return answer


class _HubAnswer:
    """Sink of the hub's answer, source of the client's."""

    def __init__(self, responder: Responder) -> None:
        self.exchange: UpstreamRequest | None = None
        self._responder = responder

    # upstream.exchange.Sink

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        kept = [each for each in headers if each[0] != b"x-request-id"]  # the responder adds it
        self._responder.start(status, kept, length)
        self._responder.flush()

    def on_chunk(self, chunk: bytes) -> None:
        self._responder.write(chunk)

    def on_end(self, chunk: bytes) -> None:
        self._responder.end(chunk)

    def on_error(self, error: InferwayError) -> None:
        del error  # it takes the hub for an engine, and names a file of ours to any client
        if self._responder.started:
            self._responder.abort()
        else:
            self._responder.send_error(HubAwayError(_AWAY))

    # http.ends.BodySource

    def pause(self) -> None:
        self._tell(UpstreamRequest.pause)

    def resume(self) -> None:
        self._tell(UpstreamRequest.resume)

    def client_gone(self) -> None:
        self._tell(UpstreamRequest.abort)

    def _tell(self, call: Callable[[UpstreamRequest], None]) -> None:
        if self.exchange is not None:
            call(self.exchange)
