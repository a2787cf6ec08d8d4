"""GET /admin/requests: the records of the last requests. GET /admin/requests/ID: one of them, with
`?text` the text around the first block that was not reused. GET /admin/cache-breakers: what keeps
prompts that are nearly the same from being reused.

For admins (`routes`). Answers are put together in pieces, one at a time, so that whoever asks often
or reads slowly costs requests nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from inferway.errors import InvalidRequestError, UnknownPathError
from inferway.http.auth import Auth
from inferway.http.extension_parts import Route
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway_console.records.record import RequestRecord
from inferway_console.records.ring import RecordRing
from inferway_console.records.watch import PromptWatch

REQUESTS = "/admin/requests"
ONE_REQUEST = f"{REQUESTS}/"
BREAKERS = "/admin/cache-breakers"

DEFAULT_LIMIT, MOST = 100, 1_000
_TOGETHER = 64  # are unpacked and written before others have a turn
_YES, _NO = frozenset({"", "1", "true", "yes"}), frozenset({"0", "false", "no"})
_NAMES = frozenset({"limit", "model", "outcome", "missed", "slowest"})


class _Query(msgspec.Struct, frozen=True):
    """The records that are asked for."""

    limit: int = DEFAULT_LIMIT
    model: str | None = None
    outcome: str | None = None
    missed: bool = False  # only those that reused less than they could have
    miss_kind: str | None = None  # only those that missed for this reason
    slowest: bool = False  # the longest TTFT first; else the newest

    @property
    def is_plain(self) -> bool:
        return self.model is self.outcome is self.miss_kind is None and not self.missed

    def wants(self, record: RequestRecord) -> bool:
        if self.model is not None and record.model != self.model:
            return False
        if self.outcome is not None and record.outcome != self.outcome:
            return False
        if self.miss_kind is not None:
            return any(miss.kind == self.miss_kind for miss in record.missed)
        return not self.missed or record.is_missed


class RecordPages:
    """`wall_clock` is the one that records are dated by, `clock` the one that breakers are."""

    def __init__(
        self,
        ring: RecordRing,
        watch: PromptWatch,
        auth: Auth,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._ring = ring
        self._watch = watch
        self._auth = auth
        self._clock = clock
        self._wall_clock = wall_clock
        self._turn = asyncio.Lock()  # one answer at a time is put together

    def routes(self) -> Mapping[str, Route]:
        """Return its paths."""
        return {
            REQUESTS: Route({"GET": self.requests}),
            ONE_REQUEST: Route({"GET": self.one}),
            BREAKERS: Route({"GET": self.breakers}),
        }

    async def requests(self, request: Request, responder: Responder) -> None:
        """Answer with the records that the query asks for."""
        query = _query(request.query)
        async with self._turn:
            responder.check_client()
            records = [msgspec.json.encode(record) async for record in self._found(query)]
        ring = self._ring
        head = msgspec.json.encode(
            {"kept": len(ring), "capacity": ring.capacity, "oldest_seconds": self._oldest_seconds()}
        )
        body = b'%b,"requests":[%b]}' % (head[:-1], b",".join(records))
        responder.send(200, JSON, body)

    async def one(self, request: Request, responder: Responder) -> None:
        """Answer with the record of one request."""
        request_id = unquote(request.path.removeprefix(ONE_REQUEST))
        wants_text = _flag(parse_qs(request.query, keep_blank_values=True), "text")
        texts = self._watch.texts
        if wants_text and (texts is None or not self._auth.knows_admins):
            raise InvalidRequestError(
                "text: no texts are kept here; start the gateway with --explain-text"
                " (explain_text) and an admin key",
                param="text",
            )
        record = self._ring.find(request_id)
        if record is None:
            raise UnknownPathError(f"no record of request {request_id[:128]!r}: {self._kept()}")
        told = msgspec.to_builtins(record)
        if wants_text and texts is not None:
            told["text"] = await asyncio.to_thread(texts.told, record)
        responder.send(200, JSON, msgspec.json.encode(told))

    async def breakers(self, _: Request, responder: Responder) -> None:
        """Answer with what breaks caches, the most expensive first."""
        told = self._watch.breakers.told(self._clock())
        responder.send(200, JSON, msgspec.json.encode(told))

    async def _found(self, query: _Query) -> AsyncIterator[RequestRecord]:
        if query.slowest:
            number = query.limit if query.is_plain else self._ring.capacity
            found = self._ring.slowest(number) if query.is_plain else await self._slowest(query)
            for place, record in enumerate(found):
                if place % _TOGETHER == _TOGETHER - 1:
                    await asyncio.sleep(0)
                yield record
            return
        left = query.limit
        async for record in self._newest():
            if query.wants(record):
                yield record
                left -= 1
                if not left:
                    return

    async def _slowest(self, query: _Query) -> list[RequestRecord]:
        found = [each async for each in self._newest() if each.ttft_ms >= 0 and query.wants(each)]
        return sorted(found, key=lambda each: each.ttft_ms, reverse=True)[: query.limit]

    async def _newest(self) -> AsyncIterator[RequestRecord]:
        """Yield all records, the newest first, as of now; others have their turns meanwhile."""
        ring = self._ring
        end = ring.last_seq
        first = max(0, end - len(ring))
        while end > first:
            start = max(end - _TOGETHER, first)
            last, records = ring.since(start, end - start)
            for record in reversed(records[: max(0, len(records) - max(0, last - end))]):
                yield record
            end = start
            await asyncio.sleep(0)

    def _oldest_seconds(self) -> float | None:
        oldest = self._ring.oldest_at
        return None if oldest is None else round(max(0.0, self._wall_clock() - oldest), 1)

    def _kept(self) -> str:
        """Return how long records are kept, in words."""
        ring, oldest = self._ring, self._oldest_seconds()
        if not ring.capacity:
            return "none are kept (records.requests is 0)"
        if oldest is None:
            return "no request has ended since the gateway has started"
        return (
            f"the last {ring.capacity} requests are kept (records.requests), of which there are"
            f" {len(ring)}; the oldest came {oldest:g} s ago"
        )


def _query(query: str) -> _Query:
    """Raises InvalidRequestError that names what is wrong."""
    given = parse_qs(query, keep_blank_values=True)
    for name in given:
        if name not in _NAMES:
            raise InvalidRequestError(
                f"{name[:100]!r}: not known; known: {', '.join(sorted(_NAMES))}", param=name[:100]
            )
    missed, kind = given.get("missed", ["no"])[-1], None
    if missed.lower() not in _YES | _NO:
        missed, kind = "yes", missed
    return _Query(
        limit=_limit(given),
        model=_last(given, "model"),
        outcome=_last(given, "outcome"),
        missed=missed.lower() in _YES,
        miss_kind=kind,
        slowest=_flag(given, "slowest"),
    )


def _limit(given: dict[str, list[str]]) -> int:
    text = given.get("limit", [str(DEFAULT_LIMIT)])[-1]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST:
        raise InvalidRequestError(
            f"limit: {text[:100]!r} is no number of records from 1 to {MOST}", param="limit"
        )
    return int(text)


def _flag(given: dict[str, list[str]], name: str) -> bool:
    text = given.get(name, ["no"])[-1].lower()
    if text not in _YES | _NO:
        raise InvalidRequestError(f"{name}: {text[:100]!r}; expected true or false", param=name)
    return text in _YES


def _last(given: dict[str, list[Any]], name: str) -> str | None:
    found = given.get(name)
    return None if found is None else str(found[-1])
