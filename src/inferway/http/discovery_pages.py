"""Pages for people and tools who look around: GET /, GET /version, and the answer for a path that
does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache

import msgspec

from inferway import __version__
from inferway.errors import UnknownPathError
from inferway.fleet.fleet import Fleet
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder

_MAX_SHOWN = 200  # characters of a path that does not exist
_MAX_COMPARED = 80  # comparing takes time, and what is longer than any path of ours is like none
_BASE = "/v1"


class PathsPage:
    """The page at GET /. `methods`: path -> its methods, of all that are answered."""

    def __init__(self, methods: Mapping[str, Iterable[str]]) -> None:
        self._methods = methods

    async def __call__(self, _: Request, responder: Responder) -> None:
        paths = {path: sorted(methods) for path, methods in sorted(self._methods.items())}
        body = {"server": "inferway", "version": __version__, "paths": paths}
        responder.send(200, JSON, msgspec.json.encode(body))


class VersionPage:
    """GET /version, as vLLM answers it: `version` is vLLM's, of the live engine with the oldest
    one; null if none has told it. Tools decide by it what they may ask."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def __call__(self, _: Request, responder: Responder) -> None:
        told = [e.facts.version for e in self._fleet.engines if e.healthy and e.facts]
        oldest = min(filter(None, told), key=_numbers, default=None)
        body = {"version": oldest, "inferway": __version__}
        responder.send(200, JSON, msgspec.json.encode(body))


def unknown_path(path: str, known: Iterable[str]) -> UnknownPathError:
    """Names the path that was meant, if there is one like it."""
    meant = _meant(path[:_MAX_COMPARED], (*known,))
    hint = f"did you mean {meant!r}? " if meant else ""
    return UnknownPathError(f"no path {path[:_MAX_SHOWN]!r} here; {hint}GET / lists all paths")


@lru_cache(maxsize=128)
def _meant(path: str, known: tuple[str, ...]) -> str | None:
    """A base URL with one /v1 too many or too few is the most frequent mistake."""
    bare = path.rstrip("/")
    for guess in (bare, _BASE + bare, bare.removeprefix(_BASE)):
        if guess in known and guess != "/":
            return guess
    return next(iter(get_close_matches(bare, near(bare, known), n=1, cutoff=0.8)), None)


def near(path: str, known: Iterable[str]) -> list[str]:
    """Return the known paths that share a half with `path`: a path that is mistyped in one place
    has its other half right. Comparing a path with all of them would take as long as answering the
    request."""
    return [
        each
        for each in known
        if path.startswith(each[: -(-len(each) // 2)]) or path.endswith(each[len(each) // 2 :])
    ]


def _numbers(version: str) -> list[int]:
    """0.32.0+cpu -> [0, 32, 0]."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
