"""The files of the page, as the package brings them; nothing is built, and nothing comes from
elsewhere (static/vendor/README.md has what others have written)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

INDEX = "index.html"
_TYPES = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}


class StaticFile(msgspec.Struct, frozen=True):
    """A file that a browser may load."""

    content_type: bytes
    body: bytes
    etag: bytes


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the files by their path below `static`, read once."""
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
