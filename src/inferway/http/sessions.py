"""Sessions of the page: a browser keeps a random token, never the key that it showed."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from secrets import token_urlsafe

SECONDS = 12 * 60 * 60
MOST = 1000  # beyond it the oldest ends
_BYTES = 32


class Sessions:
    """Sessions that end by themselves after `SECONDS` of `clock`, or when the keys are others:
    each holds what it was opened with. No token is kept, only its hash."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[float, object]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, keys: object) -> str:
        """Return the token of a new session, of an admin who has shown one of `keys`."""
        token = token_urlsafe(_BYTES)
        self._open[_digest(token)] = (self._clock() + SECONDS, keys)
        while len(self._open) > MOST:
            self._open.popitem(last=False)
        return token

    def is_open(self, token: str, keys: object) -> bool:
        """Return whether the session goes on, and `keys` are still the same."""
        found = self._open.get(_digest(token))
        if found is None:
            return False
        ends, with_keys = found
        if self._clock() < ends and with_keys == keys:
            return True
        self.close(token)
        return False

    def close(self, token: str) -> None:
        """End a session; one that there is not has ended already."""
        self._open.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
