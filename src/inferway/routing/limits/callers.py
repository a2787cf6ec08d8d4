"""Callers, known by their API keys, which are hashed at rest.

A key is 256 random bits that `inferway keys add` draws, so one round of SHA-256 without salt keeps
it: nobody can guess it from its hash, which is all that salts and slow hashes (scrypt) are for, and
a slow hash of whatever anybody sends would be a lever against ourselves. A key is looked up by a
keyed hash of that, whose key is drawn at each start, and then compared in constant time: neither
tells by its time how much of a key was right.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated

import msgspec

from inferway.config import read_yaml
from inferway.errors import ConfigError, UnauthorizedError
from inferway.model import Headers

PREFIX = "sha256:"
MIN_KEY_BYTES = 32
_BYTES = 32  # of randomness
_AUTHORIZATION = b"authorization"
CARRIERS = (_AUTHORIZATION, b"x-api-key")  # OpenAI's clients, Anthropic's


class KeySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of the key file."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    hash: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
    tenant: Annotated[str, msgspec.Meta(max_length=128)] = ""  # the name when empty
    priority: int = 0
    admin: bool = False


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of keys, as it is written."""

    keys: list[KeySettings] = []


class ApiCaller(msgspec.Struct, frozen=True):
    """The sender of a request, as its API key identifies it."""

    tenant: str = ""
    priority: int | None = None  # None: as its headers say
    admin: bool = False
    name: str = ""  # of its key


class Callers:
    """The keys that are known. Made anew when the file is read again."""

    __slots__ = ("_by_blinded", "_secret", "names")

    def __init__(self, keys: list[KeySettings]) -> None:
        """Raises ConfigError for a name or a key that is given twice."""
        self._secret = os.urandom(32)
        self._by_blinded: dict[bytes, tuple[bytes, ApiCaller]] = {}
        self.names = [key.name for key in keys]
        for key in keys:
            if self.names.count(key.name) > 1:
                raise ConfigError(f"key {key.name!r} is given twice; each needs a name of its own")
            digest = bytes.fromhex(key.hash.removeprefix(PREFIX))
            blinded = self._blinded(digest)
            if blinded in self._by_blinded:
                raise ConfigError(f"key {key.name!r} has the same hash as another one")
            caller = ApiCaller(key.tenant or key.name, key.priority, key.admin, key.name)
            self._by_blinded[blinded] = (digest, caller)

    def of(self, headers: Headers) -> ApiCaller:
        """Return a request's caller. Raises UnauthorizedError, with nothing of what was sent."""
        sent = [credentials(name, value) for name, value in headers if name in CARRIERS]
        for key in sent:
            digest = hashlib.sha256(key).digest()
            known = self._by_blinded.get(self._blinded(digest))
            if known is not None and hmac.compare_digest(known[0], digest):
                return known[1]
        if not sent:
            raise UnauthorizedError("send your API key as `Authorization: Bearer KEY`")
        raise UnauthorizedError("authorization: unknown API key")

    def _blinded(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=16, key=self._secret).digest()


class AdminKey:
    """The key that scores and admin paths want, once one is configured, where callers need none of
    their own. Nothing of it can be read back."""

    __slots__ = ("_digest",)

    def __init__(self, key: str) -> None:
        self._digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

    def is_carried(self, headers: Headers) -> bool:
        """Return whether a request with these headers comes from an admin."""
        return any(name in CARRIERS and self._is_it(name, value) for name, value in headers)

    def check(self, headers: Headers) -> None:
        """Raises UnauthorizedError, which says what is missing and nothing of what was sent."""
        if self.is_carried(headers):
            return
        sent = [credentials(name, value) for name, value in headers if name in CARRIERS]
        if not sent:
            raise UnauthorizedError(
                "this path wants the gateway's admin key: send `Authorization: Bearer KEY`"
            )
        if not any(sent):
            raise UnauthorizedError("authorization: expected `Bearer KEY`, got something else")
        raise UnauthorizedError("authorization: this is not the gateway's admin key")

    def without(self, headers: Headers) -> Headers:
        """Return the headers that may travel on to an engine."""
        return [h for h in headers if h[0] not in CARRIERS or not self._is_it(*h)]

    def _is_it(self, name: bytes, value: bytes) -> bool:
        # Digests have one length, so that the time tells nothing of the key's.
        sent = hashlib.sha256(credentials(name, value)).digest()
        return hmac.compare_digest(sent, self._digest)


def credentials(name: bytes, value: bytes) -> bytes:
    """Return the key in a header; empty for another scheme than Bearer (RFC 9110 11.1: its case
    does not matter)."""
    if name != _AUTHORIZATION:
        return value.strip()
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def shows_key(headers: Headers) -> bool:
    """Return whether there is a key in these headers, whatever it is."""
    return any(name in CARRIERS and credentials(name, value) for name, value in headers)


def without_credentials(headers: Headers) -> Headers:
    """Return the headers that may travel on to an engine."""
    return [header for header in headers if header[0] not in CARRIERS]


def read_callers(path: Path) -> Callers:
    """Raises ConfigError that names the file, and nothing that may be a secret."""
    try:
        return Callers(read_keys(path).keys)
    except ConfigError as e:
        if str(e).startswith(f"{path}: "):
            raise
        raise ConfigError(f"{path}: {e}") from e


def read_keys(path: Path) -> KeyFile:
    """Return the keys of a file. Raises ConfigError."""
    try:
        return msgspec.convert(read_yaml(path), KeyFile)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{path}: {str(e)[0].lower()}{str(e)[1:]}") from e


def new_key() -> str:
    """Return a key that cannot be guessed."""
    return "iw-" + token_urlsafe(_BYTES)


def hash_of(key: str) -> str:
    """Return the key's hash as the file has it. Raises ConfigError for a key that could be
    guessed."""
    if len(key.encode()) < MIN_KEY_BYTES:
        raise ConfigError(
            f"a key of {len(key.encode())} bytes can be guessed from its hash; it needs"
            f" {MIN_KEY_BYTES} random ones: `inferway keys add` makes one"
        )
    return PREFIX + hashlib.sha256(key.encode()).hexdigest()
