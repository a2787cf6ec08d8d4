"""The key that scores and admin paths want, once one is configured.

A cache is an oracle: who may ask how much of a prompt is cached can find out, block by block, what
others have asked. So scores, and the headers that say how a request was decided, are the
operator's. The key ends here: it travels to no engine and into no log.
"""

from __future__ import annotations

import hashlib
import hmac

from inferway.errors import UnauthorizedError
from inferway.model import Headers

_AUTHORIZATION = b"authorization"


class AdminKey:
    """One key; nothing of it can be read back."""

    __slots__ = ("_digest",)

    def __init__(self, key: str) -> None:
        self._digest = _digest(key.encode("utf-8", "surrogateescape"))

    def is_carried(self, headers: Headers) -> bool:
        """Whether a request with these headers comes from an admin."""
        return any(name == _AUTHORIZATION and self._is_it(value) for name, value in headers)

    def check(self, headers: Headers) -> None:
        """Raises UnauthorizedError, which says what is missing and nothing of what was sent."""
        if self.is_carried(headers):
            return
        sent = [value for name, value in headers if name == _AUTHORIZATION]
        if not sent:
            raise UnauthorizedError(
                "this path wants the gateway's admin key: send `Authorization: Bearer KEY`"
            )
        if not any(_bearer(value) for value in sent):
            raise UnauthorizedError("authorization: expected `Bearer KEY`, got something else")
        raise UnauthorizedError("authorization: this is not the gateway's admin key")

    def without(self, headers: Headers) -> Headers:
        """What may travel on to an engine."""
        return [h for h in headers if h[0] != _AUTHORIZATION or not self._is_it(h[1])]

    def _is_it(self, authorization: bytes) -> bool:
        # Digests have one length, so that the time tells nothing of the key's.
        return hmac.compare_digest(_digest(_bearer(authorization)), self._digest)


def _bearer(authorization: bytes) -> bytes:
    """The credentials; empty for another scheme (RFC 9110 11.1: its case does not matter)."""
    scheme, _, credentials = authorization.strip().partition(b" ")
    return credentials.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
