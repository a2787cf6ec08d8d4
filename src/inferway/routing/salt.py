"""Tenants that share no blocks: whose request it is goes into its `cache_salt`.

Who shares a cache can find out, by how soon an answer begins, whether somebody else has asked the
same. vLLM keeps prompts with different salts apart, and so do we: the salt is in the bytes before
anybody reads them, so that our block keys and the engine's are made of the same one.

salt = blake2b-256(key: the secret; tenant's length, tenant, and the client's own salt if any)

Without the secret nobody can name another tenant's salt: a client's own goes into the hash, it does
not replace it.
"""

from __future__ import annotations

import hashlib

from inferway.openai_api.edits import with_cache_salt, with_media_uuids

EDIT, UUID_EDIT = b"cache_salt", b"uuid"
MEDIA_EDIT = b"media"
_BYTES = 32  # 64 hexadecimal digits: vLLM takes up to 128 characters
_MAX_KEY_BYTES = 64


class TenantSalt:
    """Salts by tenant, and by nothing that can be guessed."""

    __slots__ = ("_key",)

    def __init__(self, secret: str) -> None:
        secret_bytes = secret.encode("utf-8", "surrogateescape")
        self._key = hashlib.blake2b(secret_bytes, digest_size=_MAX_KEY_BYTES).digest()

    def of(self, tenant: str, given: str | None) -> str:
        """Return the tenant's salt, made from `given`, which is the client's own."""
        return _hash(tenant, given, self._key)

    def media_uuids(self, body: bytes, tenant: str) -> bytes:
        """Return the same as `with_tenants_media`, by the secret."""
        return with_tenants_media(body, tenant, self._key)

    def salted(self, body: bytes, tenant: str) -> bytes | None:
        """Return `body` with its tenant's salt. None if it cannot have one: it is no JSON object,
        or its `cache_salt` is no text."""
        return with_cache_salt(body, lambda given: self.of(tenant, given))


def with_tenants_media(body: bytes, tenant: str, key: bytes = b"") -> bytes:
    """Return a body whose media are the tenant's alone: for vLLM the `uuid` of a picture is the
    picture, also for requests with another salt (its caches of processed and of encoded media know
    no salt), so that another tenant's picture of the same name would be answered from. Each becomes
    a hash of it and the tenant, with `key` if there is a secret. Raises InvalidRequestError."""
    return with_media_uuids(body, lambda given: _hash(tenant, "uuid:" + given, key))


def _hash(tenant: str, given: str | None, key: bytes) -> str:
    name = tenant.encode("utf-8", "surrogatepass")
    own = b"" if given is None else b"+" + given.encode("utf-8", "surrogatepass")
    data = b"%d:%b%b" % (len(name), name, own)
    return hashlib.blake2b(data, digest_size=_BYTES, key=key).hexdigest()
