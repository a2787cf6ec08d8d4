"""Which paths lead to engines, and what is made of a request before anything is decided: a salt for
its tenant, a refusal of what clients may not say, a journey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from inferway.config import ALLOWED_PATH, ServeSettings
from inferway.errors import InvalidRequestError
from inferway.http.message import Request
from inferway.model import RequestHead
from inferway.openai_api.paths import PARSERS, SALTED, UNREAD, UNSALTED, Parse
from inferway.openai_api.trust import NO_TRUST, Trust
from inferway.openai_api.unread import UnreadBody, read_unread
from inferway.routing.director import Director, Weighed
from inferway.routing.journey import Journey
from inferway.routing.limits.concurrency_limiter import Slot
from inferway.routing.salt import EDIT, TenantSalt


class InferenceIngress:
    """Opens the journeys of requests to the `paths` that lead to engines."""

    def __init__(
        self,
        director: Director,
        allowed: Iterable[str] = (),
        *,
        salt: TenantSalt | None = None,
        trust: Trust = NO_TRUST,
    ) -> None:
        """`allowed`: paths beside those that are known, `[METHOD ]/path`."""
        self._director = director
        self._salt = salt
        self._trust = trust
        self._parsers: Mapping[str, Parse] = {
            path: trust.checked(parse) for path, parse in PARSERS.items()
        }
        self.paths: dict[str, set[str]] = {path: {"POST"} for path in PARSERS}
        for path, how in UNREAD.items():
            if salt is None or how != UNSALTED:
                self.paths[path] = {"POST"}
        for text in allowed:
            found = ALLOWED_PATH.fullmatch(text)
            assert found is not None, text  # config has checked it
            self.paths.setdefault(found[2], set()).add(found[1] or "POST")

    def open(
        self, request: Request, tenant: str = "", priority: int | None = None, share: str = ""
    ) -> Journey:
        """Return the request's journey, which has the given priority, whatever its headers say.
        `share`: whose share of the engines it takes, if not its tenant's. Raises
        InvalidRequestError."""
        parse = self._parsers.get(request.path)
        if parse is None:
            return self._unread(request, tenant, priority, share or tenant)
        body = self.salted(request.body, tenant)
        edits = () if body is request.body else (EDIT,)
        return self._director.open(
            *(request.head, body, request.id.decode()),
            parse=parse,
            priority=priority,
            edits=edits,
            tenant=share or tenant,
        )

    async def weigh(
        self,
        head: RequestHead,
        body: bytes,
        slot: Slot | None,
        *,
        request_id: str,
        tenant: str,
        priority: int | None,
        share: str,
    ) -> Weighed:
        """Return what would be decided of this request, which is sent nowhere. Raises
        InvalidRequestError, and what deciding it raises."""
        parse = self._parsers.get(head.path)
        if parse is None:
            known = ", ".join(self._parsers)
            raise InvalidRequestError(
                f"path: {head.path[:200]!r} carries no prompt that is read here; known: {known}",
                param="path",
            )
        return await self._director.weigh(
            *(head, self.salted(body, tenant), slot),
            parse=parse,
            request_id=request_id,
            priority=priority,
            tenant=share or tenant,
        )

    def salted(self, body: bytes, tenant: str) -> bytes:
        """Return the body as the engine gets it; `body` itself if it has no salt, or cannot have
        one: then parsing says what is wrong with it."""
        if self._salt is None:
            return body
        return self._salt.salted(body, tenant) or body

    def _unread(self, request: Request, tenant: str, priority: int | None, share: str) -> Journey:
        director = self._director
        read = partial(read_unread, content_type=request.fields.get(b"content-type", b""))

        async def reading() -> UnreadBody:
            found = await director.parse(read, request.body)
            self._trust.check(found.members)
            return self._salted_unread(found, request.path, tenant)

        return director.open_unread(
            request.head, request.body, reading, priority=priority, tenant=share
        )

    def _salted_unread(self, found: UnreadBody, path: str, tenant: str) -> UnreadBody:
        if self._salt is None or not found.is_json or UNREAD.get(path) != SALTED:
            return found
        raw = self._salt.salted(found.raw, tenant)
        if raw is None:
            raise InvalidRequestError("cache_salt: expected text or null", param="cache_salt")
        return msgspec.structs.replace(found, raw=raw, edits=(EDIT,))


def build_ingress(settings: ServeSettings, director: Director) -> InferenceIngress:
    """Return the ingress that the settings describe. Raises ConfigError."""
    secret = settings.salt_secret()
    return InferenceIngress(
        director,
        settings.allow_paths,
        salt=None if secret is None else TenantSalt(secret),
        trust=Trust(settings.trust_kv_transfer_params, settings.trust_priority),
    )
