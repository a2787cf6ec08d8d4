"""A hub on loopback that has one model, `org/model`, for callers with a token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What it has, and every path that was asked for."""

    def __init__(self, files: Mapping[str, bytes], token: str | None) -> None:
        self.files = files
        self.token = token
        self.paths: list[str] = []
        self.url = ""


@contextmanager
def serve_hub(files: Mapping[str, bytes], *, token: str | None = None) -> Iterator[Hub]:
    hub = Hub(files, token)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.paths.append(self.path)
            status, headers, body = answer(hub, self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """A test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(hub: Hub, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
    if path == "/":
        return 200, {}, b""
    if hub.token is not None and authorization != f"Bearer {hub.token}":
        return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
    path = path.partition("?")[0]
    if path.startswith("/api/models/org/model"):
        return 200, {"Content-Type": "application/json"}, listing(hub, path)
    name = path.removeprefix(f"/org/model/resolve/{COMMIT}/").removeprefix(
        "/org/model/resolve/main/"
    )
    if name not in hub.files:
        return 404, {"X-Error-Code": "EntryNotFound"}, b""
    return 200, {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}, hub.files[name]


def listing(hub: Hub, path: str) -> bytes:
    if "/tree/" in path:
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": name}
            for name, data in hub.files.items()
        ]
        return json.dumps(entries).encode()
    siblings = [{"rfilename": name} for name in hub.files]
    return json.dumps({"id": "org/model", "sha": COMMIT, "siblings": siblings}).encode()
