"""The exceptions that decoders raise for bytes that they cannot read.

Apart from `errors`, which an engine's processes import before any library is needed.
"""

from __future__ import annotations

import msgspec

# Not the form that was asked for, text that is no UTF-8, and objects within objects deeper than
# Python's stack.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
