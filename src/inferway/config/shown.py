"""Settings as logs and errors may have them."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"//([^/:@]*):.*@")
_SECRET = re.compile(r"([?&][^=&#]*(?:password|secret|token|key)[^=&#]*=)[^&#]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """A URL's, if there is one in it, before its host or among its parameters; whatever the
    password has in it."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"//\1:***@", text))
