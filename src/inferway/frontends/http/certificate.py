"""Our side of TLS with clients: files -> a context, anew whenever they have changed."""

from __future__ import annotations

import ssl
from pathlib import Path

from inferway.errors import ConfigError


class Certificate:
    """A certificate chain and its key, both PEM. `context` stays the same object."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Raises ConfigError."""
        self._chain = chain
        self._key = key
        self.context = self._read()

    def reload(self) -> None:
        """Connections from now on see what the files say now. Raises ConfigError, and then goes
        on with what it had."""
        self._read()
        self.context.load_cert_chain(self._chain, self._key)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._chain, self._key, password=_no_password)
        except (OSError, ValueError) as e:  # SSLError is an OSError
            what = getattr(e, "reason", None) or getattr(e, "strerror", None) or e
            raise ConfigError(
                f"tls_cert {str(self._chain)!r}, tls_key {str(self._key)!r}: {what}; expected a PEM"
                " certificate chain and its PEM key without a password"
            ) from e
        return context


def _no_password() -> str:
    """Instead of a question on the terminal."""
    raise ValueError("the key has a password")
