"""Settings as logs and errors may have them."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"//([^/:@]*):.*@")


def without_password(text: str) -> str:
    """A URL's, if there is one in it; whatever the password has in it."""
    return _PASSWORD.sub(r"//\1:***@", text)
