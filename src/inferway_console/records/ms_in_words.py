"""Milliseconds, as people read them."""

from __future__ import annotations


def ms_in_words(milliseconds: float) -> str:
    """Return a time in milliseconds, or in seconds if it is long: three digits or more, and no
    exponent."""
    size = abs(milliseconds)
    if size >= 9_999.5:
        return f"{milliseconds / 1000:,.1f} s"
    if size >= 99.95:
        return f"{milliseconds:,.0f} ms"
    return f"{milliseconds:.1f} ms" if size >= 0.95 else f"{milliseconds:.2g} ms"
