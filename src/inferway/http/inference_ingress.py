"""Paths that lead to engines, and what is done with a request before it is decided: it gets a salt
for its tenant, is refused if it says what clients may not say, and becomes a journey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from inferway.config import ALLOWED_PATH, ServeSettings
from inferway.errors import InvalidRequestError
from inferway.http.message import Request
from inferway.model import RequestHead
from inferway.openai_api.kinds import KINDS, PARSERS, SALTED, UNREAD, UNSALTED, Parse
from inferway.openai_api.trust import NO_TRUST, Trust
from inferway.openai_api.unread import UnreadBody, read_unread
from inferway.routing.director import Director, Weighed
from inferway.routing.journey import Journey
from inferway.routing.limits.slot import Slot
from inferway.routing.salt import EDIT, UUID_EDIT, TenantSalt, with_tenants_media


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
        takes = [each.path for each in KINDS.values() if salt is None or each.salt != UNSALTED]
        self.paths: dict[str, set[str]] = {path: {"POST"} for path in takes}
        for text in allowed:
            found = ALLOWED_PATH.fullmatch(text)
            assert found is not None, text  # config has checked it
            self.paths.setdefault(found[2], set()).add(found[1] or "POST")

    @property
    def is_salted(self) -> bool:
        """True if tenants are kept apart by salts: what cannot be salted does not reach engines."""
        return self._salt is not None

    async def open(
        self, request: Request, tenant: str = "", priority: int | None = None, share: str = ""
    ) -> Journey:
        """Return the request's journey, which has the given priority, whatever its headers say.
        `share`: whose share of the engines it takes, if not its tenant's. Raises
        InvalidRequestError."""
        parse = self._parsers.get(request.path)
        if parse is None:
            return self._unread(request, tenant, priority, share or tenant)
        body, edits = await self.kept_apart(request.body, tenant)
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
            *(head, (await self.kept_apart(body, tenant))[0], slot),
            parse=parse,
            request_id=request_id,
            priority=priority,
            tenant=share or tenant,
        )

    async def kept_apart(self, body: bytes, tenant: str) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the body as the engine gets it, so that no other tenant's blocks and media are its
        answer's, and what was changed for that; `body` itself where nothing is, and where it cannot
        be: then parsing says what is wrong with it. Raises InvalidRequestError."""
        if (tenant or self._salt is not None) and not self._director.parses_here(body):
            return await self._director.parse(partial(self._kept_apart, tenant), body)
        return self._kept_apart(tenant, body)

    def _kept_apart(self, tenant: str, body: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        own, edits = self._own_media(body, tenant)
        if self._salt is None:
            return own, edits
        salted = self._salt.salted(own, tenant)
        return (own, edits) if salted is None else (salted, (*edits, EDIT))

    def _own_media(self, body: bytes, tenant: str) -> tuple[bytes, tuple[bytes, ...]]:
        if self._salt is not None:
            own = self._salt.media_uuids(body, tenant)
        else:
            own = with_tenants_media(body, tenant) if tenant else body
        return own, () if own is body else (UUID_EDIT,)

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
        if not found.is_json:
            return found
        raw, edits = self._own_media(found.raw, tenant)
        if self._salt is not None and UNREAD.get(path) == SALTED:
            salted = self._salt.salted(raw, tenant)
            if salted is None:
                raise InvalidRequestError("cache_salt: expected text or null", param="cache_salt")
            raw, edits = salted, (*edits, EDIT)
        return msgspec.structs.replace(found, raw=raw, edits=edits) if edits else found


def build_ingress(settings: ServeSettings, director: Director) -> InferenceIngress:
    """Return the ingress that the settings describe. Raises ConfigError."""
    secret = settings.salt_secret()
    return InferenceIngress(
        director,
        settings.allow_paths,
        salt=None if secret is None else TenantSalt(secret),
        trust=Trust(settings.trust_kv_transfer_params, settings.trust_priority),
    )
